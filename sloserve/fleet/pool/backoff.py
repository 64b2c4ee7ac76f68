"""Pauses between starts of a process that ends by itself."""

from typing import Final

from sloserve.core.clock import Clock

_AGAIN_S: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Seconds between starts of a process that ends by itself; the last value is repeated."""
_LIVED_S: Final = 60.0
"""Seconds of running after which a process that ends is restarted without a longer pause, as at its first end."""


class Backoff:
    """Counts starts of one process that ended soon."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._starts = 0
        self._begun_s = 0.0

    def begun(self) -> None:
        """Record that the process starts now."""
        self._begun_s = self._clock.monotonic_s()

    def pause_s(self) -> float:
        """Return the seconds until the next start of the process, which has ended now."""
        if self._clock.monotonic_s() - self._begun_s > _LIVED_S:
            self._starts = 0
        pause_s = _AGAIN_S[min(self._starts, len(_AGAIN_S) - 1)]
        self._starts += 1
        return pause_s
