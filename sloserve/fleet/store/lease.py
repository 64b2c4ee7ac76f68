"""The holder's side of a lease: until when it may act on what it has claimed, by its own monotonic clock.

The store counts a lease from when it grants it, which is after the holder asked. So a holder that counts from before it
asked, less a margin, stops first, whatever its clock says and however long the store took to respond. Wall clocks are
not compared anywhere.
"""

from typing import Final

from sloserve.core.clock import Clock

MARGIN: Final = 0.2
"""Part of a lease that its holder leaves unused: a monotonic clock that runs slow, or a pause between a look at the
clock and what follows from it."""


LONGEST_S: Final = 3_600.0
"""Longest lease in seconds (``--lease-s``): one that ends later is over, since the store's clock was set back."""


class Lease:
    """One lease of ``lease_s`` seconds. Call :meth:`ask` before each request to the store."""

    def __init__(self, clock: Clock, lease_s: float) -> None:
        self.lease_s = lease_s
        self._clock = clock
        self._asked_s = self._until_s = float("-inf")

    def ask(self) -> None:
        """Note the time at which the holder asks the store for the lease."""
        self._asked_s = self._clock.monotonic_s()

    def granted(self) -> None:
        """Record that the store has granted the lease that was requested last."""
        self._until_s = self._asked_s + self.lease_s * (1.0 - MARGIN)

    @property
    def left_s(self) -> float:
        """The seconds for which the holder may still act; at 0 or less it must not."""
        return self._until_s - self._clock.monotonic_s()
