"""Sums over the queued requests of a store, which the leading planner reads at a limited rate."""

from collections.abc import Sequence

from sloserve.core.clock import Clock
from sloserve.fleet.store.records import QueuedSums
from sloserve.fleet.store.requests import Requests
from sloserve.fleet.store.shared_sums import pause_s


class CachedSums:
    """Sums over queued requests, read from the store at a limited rate.

    Args:
        clock: Clock of this process, used for durations alone.
    """

    def __init__(self, requests: Requests, clock: Clock) -> None:
        self._requests, self._clock = requests, clock
        self._sums: Sequence[QueuedSums] = ()
        self._due_s = float("-inf")

    def sums(self) -> Sequence[QueuedSums]:
        """Return recent sums; this blocks while it reads the store. Raises: StoreError."""
        began_s = self._clock.monotonic_s()
        if began_s >= self._due_s:
            self._sums = self._requests.sums()
            took_s = self._clock.monotonic_s() - began_s
            self._due_s = began_s + pause_s(took_s)
        return self._sums
