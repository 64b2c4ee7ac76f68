"""The table that a paper's page begins with: each figure, the paper's number, our command, ours and stock's.

Rows are those of ``paper_figures.toml``. In their texts ``{...}`` is read from benchmarks/results, not typed:

- ``{qoe-reading policy=andes load=1.5 qoe_mean .3f}``: of the folder's ``runs.csv`` the rows with these values, of them
  the column, as the mean over seeds, in a format of Python's; ``.1%`` is a share with a space before the sign, and
  ``.1p`` the same as points, without it; ``.0k`` is in thousands. A colon among the columns says nothing.
- ``{sa_devices.json rows policy=stock max_batch=1 attainment .1%}``: the same of a file of JSON, by names and places.
  ``met per n`` divides two columns' means, and ``_`` stands for a space in a value.
- ``{ratios auto_judged.json rows : policy=sjf output_throughput : policy=auto output_throughput .2f}``: the mean of the
  first row over its partner, the second likewise, and so on. What stands before the colons is common to both. ``span``
  in its place: the 95 % interval of that mean. ``less``: the mean of the second taken from that of the first.
- ``{most ceiling.json cells code-above policies : slo_attainment .1%}``: the highest that one of them has.
- ``{text ceiling.json cells code-above difference plan policy}``: the name that stands there.
- ``{table fleet-qlm-hol qlm/stock 1 2}``: of the folder's ``table.txt`` the first column of the second line that begins
  so; 1 and 1 if not given. Its columns have two spaces or bars between them.
- ``{carries qoe andes-opt-66b andes}``, ``{carries latency econo-sharegpt econo / stock}``: the load at a mean QoE of
  0.9, or at twice stock's unloaded latency per token, and its ratio to stock's with the 95 % interval over seeds, if
  it has one.
- ``{around qlm-one-engine-mix policy=auto slo_attainment .1p}``: the mean over seeds and half its 95 % interval.
- ``{paired fleet-qlm-operations : policy=qlm/stock in_time : policy=qlm:warm=false/stock in_time .1p}``: to stand
  behind the second's figure, as `` (-10.2 ± 1.3)``: its difference from the first, paired by seed, and half the 95 %
  interval. Nothing where both are the same.
- ``{? ...}``: nothing, where the reference leads to nothing.
- ``{bounded econo_rates.json cases 0 capacity policy=econo ratio}``: an estimate of a file of JSON in the same way.
- ``{gain qoe-reading load=1.5 policy=andes output_throughput}``: by how much the column's mean is above stock's.

``pytest tests/docs --update-docs`` writes the tables into the pages.
"""

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from math import isnan
from statistics import fmean
from typing import Any

from benchmarks.publish import RESULTS, RUNS, read_json, read_rows, read_runs
from sloserve.sim.report.experience import GOOD_QOE
from sloserve.sim.report.latency_capacity import latency_capacity
from sloserve.sim.report.load_capacity import Bound, LoadCapacity, load_capacity
from sloserve.sim.report.statistics import mean_interval

PAPERS: dict[str, dict[str, Any]] = tomllib.loads((RESULTS.parent / "paper_figures.toml").read_text(encoding="utf-8"))
PAGES = {"andes": "andes", "econo": "econo", "qlm": "qlm", "sa": "sa", "qos": "quic"}
"""The page of docs/benchmarks that has each paper's table."""
HEAD = ("figure or claim", "the paper's", "command", "ours", "stock's", "differs because")
_READ = re.compile(r"\{([^}]+)\}")
_MINUS = re.compile(r"(?<!\w)-(?=\d)")
_AROUND = re.compile(r" *\+- *")
_CELLS = re.compile(r" \| |\s{2,}")
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
    if kind == "?":
        try:
            return figure(" ".join(rest))
        except (KeyError, ValueError, IndexError):
            return ""
    if kind in _READERS:
        return _READERS[kind](*rest)
    *path, form = (word for word in rest if word != ":")
    parts = 1.0
    if path[-2:-1] == ["per"]:
        parts = _mean(kind, [*path[:-3], path[-1]])
        path = path[:-2]
    return _written(_mean(kind, path) / parts, form)


def _written(value: float, form: str) -> str:
    if form.endswith("p"):
        value, form = 100 * value, f"{form[:-1]}f"
    if form.endswith("k"):
        value, form = value / 1000, f"{form[:-1]}f"
    return f"{value:{form}}".replace("%", " %").replace("-", "−")


def _mean(name: str, path: Sequence[str]) -> float:
    return fmean(_all(name, path))


def _all(name: str, path: Sequence[str]) -> list[float]:
    values = list(_numbers(_led(_result(name), path)))
    if not values:
        raise ValueError(f"{name} {' '.join(path)} leads to no number in benchmarks/results")
    return values


def _ratios(name: str, *rest: str) -> str:
    above, below, form = _two(name, rest)
    return _written(fmean(left / right for left, right in zip(above, below, strict=True)), form)


def _span(name: str, *rest: str) -> str:
    above, below, form = _two(name, rest)
    found = mean_interval([left / right for left, right in zip(above, below, strict=True)])
    if found is None or found.low is None or found.high is None:
        raise ValueError(f"{name} {' '.join(rest)} has less than two numbers, and so no interval")
    return f"{_written(found.low, form)} to {_written(found.high, form)}"


def _around(name: str, *rest: str) -> str:
    *path, form = rest
    found = mean_interval(_all(name, path))
    if found is None or found.high is None:
        raise ValueError(f"{name} {' '.join(rest)} has less than two numbers, and so no interval")
    return f"{_written(found.value, form)} ± {_written(found.high - found.value, form)}"


def _less(name: str, *rest: str) -> str:
    more, less, form = _two(name, rest)
    return _written(fmean(more) - fmean(less), form)


def _paired(name: str, *rest: str) -> str:
    common, first, second = _parts(rest[:-1])
    if first == second:
        return ""
    before, after = (_by_seed(name, common + path) for path in (first, second))
    found = mean_interval([after[seed] - before[seed] for seed in before]) if before.keys() == after.keys() else None
    if found is None or found.high is None:
        raise ValueError(f"{name} {' '.join(rest)} has less than two pairs of seeds, or seeds without a partner")
    form = rest[-1]
    return f" ({_written(found.value, f'+{form}')} ± {_written(found.high - found.value, form)})"


def _by_seed(name: str, path: Sequence[str]) -> dict[str, float]:
    *chosen, column = path
    values = ((row["seed"], row[_key(row, column)]) for row in _led(_result(name), chosen))
    return {seed: float(value) for seed, value in values if value not in (None, "")}


def _two(name: str, rest: Sequence[str]) -> tuple[list[float], list[float], str]:
    common, *both = _parts(rest[:-1])
    first, second = (_all(name, common + path) for path in both)
    return first, second, rest[-1]


def _parts(told: Sequence[str]) -> list[list[str]]:
    """What stands before, between and behind the colons."""
    return [part.split() for part in f" {' '.join(told)}".split(" : ")]


def _most(name: str, *rest: str) -> str:
    *path, _, column, form = rest
    return _written(max(row[column] for row in _led(_result(name), path).values()), form)


def _text(name: str, *path: str) -> str:
    found = _led(_result(name), path)
    return "none" if found is None else f"`{found}`"


def _told(folder: str, name: str, column: str = "1", line: str = "1") -> str:
    cells = [
        _CELLS.split(text.strip("| "))
        for text in (RESULTS / folder / "table.txt").read_text(encoding="utf-8").splitlines()
    ]
    found = [row for row in cells if _same(row[0], name)][int(line) - 1][int(column)]
    return typeset(found)


def typeset(text: str) -> str:
    """With a minus for a hyphen before a digit, and ``±`` for ``+-``."""
    return _MINUS.sub("−", _AROUND.sub(" ± ", text))


def _carried(key: str, folder: str, policy: str, *to_stock: str) -> str:
    (found,) = [capacity for capacity in _capacities(key, folder) if capacity.policy == policy]
    estimate = found.ratio if to_stock else found.load
    if estimate is None:
        return "open"
    return _estimated(estimate.value, estimate.bound, *((estimate.low, estimate.high) if to_stock else ()))


def _bounded(name: str, *path: str) -> str:
    (found,) = _led(_result(name), path)
    if found is None:
        return "open"
    return _estimated(
        found["value"], Bound(found["bound"]), *((found["low"], found["high"]) if "ratio" in path else ())
    )


def _estimated(value: float, bound: Bound, low: float | None = None, high: float | None = None) -> str:
    interval = "" if low is None else f" ({low:.1f} to {high:.1f})"
    return f"{_BEFORE.get(bound, '')}{value:.2f}{interval}"


def _gain(folder: str, *path: str) -> str:
    of_stock = ["policy=stock" if step.startswith("policy=") else step for step in path]
    return _written(_mean(folder, path) / _mean(folder, of_stock) - 1, "+.1%")


_READERS: dict[str, Callable[..., str]] = {
    "around": _around,
    "bounded": _bounded,
    "carries": _carried,
    "gain": _gain,
    "less": _less,
    "most": _most,
    "paired": _paired,
    "ratios": _ratios,
    "span": _span,
    "table": _told,
    "text": _text,
}


@cache
def _capacities(key: str, folder: str) -> list[LoadCapacity]:
    runs = read_runs(RESULTS / folder / RUNS)
    return load_capacity(runs, "qoe_mean", GOOD_QOE) if key == "qoe" else latency_capacity(runs)


@cache
def _result(name: str) -> Any:
    if name.endswith(".json"):
        return read_json(RESULTS / f"{name}.gz")
    return read_rows(RESULTS / name / RUNS)


def _led(found: Any, path: Iterable[str]) -> Any:
    """Where the path leads: a name or place goes into a mapping or a list, ``key=value`` chooses rows of a list."""
    for step in path:
        key, chosen, value = step.partition("=")
        if isinstance(found, Mapping):
            found = found[_key(found, step)]
        elif all(isinstance(row, dict) and _key(row, step) in row for row in found):
            found = [row[_key(row, step)] for row in found]
        elif chosen:
            found = [row for row in found if _same(row[key], value)]
        else:
            found = found[int(step)]
    return found


def _key(row: Mapping[str, Any], step: str) -> str:
    return step if step in row else next((key for key in row if key.replace(" ", "_") == step), step)


def _same(left: Any, right: str) -> bool:
    try:
        return float(left) == float(right)
    except (TypeError, ValueError):
        return str(left).replace(" ", "_") == right.replace(" ", "_")


def _numbers(found: Any) -> Iterator[float]:
    for value in found if isinstance(found, list) else [found]:
        if isinstance(value, list):
            yield from _numbers(value)
        elif value not in (None, "") and not isnan(float(value)):
            yield float(value)
