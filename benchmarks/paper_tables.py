"""The table that a paper's page begins with: each figure, the paper's number, our command, ours and stock's.

Rows are those of ``paper_figures.toml``. In their texts ``{...}`` is read from benchmarks/results, not typed:

- ``{qoe-reading policy=andes load=1.5 qoe_mean .3f}``: of the folder's ``runs.csv`` the rows with these values, of them
  the column, as the mean over seeds, in a format of Python's; ``.1%`` is a share with a space before the sign.
- ``{sa_devices.json rows policy=stock max_batch=1 attainment .1%}``: the same of a file of JSON, by names and places.
  ``met per n`` divides two columns' means, and ``_`` stands for a space in a value.
- ``{table fleet-qlm-hol qlm/stock 1 2}``: of the folder's ``table.txt`` the first column of the second line that begins
  so; 1 and 1 if not given.
- ``{carries qoe andes-opt-66b andes}``, ``{carries latency econo-sharegpt econo / stock}``: the load at a mean QoE of
  0.9, or at twice stock's unloaded latency per token, and its ratio to stock's with the 95 % interval over seeds, if
  it has one.
- ``{gain qoe-reading load=1.5 policy=andes output_throughput}``: by how much the column's mean is above stock's.

``pytest tests/docs --update-docs`` writes the tables into the pages.
"""

import csv
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from statistics import fmean
from typing import Any

from benchmarks.publish import RESULTS
from sloserve.report.experience import GOOD_QOE
from sloserve.report.latency_capacity import latency_capacity
from sloserve.report.load_capacity import Bound, LoadCapacity, load_capacity
from sloserve.report.runs_csv import RUNS_CSV, read_runs

PAPERS: dict[str, dict[str, Any]] = tomllib.loads((RESULTS.parent / "paper_figures.toml").read_text())
PAGES = {"andes": "andes", "econo": "econo", "qlm": "qlm", "sa": "sa", "qos": "quic"}
"""The page of docs/benchmarks that has each paper's table."""
HEAD = ("figure or claim", "the paper's", "command", "ours", "stock's", "differs because")
_READ = re.compile(r"\{([^}]+)\}")
_BEFORE = {Bound.AT_LEAST: "≥ ", Bound.AT_MOST: "≤ "}


def paper_table(paper: str) -> str:
    """As Markdown. Raises: ValueError for a reference that leads to nothing."""
    rows = [HEAD, ("---",) * len(HEAD), *map(_cells, PAPERS[paper]["rows"])]
    return "".join(f"| {' | '.join(row)} |".replace("|  |", "| |").replace("|  |", "| |") + "\n" for row in rows)


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    name = _numbered(row["of"]) + (f": {row['what']}" if "what" in row else "")
    if "command" not in row:
        return (name, "", "", "", "", row["reason"])
    told = (filled(row.get(key, "")) for key in ("ours", "stock", "differs"))
    return (name, row.get("paper", ""), f"`{command(row['command'])}`", *told)


def command(named: str) -> str:
    """What a person types for the command of a row."""
    module, _, section = named.partition(" ")
    if not module.startswith("benchmarks."):
        return f"sloserve simulate --experiment {module}"
    return f"python -m {module}" + (f" --section {section}" if section else "")


def _numbered(names: Iterable[str]) -> str:
    """``Fig. 10, 12; Table 4``."""
    of: dict[str, list[str]] = {}
    for name in names:
        kind, number = name.split()
        of.setdefault(kind.replace("Figure", "Fig."), []).append(number)
    return "; ".join(f"{kind} {', '.join(numbers)}" for kind, numbers in of.items())


def filled(text: str) -> str:
    """``text`` with the figures in place of what names them."""
    return _READ.sub(lambda found: figure(found[1]), text)


def figure(reference: str) -> str:
    """What a reference stands for, as text. Raises: ValueError if it leads to nothing."""
    kind, *rest = reference.split()
    if kind in _READERS:
        return _READERS[kind](*rest)
    *path, form = rest
    parts = 1.0
    if path[-2:-1] == ["per"]:
        parts = _mean(kind, [*path[:-3], path[-1]])
        path = path[:-2]
    return f"{_mean(kind, path) / parts:{form}}".replace("%", " %")


def _mean(name: str, path: list[str]) -> float:
    values = list(_numbers(_led(_result(name), path)))
    if not values:
        raise ValueError(f"{name} {' '.join(path)} of paper_figures.toml leads to no number in benchmarks/results")
    return fmean(values)


def _told(folder: str, name: str, column: str = "1", line: str = "1") -> str:
    cells = [re.split(r"\s{2,}", text.strip()) for text in (RESULTS / folder / "table.txt").read_text().splitlines()]
    return [row for row in cells if row[0] == name][int(line) - 1][int(column)].replace("+-", "±")


def _carried(key: str, folder: str, policy: str, *to_stock: str) -> str:
    (found,) = [capacity for capacity in _capacities(key, folder) if capacity.policy == policy]
    estimate = found.ratio if to_stock else found.load
    if estimate is None:
        return "open"
    interval = "" if estimate.low is None or not to_stock else f" ({estimate.low:.1f} to {estimate.high:.1f})"
    return f"{_BEFORE.get(estimate.bound, '')}{estimate.value:.2f}{interval}"


def _gain(folder: str, *path: str) -> str:
    of_stock = ["policy=stock" if step.startswith("policy=") else step for step in path]
    return f"{_mean(folder, list(path)) / _mean(folder, of_stock) - 1:+.1%}".replace("%", " %").replace("-", "−")


_READERS: dict[str, Callable[..., str]] = {"carries": _carried, "gain": _gain, "table": _told}


@cache
def _capacities(key: str, folder: str) -> list[LoadCapacity]:
    runs = read_runs(RESULTS / folder / RUNS_CSV)
    return load_capacity(runs, "qoe_mean", GOOD_QOE) if key == "qoe" else latency_capacity(runs)


@cache
def _result(name: str) -> Any:
    if name.endswith(".json"):
        return json.loads((RESULTS / name).read_text())
    with (RESULTS / name / RUNS_CSV).open() as file:
        return list(csv.DictReader(file))


def _led(found: Any, path: Iterable[str]) -> Any:
    """Where the path leads: a name or place goes into a mapping or a list, ``key=value`` chooses rows of a list."""
    for step in path:
        key, chosen, value = step.partition("=")
        if isinstance(found, list) and all(isinstance(row, dict) and step in row for row in found):
            found = [row[step] for row in found]
        elif chosen and isinstance(found, list):
            found = [row for row in found if _same(row[key], value)]
        else:
            found = found[int(step) if isinstance(found, list) else step]
    return found


def _same(left: Any, right: str) -> bool:
    try:
        return float(left) == float(right)
    except (TypeError, ValueError):
        return str(left).replace(" ", "_") == right


def _numbers(found: Any) -> Iterator[float]:
    for value in found if isinstance(found, list) else [found]:
        if isinstance(value, list):
            yield from _numbers(value)
        elif value not in (None, ""):
            yield float(value)
