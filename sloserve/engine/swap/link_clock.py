"""A predictor of when copies on the link between host and device end; each direction has a queue of its own.

The rate starts as the profile's, or any guess, and follows what copies really take. The first ``LEARNS`` copies are
averaged, since the guess may be far off; each moves the rate by ``MAX_FIRST_CHANGE`` at most. Thereafter, whatever is
observed, one copy moves the rate by at most ``MAX_CHANGE``, so that an outlier hardly counts; a lasting change is
followed. The rate stays within ``LIMITS`` times the first one. While nothing is copied it returns to the first one: a
link that is taken for slow is not used, and would never show that it is not.
"""

import math
from typing import Final

from sloserve.lso.plan import SwapFacts

MAX_CHANGE: Final = 0.04
"""Largest change of the rate by one copy, as a share of it; the corrected step times have the same limit."""
LEARNS: Final = 8
"""Copies in which the rate is learnt. With a link of a tenth of the guess (PCIe shared, a pool on the far socket) eight
bring it within half as much again, where ``MAX_CHANGE`` alone takes 60.
"""
MAX_FIRST_CHANGE: Final = 2.0
"""Largest factor by which one of the first copies moves the rate, up or down."""
LIMITS: Final = (0.01, 10.0)
"""The rate's least and largest multiple of the first one. A pool in swapped memory, or on another socket, is far slower
than the bus, which bounds it from above.
"""
FORGETS_S: Final = 300.0
"""Seconds without copies after which what was observed counts 1/e."""
_GAIN: Final = 1.0 / LEARNS


class LinkClock:
    """A clock of the link's copies: a copy starts when the earlier ones in its direction have ended.

    ``bytes_per_s`` is the rate of one direction, as observed up to the last copy. Times are seconds of one clock.

    Args:
        bytes_per_s: The first guess of the rate, in bytes per second.

    Raises: ValueError unless the rate is above 0 and finite.
    """

    def __init__(self, bytes_per_s: float) -> None:
        if not 0.0 < bytes_per_s < math.inf:
            raise ValueError(f"bytes_per_s: {bytes_per_s} is not above 0 and finite")
        self.bytes_per_s = self._first = bytes_per_s
        self._limits = (LIMITS[0] * bytes_per_s, LIMITS[1] * bytes_per_s)
        self._out_until_s = self._in_until_s = -math.inf
        self._observed = 0

    def out(self, num_bytes: int, now_s: float) -> float:
        """Queue a copy to the host; return when it is predicted to end."""
        self.bytes_per_s = self._rate(now_s)
        self._out_until_s = max(self._out_until_s, now_s) + num_bytes / self.bytes_per_s
        return self._out_until_s

    def in_(self, num_bytes: int, now_s: float, not_before_s: float = -math.inf) -> float:
        """Queue a copy to the device; return when it is predicted to end.

        Args:
            num_bytes: Bytes of the copy.
            now_s: The present time, in seconds.
            not_before_s: Time at which its source is there.
        """
        self.bytes_per_s = self._rate(now_s)
        self._in_until_s = max(self._in_until_s, now_s, not_before_s) + num_bytes / self.bytes_per_s
        return self._in_until_s

    def observed(self, num_bytes: int, seconds: float) -> None:
        """Record how long a copy took, its wait for others not counted.

        The copy is ignored without bytes or a positive, finite time.
        """
        if num_bytes <= 0 or not 0.0 < seconds < math.inf:
            return
        self._observed += 1
        if self._observed <= LEARNS:
            gain, least, most = 1.0 / self._observed, 1.0 / MAX_FIRST_CHANGE, MAX_FIRST_CHANGE
        else:
            gain, least, most = _GAIN, 1.0 - MAX_CHANGE, 1.0 + MAX_CHANGE
        change = min(max((num_bytes / seconds / self.bytes_per_s) ** gain, least), most)
        self.bytes_per_s = min(max(self.bytes_per_s * change, self._limits[0]), self._limits[1])

    def _rate(self, now_s: float) -> float:
        """Return the observed rate, the nearer to the first one the longer nothing was copied."""
        idle_s = now_s - max(self._out_until_s, self._in_until_s)
        if idle_s <= 0.0 or self.bytes_per_s == self._first:
            return self.bytes_per_s
        rate: float = self._first * (self.bytes_per_s / self._first) ** math.exp(-idle_s / FORGETS_S)
        return rate

    def facts(self, now_s: float, *, block_bytes: int, total_blocks: int, free_blocks: int) -> SwapFacts:
        """Return the link and a pool behind it as a policy sees them."""
        return SwapFacts(
            block_bytes=block_bytes,
            total_blocks=total_blocks,
            free_blocks=free_blocks,
            bytes_per_s=self._rate(now_s),
            out_s=max(self._out_until_s - now_s, 0.0),
            in_s=max(self._in_until_s - now_s, 0.0),
        )
