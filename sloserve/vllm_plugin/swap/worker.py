"""The worker's half of the connector: makes the copies that the scheduler orders, and reports their outcomes."""

from collections.abc import Callable
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
        for one in orders.stores:
            if self._copied(one, self._copier.store, one.device_ids, one.host_ids):
                self._broken.difference_update(one.host_ids)
            else:
                self._broken.update(one.host_ids)
                self._report.failed_stores.add(one.request_id)

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
                or not self._copied(one, self._copier.load, one.request_id, one.device_ids, one.host_ids)
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

    def _copied(self, what: Copy, copy: Callable[..., None], *args: object) -> bool:
        try:
            copy(*args)
        except Exception as error:
            self._errors.caught(error, f"sloserve: a copy of KV of {what.request_id} failed; it is computed again")
            return False
        return True
