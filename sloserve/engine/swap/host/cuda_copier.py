"""Copies of KV blocks that go on beside a GPU's own work, and are reported when they are over."""

import logging
import time
from collections.abc import Sequence
from typing import Final, Protocol

from numpy.typing import ArrayLike

from sloserve.engine.swap.host.copier import Moved
from sloserve.engine.swap.host.cuda_library import EndedCopy

logger = logging.getLogger(__name__)

_PAUSE_S: Final = 2e-4


class Transfer(Protocol):
    """Begins copies on the device's own streams, and says which are over."""

    @property
    def staging_bytes(self) -> int: ...
    def store(self, device_ids: ArrayLike, host_ids: ArrayLike, *, beside: bool = False) -> int: ...
    def await_store(self, ticket: int) -> None: ...
    def load(self, device_ids: ArrayLike, host_ids: ArrayLike) -> int: ...
    def ended(self) -> list[EndedCopy]: ...
    def close(self) -> None: ...


class CudaCopier:
    """A :class:`~sloserve.engine.swap.host.copier.Copier` with copies that go on beside the engine."""

    def __init__(self, transfer: Transfer) -> None:
        self.transfer = transfer
        self._loads: dict[int, str] = {}
        self._stores: set[int] = set()
        self._done: set[str] = set()
        self._failed: set[str] = set()
        self._moved: list[Moved] = []

    def store(self, device_ids: Sequence[int], host_ids: Sequence[int], *, beside: bool = False) -> int:
        if not len(device_ids) and not len(host_ids):
            return 0
        ticket = self.transfer.store(device_ids, host_ids, beside=beside)
        self._stores.add(ticket)
        return ticket

    def await_store(self, ticket: int) -> None:
        if ticket in self._stores:  # else it is over
            self.transfer.await_store(ticket)

    def load(self, ticket: str, device_ids: Sequence[int], host_ids: Sequence[int]) -> None:
        if len(device_ids) or len(host_ids):
            self._loads[self.transfer.load(device_ids, host_ids)] = ticket
        else:
            self._done.add(ticket)

    def finished(self) -> tuple[set[str], set[str]]:
        self._poll()
        done, failed, self._done, self._failed = self._done, self._failed, set(), set()
        return done, failed

    def moved(self) -> list[Moved]:
        self._poll()
        moved, self._moved = self._moved, []
        return moved

    def drain(self, limit_s: float) -> bool:
        until_s = time.perf_counter() + limit_s
        while True:
            self._poll()
            if not self._loads and not self._stores:
                return True
            if time.perf_counter() > until_s:
                return False
            time.sleep(_PAUSE_S)

    def close(self) -> None:
        self.transfer.close()

    def _poll(self) -> None:
        if not self._loads and not self._stores:
            return
        try:
            ended = self.transfer.ended()
        except RuntimeError:
            # A device that failed runs nothing any more: later copies raise, and so will the engine's own work.
            logger.exception("sloserve: the GPU failed while KV was copied; %d loads are lost", len(self._loads))
            self._failed.update(self._loads.values())
            self._loads.clear()
            self._stores.clear()
            return
        for ticket, to_host, num_bytes, link_s in ended:
            self._moved.append(Moved(to_host, num_bytes, link_s))
            if to_host:
                self._stores.discard(ticket)
            else:
                self._done.add(self._loads.pop(ticket))
