"""The time per output token that a request of a class will see, learned from requests that have just ended."""

import math
from collections import deque
from statistics import median

LATEST, OF = 16, 32
"""The ``LATEST`` to arrive of the last ``OF`` requests that ended count: a long one says what was long ago."""

LOAD_EXPONENT = 0.25
"""Power of the number of requests in flight with which the time per token grows.

A step takes longer with more requests in it. A power below the one of step times alone, since the load in which a
request decodes comes back to the usual one while it runs.
"""

_LEAST_S = 1e-9


class DecodePace:
    """A running median of time per output token, at the load of the moment.

    As long as more than half of the latest requests are ordinary, the others cannot move it beyond the ordinary ones.
    """

    def __init__(self) -> None:
        self._ended: deque[tuple[float, float]] = deque(maxlen=OF)
        self._middle: float | None = None

    def add(self, tpot_s: float, arrival_s: float, others: int) -> None:
        """Record the time per output token of a request that has ended.

        Args:
            tpot_s: Mean seconds per output token after the first.
            arrival_s: Time of its arrival.
            others: Number of requests in flight when it arrived.
        """
        self._ended.append((arrival_s, math.log(max(tpot_s, _LEAST_S)) - _load(others)))
        self._middle = None

    def tpot_s(self, others: int) -> float | None:
        """Return the expected seconds per token of a request that arrives while ``others`` are in flight.

        The value is ``None`` before the first request has ended.
        """
        if not self._ended:
            return None
        if self._middle is None:
            self._middle = median(pace for _, pace in sorted(self._ended)[-LATEST:])
        return math.exp(self._middle + _load(others))


def _load(others: int) -> float:
    return LOAD_EXPONENT * math.log1p(others)
