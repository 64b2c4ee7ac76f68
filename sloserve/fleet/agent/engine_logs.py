"""The logs of engines: a file for each engine of an instance, which rotates by size.

Engines write to them directly, so that no line is lost while an agent is busy or gone. A file that has grown is copied
aside and emptied; at most the lines that are written meanwhile are lost.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import quote

from sloserve.core.json_lines import lines_of

MOST_BYTES: Final = 10_000_000
KEPT: Final = 3
"""Number of older files of each engine, the newest with .1 behind its name."""


def log_path(folder: Path, instance: str, model: str) -> Path:
    """Return the file to which the engine of this model on this instance logs."""
    return folder / f"{quote(instance, safe='')}@{quote(model, safe='')}.log"


def rotate(path: Path, most_bytes: int = MOST_BYTES) -> bool:
    """Rotate a log that has grown beyond ``most_bytes``, and return whether it had. Its writers continue to append."""
    if not path.exists() or path.stat().st_size <= most_bytes:
        return False
    scratch = path.with_name(f"{path.name}.new")
    try:
        shutil.copyfile(path, scratch)
    except OSError:  # the disk is full, perhaps: what was set aside before stays
        scratch.unlink(missing_ok=True)
        raise
    for number in range(KEPT - 1, 0, -1):
        older = _aside(path, number)
        if older.exists():
            os.replace(older, _aside(path, number + 1))
    os.replace(scratch, _aside(path, 1))
    os.truncate(path, 0)
    return True


def logs_of(folder: Path, model: str) -> list[Path]:
    """Return all logs of a model's engines, instance by instance, the oldest part of each first."""
    found = []
    for path in sorted(folder.glob(f"*@{quote(model, safe='')}.log")):
        parts = [_aside(path, number) for number in range(KEPT, 0, -1)]
        found += [*(part for part in parts if part.exists()), path]
    return found


def last_lines(folder: Path, model: str, most: int) -> Iterator[str]:
    """Yield the last lines of a model's engines, each with its instance in front; at most ``most`` of each file."""
    for path in logs_of(folder, model):
        instance = path.name.partition("@")[0].replace("%2F", "/")
        for line in lines_of(path.read_text(encoding="utf-8", errors="replace"))[-most:]:
            yield f"{instance}: {line}"


def _aside(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")
