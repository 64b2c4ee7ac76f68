"""Requests with known output lengths, from which a length model is trained; read from JSON lines."""

import gzip
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.errors import ConfigError
from sloserve.core.files.kinds import reading
from sloserve.estimator.length.remaining import KnownRequests

_TOKEN = re.compile(r"\w+|[^\w\s]")
_FIELDS = ("prompt", "prompt_tokens", "output", "output_tokens", "max_tokens", "task", "arrival_s")


@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """``requests`` as they were at admission, and the output tokens of each ``[n]``.

    A request's ``class_id`` is its task's place in ``tasks``.
    """

    requests: KnownRequests
    lengths: IntArray
    tasks: tuple[str, ...]

    def __len__(self) -> int:
        return self.lengths.size

    def take(self, places: IntArray) -> "Examples":
        """Return the examples at ``places``."""
        return Examples(self.requests.take(places), self.lengths[places], self.tasks)


NO_CAP = 1 << 40
"""``max_tokens`` of a request without one."""


def make_examples(
    lengths: IntArray,
    *,
    task: list[str] | None = None,
    prompt: list[str] | None = None,
    prompt_tokens: IntArray | None = None,
    max_tokens: IntArray | None = None,
    arrival_s: FloatArray | None = None,
) -> Examples:
    """Return examples with the columns ``[n]`` that are known."""
    labels = task or [""] * lengths.size
    tasks = tuple(sorted(set(labels)))
    place = {label: i for i, label in enumerate(tasks)}
    requests = KnownRequests(
        class_id=np.array([place[label] for label in labels], np.int64),
        output_tokens=np.zeros(lengths.size, np.int64),
        max_tokens=np.full(lengths.size, NO_CAP) if max_tokens is None else max_tokens,
        prompt_tokens=prompt_tokens,
        arrival_s=arrival_s,
        task=labels,
        prompt=prompt,
    )
    return Examples(requests, lengths, tasks)


def count_tokens(text: str) -> int:
    """Return the number of words and punctuation marks in ``text``, at least 1, in place of a tokenizer's count."""
    return max(len(_TOKEN.findall(text)), 1)


def read_examples(path: Path) -> Examples:
    """Return the examples in the file at ``path``: one JSON object a line, gzipped or not.

    The fields are ``output_tokens``, or ``output``, a text of which words and marks are counted; and, as far as known,
    ``prompt``, ``prompt_tokens``, ``max_tokens``, ``task``, ``arrival_s``. Other fields are ignored. A column is used
    if every line has it.

    Raises: ConfigError that names file, line, field, value and what is allowed.
    """
    with reading("examples", path):
        rows = list(_rows(path))
        if not rows:
            raise ConfigError(f"{path}: has no requests; at least one line is needed")

    def column(name: str) -> list[Any] | None:
        return [row[name] for row in rows] if all(name in row for row in rows) else None

    def array(name: str, dtype: type) -> Any:
        values = column(name)
        return None if values is None else np.array(values, dtype)

    return make_examples(
        np.array([row["output_tokens"] for row in rows], np.int64),
        task=column("task"),
        prompt=column("prompt"),
        prompt_tokens=array("prompt_tokens", np.int64),
        max_tokens=array("max_tokens", np.int64),
        arrival_s=array("arrival_s", np.float64),
    )


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with path.open("rb") as file:
            gzipped = file.read(2) == b"\x1f\x8b"
        binary = gzip.open(path, "rb") if gzipped else path.open("rb")
        # A line of JSON ends with a line feed and nothing else.
        with io.TextIOWrapper(cast(BinaryIO, binary), encoding="utf-8-sig", newline="\n") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _row(f"{path}:{number}", line)
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot read: {error}") from None


def _row(where: str, line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where}: is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{where}: a JSON object is needed, with output_tokens or output")
    row = {name: found[name] for name in _FIELDS if found.get(name) is not None}
    for name, value in row.items():
        if name in ("prompt", "output", "task"):
            right, allowed = isinstance(value, str), "text"
        elif name == "arrival_s":
            right, allowed = isinstance(value, int | float) and bool(np.isfinite(value)), "a finite number"
        else:
            right, allowed = type(value) is int and 1 <= value < 2**40, "a whole number, 1 or more"
        if not right:
            raise ConfigError(f"{where}: {name}: {value!r} is not {allowed}")
    if "output_tokens" not in row:
        if "output" not in row:
            raise ConfigError(f"{where}: output_tokens, or output, is missing")
        row["output_tokens"] = count_tokens(row["output"])
    return row
