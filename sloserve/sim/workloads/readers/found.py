"""The place of a trace: its path, or its name in the folder that an environment variable names."""

import os
from pathlib import Path

from sloserve.core.errors import ConfigError

DATA_FOLDER = "SLOSERVE_DATA"
"""The environment variable with the folder of traces."""

SUFFIXES = ("", ".gz", ".csv", ".csv.gz", ".jsonl", ".jsonl.gz")
"""The endings that a name may lack."""


def find_trace(name: str | Path) -> Path:
    """Return the file at the path ``name``, or else the file with that name in the folder of traces.

    Raises: ConfigError that lists the searched places.
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
