"""The folder of recordings, and the bound on what ended recordings leave in it."""

import os
import time
from pathlib import Path
from typing import Final

from sloserve.core.user_folders import user_folder
from sloserve.engine.recording.segments import SUFFIX

_FRONT_END: Final = "-api"
_GATEWAY: Final = "-gateway"
_WRITTEN_WITHIN_S: Final = 3600.0
"""Seconds after its last frame for which a segment counts as one of a running server."""


def recordings_folder(named: str | None) -> Path:
    """Return the folder that the settings name, else the user's own.

    Raises: ConfigError if no folder can be created.
    """
    return user_folder("XDG_STATE_HOME", ".local/state") / "recordings" if named is None else Path(named)


def run_name(now_s: float) -> str:
    """Return a name for the recordings of a server that this process starts: the time, and the process' number."""
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now_s))}-{os.getpid()}"


def engine_stem(run: str, rank: int) -> str:
    """Return the beginning of the names of the segments of an engine.

    Args:
        run: Name of the server's recordings.
        rank: Rank of the engine.
    """
    return f"{run}-rank{rank}"


def front_end_stem(run: str, rank: int) -> str:
    """Return the beginning of the names of the segments of an API process.

    Args:
        run: Name of the server's recordings.
        rank: Number of the API process.
    """
    return f"{run}{_FRONT_END}{rank}"


def gateway_stem(run: str) -> str:
    """Return the beginning of the names of the segments of a fleet's gateway.

    Args:
        run: Name of the gateway's recordings.
    """
    return f"{run}{_GATEWAY}"


def stem_of(path: Path) -> str:
    """Return the beginning of the name of a segment, which all segments of its process have."""
    return path.name.rpartition("-")[0]


def run_of(stem: str) -> str:
    """Return the name of the server's recordings to which a stem belongs."""
    return stem.rpartition("-")[0]


def is_of_front_end(stem: str) -> bool:
    """Return whether a stem is one of an API process."""
    return stem[len(run_of(stem)) :].startswith(_FRONT_END)


def is_of_gateway(stem: str) -> bool:
    """Return whether a stem is one of a fleet's gateway."""
    return stem.endswith(_GATEWAY)


def trim(folder: Path, most_bytes: int, now_s: float) -> None:
    """Remove the oldest segments of ended recordings until the rest of them takes ``most_bytes``.

    Args:
        folder: The folder.
        most_bytes: Bytes that ended recordings may take.
        now_s: The present time, in epoch seconds.

    Raises: OSError if the folder cannot be read.
    """
    if not folder.is_dir():
        return
    ended = []
    for path in folder.glob(f"*{SUFFIX}"):
        found = path.stat()
        if now_s - found.st_mtime > _WRITTEN_WITHIN_S:
            ended.append((found.st_mtime, found.st_size, path))
    left = sum(size for _, size, _ in ended)
    for _, size, path in sorted(ended):
        if left <= most_bytes:
            return
        path.unlink(missing_ok=True)
        left -= size
