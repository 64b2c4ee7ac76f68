"""CSV files as checked columns: fast on good rows, exact about bad ones.

Rows are read in chunks and converted a column at a time. Only when a chunk does not convert, or lies outside its
limits, are its cells looked at one by one; that slow look is the definition of what is valid, and it names the first
cell that is not.
"""

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sloserve.core import numbers
from sloserve.core.errors import ConfigError
from sloserve.sim.workloads.drawn_tenants import TENANT_ALLOWED, tenant_name
from sloserve.sim.workloads.readers.source import MAX_ARRIVAL_S, MAX_TOKENS, TOKENS_ALLOWED, bad_cell, open_trace

CHUNK_ROWS = 50_000
"""The number of rows converted at a time: large enough for numpy, small enough to stream tens of millions of rows."""


@dataclass(frozen=True, slots=True)
class Column:
    """The rule for how one column is read.

    Args:
        name: Name of the column in the header.
        parse: Function that returns the value of one cell, or raises ValueError.
        parse_all: Function that returns the values of many cells, or raises ValueError when any might be bad.
        allowed: Text that completes "is not ..." in the message.
        optional: Whether the header may lack the column.
    """

    name: str
    parse: Callable[[str], Any]
    parse_all: Callable[[Sequence[str]], Sequence[Any] | NDArray[Any]]
    allowed: str
    optional: bool = False


def _plain(cells: Sequence[str]) -> Sequence[str]:
    """Return the cells.

    Raises: ValueError for underscores and digits that are not ASCII, which numpy or Python would read.
    """
    joined = "".join(cells)
    if "_" in joined or not joined.isascii():
        raise ValueError("not in ASCII digits")
    return cells


def _whole_tokens(text: str) -> int:
    number = numbers.number(text)
    if not (0 <= number <= MAX_TOKENS and number == int(number)):
        raise ValueError(text)
    return int(number)


def _all_whole_tokens(cells: Sequence[str]) -> NDArray[np.int64]:
    values = np.array(_plain(cells)).astype(np.int64)
    if values.min() < 0 or values.max() > MAX_TOKENS:
        raise ValueError("out of range")
    return values


def _seconds(text: str) -> float:
    number = numbers.number(text)
    if not 0.0 <= number <= MAX_ARRIVAL_S:
        raise ValueError(text)
    return number


def _all_seconds(cells: Sequence[str]) -> NDArray[np.float64]:
    values = np.array(_plain(cells)).astype(np.float64)
    if not (values.min() >= 0.0 and values.max() <= MAX_ARRIVAL_S):
        raise ValueError("out of range")
    return values


def _ids(text: str) -> tuple[int, ...]:
    ids = tuple(map(int, _plain([text])[0].split()))
    if ids and min(ids) < 0:
        raise ValueError(text)
    return ids


def tokens(name: str) -> Column:
    """Return a column of token counts."""
    return Column(name, _whole_tokens, _all_whole_tokens, TOKENS_ALLOWED)


def seconds(name: str) -> Column:
    """Return a column of seconds from the start; it is optional, for files of lengths only."""
    return Column(name, _seconds, _all_seconds, f"a number of seconds from 0 to {MAX_ARRIVAL_S:.0f}", optional=True)


def text(name: str) -> Column:
    """Return an optional column of labels."""
    return Column(name, str, list, "text", optional=True)


def tenant(name: str) -> Column:
    """Return an optional column of tenants; an empty cell is a request without one."""
    parse_all = lambda cells: [tenant_name(cell) for cell in cells]  # noqa: E731
    return Column(name, tenant_name, parse_all, f"empty or {TENANT_ALLOWED}", optional=True)


def ids(name: str) -> Column:
    """Return an optional column of space-separated block ids."""
    parse_all = lambda cells: [_ids(cell) for cell in cells]  # noqa: E731
    return Column(name, _ids, parse_all, "a space-separated list of whole numbers, each at least 0", optional=True)


def read_chunks(path: Path, columns: Sequence[Column]) -> Iterator[tuple[list[int], dict[str, Any]]]:
    """Yield the CSV file at ``path`` in chunks: the line number of each row, and the values of each column.

    The values are of the columns of ``columns`` that the file has. Blank lines are passed over; columns that are not
    asked for are ignored.

    Raises: ConfigError for a missing column, a row of another width, or a malformed cell.
    """
    with open_trace(path) as source:
        reader = csv.reader(source)
        try:
            header = [cell.strip() for cell in next((row for row in reader if row), [])]
            found = _locate(path, reader.line_num, header, columns)
            while chunk := list(islice(((reader.line_num, row) for row in reader), CHUNK_ROWS)):
                lines = [line for line, row in chunk if row]
                rows = [row for _, row in chunk if row]
                if rows:
                    yield lines, _convert(path, lines, rows, len(header), found)
        except csv.Error as error:
            raise ConfigError(f"{path}:{reader.line_num}: is not CSV: {error}") from None


def _locate(path: Path, line: int, header: list[str], columns: Sequence[Column]) -> list[tuple[int, Column]]:
    for column in columns:
        if column.name not in header and not column.optional:
            shown = ", ".join(header) or "nothing"
            raise ConfigError(f"{path}:{max(line, 1)}: column {column.name!r} is missing; the header has: {shown}")
    return [(header.index(column.name), column) for column in columns if column.name in header]


def _convert(
    path: Path, lines: list[int], rows: list[list[str]], width: int, found: list[tuple[int, Column]]
) -> dict[str, Any]:
    for line, row in zip(lines, rows, strict=True):
        if len(row) != width:
            raise ConfigError(f"{path}:{line}: row has {len(row)} columns, the header has {width}")
    try:
        return {column.name: column.parse_all([row[i] for row in rows]) for i, column in found}
    except (ValueError, OverflowError):
        return _convert_by_cell(path, lines, rows, found)


def _convert_by_cell(
    path: Path, lines: list[int], rows: list[list[str]], found: list[tuple[int, Column]]
) -> dict[str, Any]:
    values: dict[str, list[Any]] = {column.name: [] for _, column in found}
    for line, row in zip(lines, rows, strict=True):
        for i, column in found:
            try:
                values[column.name].append(column.parse(row[i]))
            except (ValueError, OverflowError):
                raise bad_cell(path, line, column.name, row[i], column.allowed) from None
    return values
