"""Locks of the operating system's on files: a process that dies lets go of them.

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
    """A descriptor on a file of this user's own, made if it is not there; not locked yet. Raises: OSError."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    _open.add(fd)
    return fd


def has_locked(fd: int) -> bool:
    """Tries to lock it; whether no other process has."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def close_lock(fd: int) -> None:
    """Lets go of it, if it was locked."""
    _open.discard(fd)
    fcntl.flock(fd, fcntl.LOCK_UN)  # else a child that is just being forked holds it a moment longer
    os.close(fd)


@contextlib.contextmanager
def one_at_a_time(path: Path, limit_s: float) -> Iterator[None]:
    """Waits until no other process is within the same lines. path: of the lock's file, made if it is not there.

    Raises: ConfigError if another is for ``limit_s`` seconds. OSError: the file cannot be opened.
    """
    fd, looks = open_to_lock(path), int(limit_s / _LOOK_S)
    try:
        while not has_locked(fd):
            looks -= 1
            if looks < 0:
                raise ConfigError(f"{path}: another process has had it locked for {limit_s:g} s; end that one")
            time.sleep(_LOOK_S)
        yield
    finally:
        close_lock(fd)


class OwnLock:
    """A lock that one process at a time may have, and that process is this one, until it ends or closes it.

    path: of the lock's file, which keeps a name of its own from one process to the next. what: it is the lock of, for
    the error: ``an agent of host a``.

    Raises: ConfigError where another process has it, or no file can be made.
    """

    def __init__(self, path: Path, what: str) -> None:
        try:
            self._fd = open_to_lock(path)
        except OSError as error:
            raise ConfigError(f"{path} cannot be opened: {error.strerror}; give another folder with --state") from None
        name, _, pid = os.pread(self._fd, 100, 0).decode(errors="replace").partition(" ")
        if not has_locked(self._fd):
            close_lock(self._fd)
            raise ConfigError(f"{what} runs already{f' (process {pid})' if pid else ''}: stop it first")
        self.name = name if len(name) == _NAME_BYTES else secrets.token_hex(_NAME_BYTES // 2)
        """Of the file: who has the lock later, with the same name, knows that who had it before has ended."""
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{self.name} {os.getpid()}".encode(), 0)

    def close(self) -> None:
        """Lets go of it."""
        close_lock(self._fd)


def _in_child() -> None:
    while _open:
        os.close(_open.pop())


os.register_at_fork(after_in_child=_in_child)
