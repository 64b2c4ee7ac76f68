"""The records of an experiment's runs as ``runs.csv``: a line per run, small enough to be kept with a published result.

It holds what the tables and the figures against load are made of, so both can be made again without running anything.
``timing`` is left out, so equal experiments leave equal bytes. Times are rounded to the microsecond; all else is exact.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sloserve.sim.report.summary import Run

RUNS_CSV = "runs.csv"
LEFT_OUT = ("timing",)
TEXT_COLUMNS = ("policy",)
FIRST_COLUMNS = ("policy", "load", "rps", "seed")
EMPTY_MAPPING = "{}"
DECIMALS = {"_ms": 3, "_s": 6}
"""The decimals of times, by the unit at the end of the name."""


def write_runs(path: Path, runs: Sequence[Run]) -> None:
    """Write ``runs`` to ``path`` as :func:`runs_text` has them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(runs_text(runs), encoding="utf-8", newline="")


def runs_text(runs: Sequence[Run]) -> str:
    """Return ``runs`` as CSV, nested values as columns named by their path (``by_class/interactive/mean_ttft_ms``).

    A value that is ``None``, or that a run does not have, is an empty field. ``~`` and ``/`` within a key are written
    ``~0`` and ``~1``, as in a JSON pointer.
    """
    flat = [_flat(run) for run in runs]
    found = dict.fromkeys(column for row in flat for column in row)
    columns = [column for column in FIRST_COLUMNS if column in found]
    columns += [column for column in found if column not in FIRST_COLUMNS]
    text = io.StringIO()
    table = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    table.writeheader()
    table.writerows(flat)
    return text.getvalue()


def read_runs(path: Path) -> list[Run]:
    """Return the runs in the file at ``path``, see :func:`parse_runs`. Raises: OSError if it cannot be read."""
    return parse_runs(path.read_text(encoding="utf-8"))


def parse_runs(text: str) -> list[Run]:
    """Return the runs that :func:`runs_text` wrote, with times to the microsecond and ``None`` for what a run lacked.

    Raises: ValueError for a field that is not a number.
    """
    return [_nested(row) for row in csv.DictReader(io.StringIO(text, newline=""))]


def _flat(run: Mapping[str, Any]) -> dict[str, str]:
    row: dict[str, str] = {}
    for key, value in run.items():
        name = key.replace("~", "~0").replace("/", "~1")
        if key in LEFT_OUT:
            continue
        if isinstance(value, Mapping) and value:
            row |= {f"{name}/{rest}": text for rest, text in _flat(value).items()}
        else:
            row[name] = _text(key, value)
    return row


def _text(key: str, value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return EMPTY_MAPPING
    if isinstance(value, float):
        decimals = next((n for unit, n in DECIMALS.items() if key.endswith(unit)), None)
        return str(value if decimals is None else round(value, decimals))
    return str(value)


def _nested(row: Mapping[str, str]) -> Run:
    """Return the nested record of a row.

    A mapping without known entries becomes what its own column says: ``None`` or empty.
    """
    run: Run = {}
    inner: dict[str, dict[str, str]] = {}
    for column, text in row.items():
        name, nested, rest = column.partition("/")
        key = name.replace("~1", "/").replace("~0", "~")
        if nested:
            inner.setdefault(key, {})[rest] = text
        else:
            run[key] = text if key in TEXT_COLUMNS else {} if text == EMPTY_MAPPING else _number(text)
    for key, of_key in inner.items():
        if key not in run or any(of_key.values()):
            run[key] = _nested(of_key)
    return run


def _number(text: str) -> int | float | None:
    if not text:
        return None
    return int(text) if text.lstrip("-").isdigit() else float(text)
