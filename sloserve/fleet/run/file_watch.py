"""Looks for changes of a fleet's file where no signal is sent, as for a mounted ConfigMap of Kubernetes."""

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

from sloserve.fleet.supervised import supervised

LOOK_S: Final = 5.0
"""Seconds between two looks."""


class FileWatch:
    """Decides when a file has changed: once it has the same contents, other than before, at two looks in a row.

    A file that is being written differs from one look to the next.

    Args:
        digest: Digest of the contents by which the process works.
    """

    def __init__(self, digest: bytes | None) -> None:
        self._known = self._last = digest

    def look(self, digest: bytes | None) -> bool:
        """Take the digest of the file now, ``None`` for a file that cannot be read; return whether it has changed."""
        is_stable, self._last = digest == self._last, digest
        if digest is None or not is_stable or digest == self._known:
            return False
        self._known = digest
        return True


def digest_of(path: Path) -> bytes | None:
    """Return a digest of a file's contents; ``None`` for a file that cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).digest()
    except OSError:
        return None


async def watch_file(path: Path, changed: Callable[[], None], every_s: float = LOOK_S) -> NoReturn:
    """Call ``changed`` whenever the file has changed, until cancelled.

    Args:
        path: The file.
        changed: Called in the event loop.
        every_s: Seconds between two looks.
    """
    watch = FileWatch(await asyncio.to_thread(digest_of, path))

    async def turn() -> None:
        if watch.look(await asyncio.to_thread(digest_of, path)):
            changed()

    await supervised(f"changes of {path} are not noticed", turn, every_s, first_s=every_s)
