"""Mooncake's traces as published: one JSON object a line with timestamp (ms), input_length, output_length, hash_ids.

Equal ids are equal 512-token blocks of the prompt, so they say which prompts share a prefix. Keys beyond these are
ignored; the task is the file's name without ``_trace``, as ``conversation`` for ``conversation_trace.jsonl``.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from sloserve.core.errors import ConfigError
from sloserve.workloads.readers.source import (
    MAX_ARRIVAL_S,
    MAX_TOKENS,
    TOKENS_ALLOWED,
    RawRows,
    bad_cell,
    check_prefix_ids,
    open_trace,
)

REQUIRED = ("timestamp", "input_length", "output_length")


def read(path: Path) -> RawRows:
    """The rows of the file; one without ``hash_ids`` shares nothing.

    Raises: ConfigError for a malformed file.
    """
    arrivals_s: list[float] = []
    prompts: list[int] = []
    outputs: list[int] = []
    prefix_ids: list[tuple[int, ...]] = []
    with open_trace(path) as source:
        for line, text in enumerate(source, start=1):
            if not text.strip():
                continue
            row = _object(path, line, text)
            arrivals_s.append(_timestamp_s(path, line, row["timestamp"]))
            prompts.append(_tokens(path, line, "input_length", row["input_length"]))
            outputs.append(_tokens(path, line, "output_length", row["output_length"]))
            prefix_ids.append(_ids(path, line, row.get("hash_ids", []), prompts[-1]))
    task = path.name.removesuffix(".gz").removesuffix(".jsonl").removesuffix("_trace")
    return RawRows(
        arrival_s=np.array(arrivals_s, np.float64),
        prompt_tokens=np.array(prompts, np.int64),
        output_tokens=np.array(outputs, np.int64),
        task=[task] * len(prompts),
        prefix_ids=prefix_ids if any(prefix_ids) else None,
    )


def _object(path: Path, line: int, text: str) -> dict[str, Any]:
    try:
        row = json.loads(text.rstrip())
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}:{line}:{error.colno}: is not JSON: {error.msg}") from None
    except (RecursionError, ValueError) as error:
        raise ConfigError(f"{path}:{line}: is not a JSON object that can be read: {error}") from None
    if not isinstance(row, dict):
        raise ConfigError(f"{path}:{line}: is not a JSON object with {', '.join(REQUIRED)}")
    for key in REQUIRED:
        if key not in row:
            raise ConfigError(f"{path}:{line}: column {key!r} is missing; the row has: {', '.join(row) or 'nothing'}")
    return row


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _timestamp_s(path: Path, line: int, value: Any) -> float:
    if not (_is_number(value) and 0 <= value <= MAX_ARRIVAL_S * 1000):
        allowed = f"a number of milliseconds from 0 to {MAX_ARRIVAL_S * 1000:.0f}"
        raise bad_cell(path, line, "timestamp", value, allowed)
    return float(value) / 1000.0


def _tokens(path: Path, line: int, key: str, value: Any) -> int:
    if not (_is_number(value) and 1 <= value <= MAX_TOKENS and value == math.floor(value)):
        raise bad_cell(path, line, key, value, TOKENS_ALLOWED)
    return int(value)


def _ids(path: Path, line: int, value: Any, prompt_tokens: int) -> tuple[int, ...]:
    if not (isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)):
        raise bad_cell(path, line, "hash_ids", value, "a list of whole numbers, each at least 0")
    check_prefix_ids(path, line, "hash_ids", tuple(value), prompt_tokens)
    return tuple(value)
