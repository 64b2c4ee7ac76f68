"""Locks of the operating system on files: a process that dies releases them.

A forked child would have a lock too, and keep it for as long as it lives; so a child closes what it inherits of them.
"""

import contextlib
import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sloserve.core.errors import ConfigError

_NAME_BYTES: Final = 32
_LOOK_S: Final = 0.02

_open: set[int] = set()
"""Descriptors of this process on files that it locks, or wants to."""


def open_to_lock(path: Path) -> int:
    """Return a descriptor of a file that only this user may read, created if it does not exist, and not locked yet.

    Raises: OSError if the file cannot be opened.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    _open.add(fd)
    return fd


def has_locked(fd: int) -> bool:
    """Try to lock the file; return ``False`` if another process has locked it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def close_lock(fd: int) -> None:
    """Release the lock, if this process holds it, and close the descriptor."""
    _open.discard(fd)
    fcntl.flock(fd, fcntl.LOCK_UN)  # else a child that is just being forked holds it a moment longer
    os.close(fd)


@contextlib.contextmanager
def one_at_a_time(path: Path, limit_s: float) -> Iterator[None]:
    """Wait until no other process runs the same block of code.

    Args:
        path: Path of the lock's file, which is created if it does not exist.
        limit_s: Most seconds to wait.

    Raises: ConfigError if another process holds the lock for ``limit_s`` seconds; OSError if the file cannot be opened.
    """
    fd, looks = open_to_lock(path), int(limit_s / _LOOK_S)
    try:
        while not has_locked(fd):
            looks -= 1
            if looks < 0:
                raise ConfigError(f"{path}: another process has held the lock for {limit_s:g} s; stop that process")
            time.sleep(_LOOK_S)
        yield
    finally:
        close_lock(fd)


class OwnLock:
    """A lock that one process at a time can hold; this process holds it until it ends or closes the lock.

    Args:
        path: Path of the lock's file, which keeps its own name from one process to the next.
        what: Words for what is locked, for the error, such as ``an agent of host a``.

    Raises: ConfigError if another process holds the lock, or no file can be created.
    """

    def __init__(self, path: Path, what: str) -> None:
        try:
            fd = open_to_lock(path)
        except OSError as error:
            raise ConfigError(f"{path} cannot be opened: {error.strerror}; give another folder with --state") from None
        self._fd: int | None = fd
        name, _, pid = os.pread(fd, 100, 0).decode(errors="replace").partition(" ")
        if not has_locked(fd):
            close_lock(fd)
            raise ConfigError(f"{what} is already running{f' (process {pid})' if pid else ''}: stop it first")
        self.name = name if len(name) == _NAME_BYTES else secrets.token_hex(_NAME_BYTES // 2)
        """Name of the file: a later holder that finds the same name knows that the earlier holder has ended."""
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{self.name} {os.getpid()}".encode(), 0)

    def close(self) -> None:
        """Release the lock; do nothing if that has been done, since the descriptor may be another file's by now."""
        fd, self._fd = self._fd, None
        if fd is not None:
            close_lock(fd)


def holder_of(path: Path) -> int | None:
    """Return the process that holds an :class:`OwnLock`; ``None`` if no process does, or the lock's file is missing."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.pread(fd, 100, 0).decode(errors="replace").partition(" ")[2]
        return int(pid) if pid.isdecimal() else None
    else:
        return None
    finally:
        os.close(fd)


def _in_child() -> None:
    while _open:
        os.close(_open.pop())


os.register_at_fork(after_in_child=_in_child)
