"""Where a trace lies: at its path, or under its name in the folder that an environment variable names."""

import os
from pathlib import Path

from sloserve.core.errors import ConfigError

DATA_FOLDER = "SLOSERVE_DATA"
"""Environment variable with the folder of traces."""

SUFFIXES = ("", ".gz", ".csv", ".csv.gz", ".jsonl", ".jsonl.gz")
"""What a name may lack."""


def find_trace(name: str | Path) -> Path:
    """The file at the path ``name``; where there is none, the one of that name in the folder of traces.

    Raises: ConfigError that says where was looked.
    """
    path, folder = Path(name), os.environ.get(DATA_FOLDER)
    if path.exists() or path.is_absolute():
        return path
    for suffix in SUFFIXES if folder else ():
        candidate = Path(folder or "", f"{path}{suffix}")
        if candidate.is_file():
            return candidate
    also = f"nor in {DATA_FOLDER}={folder}" if folder else f"and {DATA_FOLDER}, which may name a folder, is not set"
    raise ConfigError(f"no trace {path}: not in {Path.cwd()}, {also}")
