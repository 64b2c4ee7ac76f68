"""Copiers for tests: loads that take a while, and copies that fail."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


class LateCopier:
    """Copies of another copier, whose loads end some steps after they began. Their blocks are written only then.

    A store beside steps is made only when a step waits for it, or another copy has a host block of it.
    """

    def __init__(self, copier: Any, steps: int) -> None:
        self._copier, self._steps = copier, steps
        self._under_way: list[tuple[int, str, Sequence[int], Sequence[int]]] = []
        self._beside: list[tuple[Sequence[int], Sequence[int]]] = []
        self._first = 1  # number of the first of these
        self.most_under_way = self.most_beside = 0

    def store(self, device_ids: Sequence[int], host_ids: Sequence[int], *, beside: bool = False) -> int:
        reads = {block for _, _, _, ids in self._under_way for block in ids}
        assert reads.isdisjoint(host_ids), "a host block is stored to while a load reads it"
        self._make_stores_with(host_ids)
        if not beside:
            self._copier.store(device_ids, host_ids)
            return 0
        self._beside.append((device_ids, host_ids))
        self.most_beside = max(self.most_beside, len(self._beside))
        return self._first + len(self._beside) - 1

    def await_store(self, number: int) -> None:
        while self._first <= number and self._beside:
            self._copier.store(*self._beside.pop(0))
            self._first += 1

    def _make_stores_with(self, host_ids: Sequence[int]) -> None:
        """Make the stores beside steps up to the last that has one of these host blocks."""
        last = [place for place, (_, of_store) in enumerate(self._beside) if not set(of_store).isdisjoint(host_ids)]
        if last:
            self.await_store(self._first + last[-1])

    def load(self, ticket: str, device_ids: Sequence[int], host_ids: Sequence[int]) -> None:
        self._make_stores_with(host_ids)
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

    def store(self, device_ids: Sequence[int], host_ids: Sequence[int], *, beside: bool = False) -> int:
        if self._fails():
            raise OSError("no store today")
        number: int = self._copier.store(device_ids, host_ids, beside=beside)
        return number

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
