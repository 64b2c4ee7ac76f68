"""The worker's half of the connector: makes the copies that the scheduler orders, and reports their outcomes."""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from sloserve.engine.containment import ErrorLog
from sloserve.engine.swap.host.copier import Copier
from sloserve.vllm_plugin.swap.messages import Copy, SwapOrders, SwapReport


class Loads(NamedTuple):
    """Requests with loads that ended; a failed one is in both sets."""

    ended: set[str]
    failed: set[str]


class SwapWorker:
    """Copies of one rank. A copy that fails is reported to the scheduler, which has the request computed again."""

    def __init__(self, copier: Copier) -> None:
        self._copier = copier
        self._broken: set[int] = set()  # host blocks with a failed last store
        self._beside: deque[tuple[Copy, int]] = deque()  # stores beside steps, with their numbers for the copier
        self._failed_loads: set[str] = set()
        self._report = SwapReport()
        self._errors = ErrorLog()

    def store(self, orders: SwapOrders) -> None:
        """Make the stores of ``orders``, before its step writes any block.

        A second call with the same orders does nothing.
        """
        if orders.stored:
            return
        orders.stored = True
        self._await(orders.awaited)
        for one in orders.stores:
            beside = one.number > orders.awaited
            number = self._copied(one, partial(self._copier.store, one.device_ids, one.host_ids, beside=beside))
            if number is None:
                self._store_failed(one)
                continue
            self._broken.difference_update(one.host_ids)
            if beside:
                self._beside.append((one, number))

    def _await(self, number: float) -> None:
        """Have the step wait for the stores beside earlier steps up to this number."""
        awaited = []
        while self._beside and self._beside[0][0].number <= number:
            awaited.append(self._beside.popleft())
        if awaited:  # the last one comes after the others
            store, last = awaited[-1]
            if self._copied(store, partial(self._copier.await_store, last)) is None:
                for one, _ in awaited:
                    self._store_failed(one)

    def _store_failed(self, store: Copy) -> None:
        self._broken.update(store.host_ids)
        self._report.failed_stores.add(store.request_id)

    def load(self, orders: SwapOrders) -> None:
        """Begin the loads of ``orders``, once the device has its step.

        A second call with the same orders does nothing.
        """
        if orders.loaded:
            return
        orders.loaded = True
        for one in orders.loads:
            # An order without blocks belongs to a request for which the scheduler could not make one.
            if (
                not one.host_ids
                or not self._broken.isdisjoint(one.host_ids)
                or self._copied(one, partial(self._copier.load, one.request_id, one.device_ids, one.host_ids)) is None
            ):
                self._failed_loads.add(one.request_id)

    def ended(self) -> Loads:
        """Return the loads that ended since the last call."""
        done, failed = self._copier.finished()
        failed |= self._failed_loads
        self._failed_loads = set()
        return Loads(done | failed, failed)

    def report(self) -> SwapReport | None:
        """Return what else there is to report; ``None`` for nothing."""
        report, self._report = self._report, SwapReport()
        for to_host, num_bytes, seconds in self._copier.moved():
            (report.out if to_host else report.back).add(num_bytes, seconds)
        return report or None

    def drain(self, limit_s: float) -> bool:
        """Wait at most ``limit_s`` until no copy is under way; return whether none is."""
        return self._copier.drain(limit_s)

    def close(self) -> None:
        self._copier.close()

    def _copied(self, what: Copy, copy: Callable[[], int | None]) -> int | None:
        """Return what ``copy`` returns, or 0 for nothing; ``None`` if it failed."""
        try:
            return copy() or 0
        except Exception as error:
            self._errors.caught(error, f"sloserve: a copy of KV of {what.request_id} failed; it is computed again")
            return None
