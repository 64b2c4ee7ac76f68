"""One change at a time over all API processes of a server.

A change goes to every rank by a call of its own, and two changes at once may reach the ranks in different order, each
process seeing its own alone. So a process makes a change only while it has the lock, which is a lock of the operating
system's on a file of the server's: a process that dies lets go of it. A forked child would have it too, and keep it for
as long as it lives; so a child closes what it inherits of it (:func:`_in_child`).
"""

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from sloserve.core.errors import EngineError

LOOK_AGAIN_S: Final = 0.05
"""Another process' change takes as long as a step of the engine, or tens of seconds where it parks."""


_open: set[int] = set()
"""Descriptors of this process on files that it locks, or wants to."""


class ServerLock:
    """What one API process holds while it changes something."""

    def __init__(self) -> None:
        self._own = asyncio.Lock()

    @asynccontextmanager
    async def held(self, file: Callable[[], Path] | None) -> AsyncIterator[None]:
        """Waits until no other change is being made.

        file: names the server's file; ``None`` where this is its only API process.
        Raises: EngineError where the file cannot be locked.
        """
        async with self._own:
            if file is None:
                yield
                return
            try:
                fd = os.open(file(), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise EngineError(
                    f"no change is made, since another API process may be making one: no lock can be had: {error}"
                ) from error
            _open.add(fd)
            try:
                while not _has_locked(fd):
                    await asyncio.sleep(LOOK_AGAIN_S)
                yield
            finally:
                _open.discard(fd)
                fcntl.flock(fd, fcntl.LOCK_UN)  # else a child that is just being forked holds it a moment longer
                os.close(fd)


def _has_locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _in_child() -> None:
    while _open:
        os.close(_open.pop())


os.register_at_fork(after_in_child=_in_child)
