"""One change at a time over all API processes of a server.

A change goes to every rank by a call of its own, and two changes at once may reach the ranks in different order, each
process seeing its own alone. So a process makes a change only while it has the lock, which is a lock of the operating
system's on a file of the server's (:mod:`sloserve.core.file_lock`).
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from sloserve.core.errors import EngineError
from sloserve.core.file_lock import close_lock, has_locked, open_to_lock

LOOK_AGAIN_S: Final = 0.05
"""Seconds between looks: another process' change takes as long as an engine step, or tens of seconds to park."""


class ServerLock:
    """A lock that one API process holds while it changes something."""

    def __init__(self) -> None:
        self._own = asyncio.Lock()

    @asynccontextmanager
    async def held(self, file: Callable[[], Path] | None) -> AsyncIterator[None]:
        """Wait until no other change is being made, and hold the lock meanwhile.

        Args:
            file: Returns the server's lock file; ``None`` if this is its only API process.

        Raises: EngineError where the file cannot be locked.
        """
        async with self._own:
            if file is None:
                yield
                return
            try:
                fd = open_to_lock(file())
            except OSError as error:
                raise EngineError(
                    f"nothing was changed, since another API process may be changing something: cannot lock: {error}"
                ) from error
            try:
                while not has_locked(fd):
                    await asyncio.sleep(LOOK_AGAIN_S)
                yield
            finally:
                close_lock(fd)
