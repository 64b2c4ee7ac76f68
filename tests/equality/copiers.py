"""Copiers for tests: loads that take a while, and copies that fail."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


class LateCopier:
    """Copies of another copier, whose loads end some steps after they began. Their blocks are written only then."""

    def __init__(self, copier: Any, steps: int) -> None:
        self._copier, self._steps = copier, steps
        self._under_way: list[tuple[int, str, Sequence[int], Sequence[int]]] = []
        self.most_under_way = 0

    def store(self, device_ids: Sequence[int], host_ids: Sequence[int]) -> None:
        reads = {block for _, _, _, ids in self._under_way for block in ids}
        assert reads.isdisjoint(host_ids), "a host block is stored to while a load reads it"
        self._copier.store(device_ids, host_ids)

    def load(self, ticket: str, device_ids: Sequence[int], host_ids: Sequence[int]) -> None:
        self._under_way.append((self._steps, ticket, device_ids, host_ids))
        self.most_under_way = max(self.most_under_way, len(self._under_way))

    def finished(self) -> tuple[set[str], set[str]]:
        waiting = [(left - 1, *rest) for left, *rest in self._under_way]
        self._under_way = [(left, *rest) for left, *rest in waiting if left > 0]
        for left, *rest in waiting:
            if left <= 0:
                self._copier.load(*rest)
        found: tuple[set[str], set[str]] = self._copier.finished()
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._copier, name)


class FailingCopier:
    """Copies of another copier, of which some are refused and some loads turn out to have failed."""

    def __init__(self, copier: Any, every: int) -> None:
        self._copier, self._every = copier, every
        self._asked = 0
        self._failed: set[str] = set()

    def _fails(self) -> bool:
        self._asked += 1
        return self._asked % self._every == 0

    def store(self, device_ids: Sequence[int], host_ids: Sequence[int]) -> None:
        if self._fails():
            raise OSError("no store today")
        self._copier.store(device_ids, host_ids)

    def load(self, ticket: str, device_ids: Sequence[int], host_ids: Sequence[int]) -> None:
        if not self._fails():
            self._copier.load(ticket, device_ids, host_ids)
        elif self._asked % (2 * self._every):
            raise OSError("no load today")
        else:
            self._failed.add(ticket)

    def finished(self) -> tuple[set[str], set[str]]:
        (done, failed), also = self._copier.finished(), self._failed
        self._failed = set()
        return done, failed | also

    def __getattr__(self, name: str) -> Any:
        return getattr(self._copier, name)


@contextmanager
def copying_by(kind: type[LateCopier] | type[FailingCopier], argument: int) -> Iterator[Any]:
    """The engine of this process copies by ``kind`` within the block."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    worker: Any = get_kv_transfer_group()._worker
    before, worker._copier = worker._copier, kind(worker._copier, argument)
    try:
        yield worker._copier
    finally:
        worker._copier = before
