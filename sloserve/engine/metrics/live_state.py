"""States of a class or a tenant that watchers see, by its own requests alone."""

from collections.abc import Sequence
from typing import Any, Final

GOOD_SHARE: Final = 0.9
"""Share of its targets in the last minute below which a class is shown as bad."""
BAD, LATE, FINE = "bad", "late", "fine"
"""States of a class, by its own requests alone.

A class is bad if it meets less than :data:`GOOD_SHARE`, or if none of its requests ended and some are late. It is late
if it meets that share and some requests are late now. It is fine if no request is late.
"""


def state_of(late: int, met: float) -> str:
    """Return the state of a class or a tenant: fine, late or bad.

    Args:
        late: Number of its late requests.
        met: Share of its targets that were met; -1 if no request with targets ended in the last minute.
    """
    if 0.0 <= met < GOOD_SHARE or (late and met < 0.0):
        return BAD
    return LATE if late else FINE


def share_met(attained: Sequence[Any]) -> float:
    """Return the share of targets met in the shortest span, or -1 where nothing ended in it."""
    share = attained[0][0]
    return -1.0 if share is None else float(share)
