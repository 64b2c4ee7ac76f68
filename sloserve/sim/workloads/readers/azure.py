"""Azure's LLM inference traces as published: TIMESTAMP, ContextTokens, GeneratedTokens.

Timestamps are ``2023-11-16 18:15:46.6805900``, in later releases with a UTC offset; without one they are UTC. The file
has no task column: the task is ``conv`` or ``code`` when the file's name says so, else ``azure``.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sloserve.sim.workloads.readers import table
from sloserve.sim.workloads.readers.source import RawRows

TIMESTAMP = "TIMESTAMP"
REQUIRED = (TIMESTAMP, "ContextTokens", "GeneratedTokens")
_PLAIN = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d{1,9})?", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _epoch_ns(text: str) -> int:
    moment = datetime.fromisoformat(text.strip())
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return (moment - _EPOCH) // timedelta(microseconds=1) * 1000


def _all_epoch_ns(cells: Sequence[str]) -> NDArray[np.int64]:
    bare = [cell.removesuffix("+00:00") for cell in cells]
    if not all(map(_PLAIN.fullmatch, bare)):  # numpy would drop what it takes for a time zone
        raise ValueError("not a plain UTC timestamp")
    return np.array(bare, dtype="datetime64[ns]").astype(np.int64)


_COLUMNS = (
    table.Column(TIMESTAMP, _epoch_ns, _all_epoch_ns, "a date and time like 2023-11-16 18:15:46.6805900"),
    table.tokens("ContextTokens"),
    table.tokens("GeneratedTokens"),
)


def read(path: Path) -> RawRows:
    """Return the rows of the file, with arrivals in seconds since its earliest.

    Raises: ConfigError for a malformed file.
    """
    moments, prompts, outputs = ([np.empty(0, np.int64)] for _ in range(3))
    for _, chunk in table.read_chunks(path, _COLUMNS):
        for parts, name in ((moments, TIMESTAMP), (prompts, "ContextTokens"), (outputs, "GeneratedTokens")):
            parts.append(np.asarray(chunk[name], np.int64))
    epoch_ns = np.concatenate(moments)
    arrival_s = (epoch_ns - (epoch_ns.min() if epoch_ns.size else 0)) / 1e9
    named = re.search(r"(?:^|_)(conv|code)(?:[_.]|$)", path.name)
    return RawRows(
        arrival_s=arrival_s,
        prompt_tokens=np.concatenate(prompts),
        output_tokens=np.concatenate(outputs),
        task=[named[1] if named else "azure"] * epoch_ns.size,
        unit="UTC dates",
    )
