"""The store and the files as one process reaches them: slowly, not at all, or without learning what became of it."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final, Self

from sloserve.core.errors import StoreAway, StoreFull
from sloserve.fleet.store.database import Session
from sloserve.fleet.store.sqlite import SqliteDatabase
from tests.fleet.faults.kernel import Kernel, Process

STORE: Final = "store"
"""The store's end of network links."""
_LONGEST_WAIT_S: Final = 8.0
"""Seconds that a client waits for a database that it does not reach."""


@dataclass
class StoreTrouble:
    """What is wrong with the store now.

    Args:
        latency_s: Mean seconds of a transaction.
        fails: Part of the transactions that fail before they begin.
        unacknowledged: Part of the transactions that are committed, and whose client sees an error.
        is_away: Whether no one reaches it.
        is_full: Whether nothing can be written.
        cut: Places that do not reach it.
        since_s: When something of this changed last.
    """

    latency_s: float = 0.002
    fails: float = 0.0
    unacknowledged: float = 0.0
    is_away: bool = False
    is_full: bool = False
    cut: set[str] = field(default_factory=set)
    since_s: float = float("-inf")


class StoreClock:
    """The store's clock. ahead_s: how far it has been set; set_s: when that was last."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel, self.ahead_s, self.set_s = kernel, 0.0, float("-inf")

    def set(self, ahead_s: float) -> None:
        self.ahead_s, self.set_s = ahead_s, self._kernel.now_s

    def now_s(self) -> float:
        return self._kernel.now_s + self.ahead_s

    def monotonic_s(self) -> float:
        return self._kernel.now_s


class ReachedDatabase:
    """The database as one process reaches it; see :class:`sloserve.fleet.store.database.Database`."""

    def __init__(
        self, inner: SqliteDatabase, process: Process, trouble: StoreTrouble, watched: Callable[[Session], Session]
    ) -> None:
        self._inner, self._process, self._trouble, self._watched = inner, process, trouble, watched
        self._kernel = process.kernel

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        self._begin()
        if self._trouble.is_full and self._kernel.is_in_thread:
            self._process.disturbed_s = self._kernel.now_s
            raise StoreFull("the disk of the store is full")
        with self._inner.transaction() as session:
            yield self._watched(session)
        self._end()

    alone = transaction

    @contextmanager
    def reading(self) -> Iterator[Session]:
        self._begin()
        with self._inner.reading() as session:
            yield session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def wait(self, limit_s: float) -> None:
        self._kernel.pause(limit_s)

    def close(self) -> None:
        """Do nothing: others use the same database."""

    def _begin(self) -> None:
        if not self._kernel.is_in_thread or self._kernel.is_over:
            return
        trouble, rng = self._trouble, self._kernel.rng
        self._kernel.pause(float(rng.exponential(trouble.latency_s)))
        if trouble.is_away or self._process.place in trouble.cut:
            self._process.disturbed_s = self._kernel.now_s
            self._kernel.pause(float(rng.uniform(0.0, _LONGEST_WAIT_S)))
            self._process.disturbed_s = self._kernel.now_s
            raise StoreAway("the store cannot be reached")
        if trouble.fails and rng.random() < trouble.fails:
            self._process.disturbed_s = self._kernel.now_s
            raise StoreAway("the connection to the store broke before the transaction")

    def _end(self) -> None:
        if not self._kernel.is_in_thread or self._kernel.is_over:
            return
        trouble, rng = self._trouble, self._kernel.rng
        self._kernel.pause(float(rng.exponential(trouble.latency_s)))
        if trouble.unacknowledged and rng.random() < trouble.unacknowledged:
            self._process.disturbed_s = self._kernel.now_s
            raise StoreAway("the connection to the store broke after the commit")


@dataclass
class Disk:
    """The disk of the files. free_bytes: what a write may still take, ``None`` for any amount."""

    free_bytes: int | None = None
    latency_s: float = 0.001


class ReachedFolder:
    """The folder of files as one process reaches it; see :class:`sloserve.fleet.batch_api.files.Files`."""

    def __init__(self, path: Path, process: Process, disk: Disk) -> None:
        self._path, self._kernel, self._disk, self._process = path, process.kernel, disk, process

    def opened(self, open_files: Callable[..., Any], *rest: Any) -> Self:
        """Open it as the product does, which may say who it is."""
        self._inner = open_files(self._path, *rest)
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @contextmanager
    def writing(self, id: str, *args: Any, **given: Any) -> Iterator[BinaryIO]:
        self._pause()
        with self._inner.writing(id, *args, **given) as file:
            yield _Written(file, self._process, self._disk, self._pause)  # type: ignore[misc]
            file.flush()
            self._date(file.name)
            self._pause()

    def open(self, id: str) -> BinaryIO | None:
        self._pause()
        return self._inner.open(id)

    def delete(self, id: str) -> None:
        self._pause()
        self._inner.delete(id)

    def _pause(self) -> None:
        self._kernel.pause(float(self._kernel.rng.exponential(self._disk.latency_s)))

    def _date(self, name: Any) -> None:
        os.utime(name, (self._kernel.now_s, self._kernel.now_s))


class _Written:
    """A file that is written; the disk may be full."""

    def __init__(self, file: BinaryIO, process: Process, disk: Disk, pause: Callable[[], None]) -> None:
        self._file, self._kernel, self._disk, self._pause = file, process.kernel, disk, pause
        self._size = 0

    def write(self, part: bytes) -> int:
        self._pause()
        self._size += len(part)
        if self._disk.free_bytes is not None and self._size > self._disk.free_bytes:
            raise OSError(errno.ENOSPC, "no space left on device")
        written = self._file.write(part)
        self._file.flush()
        os.utime(self._file.name, (self._kernel.now_s, self._kernel.now_s))
        return written
