"""Times of Retry-After: whole seconds within bounds."""

import math

MIN_RETRY_AFTER_S = 1
MAX_RETRY_AFTER_S = 30
"""Longest wait in seconds that a refusal asks for; conventions of the ecosystem ask for at most 30 s."""

DEFAULT_RETRY_AFTER_S = 5
"""Wait in seconds that a refusal asks for while no request of its class was ever seen to start.

The queue's speed is unknown then.
"""


def retry_after_s(seconds: float) -> int:
    """Return the whole seconds of Retry-After for a time to wait: rounded up, between the least and the most."""
    # Times are doubles, of which epoch seconds lie 2e-7 s apart: a whole second shall not become the next one.
    return min(max(math.ceil(seconds - 1e-6), MIN_RETRY_AFTER_S), MAX_RETRY_AFTER_S)
