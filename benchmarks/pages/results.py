"""Published results as pandas frames, and as the text that tables show.

A result is named without its ending: ``"qoe-reading"`` is the runs of that folder, ``"sa_devices"`` the file of JSON.
Nested values are columns named by their path: ``completion_split/waiting_s``.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from io import StringIO
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.publish import RESULTS, RUNS, load_text, read_runs
from sloserve.sim.report.experience import GOOD_QOE
from sloserve.sim.report.latency_capacity import latency_capacity
from sloserve.sim.report.load_capacity import Bound, load_capacity
from sloserve.sim.report.statistics import mean_interval

_BOUNDS = {Bound.AT_LEAST: "≥ ", Bound.AT_MOST: "≤ "}
_COLUMNS = re.compile(r" \| |\s{2,}")
"""What separates the columns of a printed table: a bar, or two spaces and more."""


@cache
def saved(name: str) -> Any:
    """Return what the JSON file ``name`` holds."""
    return json.loads(load_text(RESULTS / f"{name}.json.gz"))


@cache
def _frame(name: str, path: Sequence[str | int]) -> pd.DataFrame:
    if (RESULTS / name).is_dir() and not path:
        return pd.read_csv(StringIO(load_text(RESULTS / name / RUNS)), keep_default_na=False, na_values=[""])
    found = saved(name)
    for step in path or ["rows"]:
        found = found[step]
    frame = pd.json_normalize(found, sep="/")
    return frame.map(_mean_of_seeds)


def _mean_of_seeds(value: Any) -> Any:
    numbers = isinstance(value, list) and all(isinstance(one, (int, float)) for one in value)
    return np.mean(value) if numbers else value


def rows(name: str, *path: str | int, **equal: object) -> pd.DataFrame:
    """Return the rows of a result in which the columns of ``equal`` have these values.

    Where a row of JSON has a list of numbers, one for each seed, the frame has their mean.

    Args:
        name: The name of the result.
        path: Where the list of rows is in a file of JSON, ``"rows"`` by default.

    Raises:
        ValueError: There is no such row.
    """
    found = _frame(name, path)
    for column, value in equal.items():
        found = found[found[column] == value]
    if found.empty:
        raise ValueError(f"{name} has no row in which {equal}")
    return found


def means(name: str, *path: str | int, by: str | list[str] = "policy", **equal: object) -> pd.DataFrame:
    """Return the means of the chosen rows, one row for each policy, or for each value of the columns ``by``.

    Sums are exact, so that a tie is not rounded by the order of its rows.
    """
    found = rows(name, *path, **equal)
    numbers = found.select_dtypes("number")
    of_groups = {
        group: [exact_mean(column) for column in numbers.iloc[at].to_numpy(float).T]
        for group, at in found.groupby(by, sort=False).indices.items()
    }
    return pd.DataFrame(of_groups, index=numbers.columns).T.rename_axis(index=by)


def exact_mean(values: np.ndarray) -> float:
    """Return the mean of the values that are numbers; not a number if none is."""
    known = values[~np.isnan(values)]
    return fmean(known) if known.size else float("nan")


def by_seed(name: str, column: str, **equal: object) -> pd.DataFrame:
    """Return ``column`` of the chosen runs with a row for each seed and a column for each policy."""
    return rows(name, **equal).pivot(index="seed", columns="policy", values=column)


def of_stock(figures: pd.Series) -> pd.Series:
    """Return, for each policy, by how many per cent its figure is above stock's."""
    return (figures / figures["stock"] - 1).map("{:+.1%}".format)


def compared(name: str, column: str, to: str, **equal: object) -> pd.Series:
    """Return the mean of ``column`` for each policy as text, in points, and in brackets its difference from ``to``.

    The difference is paired by seed, and stands with half of its 95 % interval; ``to`` itself has none.
    """
    values = by_seed(name, column, **equal)
    texts = (100 * values.apply(exact_mean)).map("{:.1f}".format)
    for policy in values.columns.drop(to):
        texts[policy] += f" ({around(values[policy] - values[to], '+.1f', '.1f', scale=100)})"
    return texts


def around(values: pd.Series, mean: str, half: str, scale: float = 1) -> str:
    """Return the mean of ``values`` and half of its 95 % interval, each in its format, as multiples of 1 / scale."""
    found = mean_interval(values.dropna())
    return f"{scale * found.value:{mean}} ± {scale * (found.high - found.value):{half}}"


def span(values: pd.Series, spec: str) -> str:
    """Return the 95 % interval of the mean of ``values`` in this format, as ``0.5 to 1.5``."""
    found = mean_interval(values.dropna())
    return f"{found.low:{spec}} to {found.high:{spec}}"


@cache
def at_qoe(name: str) -> pd.DataFrame:
    """Return the load that each policy carries at a mean QoE of 0.9, and its ratio to stock's, as text."""
    found = load_capacity(read_runs(RESULTS / name / RUNS), "qoe_mean", GOOD_QOE)
    return capacities(capacity.as_dict() for capacity in found)


@cache
def at_latency(name: str) -> pd.DataFrame:
    """Return the same at twice stock's latency per token at the least load."""
    return capacities(capacity.as_dict() for capacity in latency_capacity(read_runs(RESULTS / name / RUNS)))


def capacities(found: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Return load capacities, see :mod:`sloserve.sim.report.load_capacity`, as text: columns ``load`` and ``ratio``."""
    texts = {
        one["policy"]: {"load": _estimate(one["load"]).partition(" (")[0], "ratio": _estimate(one["ratio"])}
        for one in found
    }
    return pd.DataFrame.from_dict(texts, orient="index")


def _estimate(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "open"
    ends = "" if found["low"] is None else f" ({found['low']:.1f} to {found['high']:.1f})"
    return f"{_BOUNDS.get(found['bound'], '')}{found['value']:.2f}{ends}"


def printed(name: str, part: int = 1) -> dict[str, list[str]]:
    """Return the cells of a printed table, ``table.txt``, by the first cell of their line.

    part: Which line to take where several begin with the same cell, counted from 1; tables have several parts.
    """
    lines: dict[str, list[list[str]]] = {}
    for line in load_text(RESULTS / name / "table.txt").splitlines():
        cells = _COLUMNS.split(line.strip("| "))
        lines.setdefault(cells[0], []).append(cells)
    return {first: found[part - 1] for first, found in lines.items() if len(found) >= part}


def markdown_table(name: str, head: str, number: int = 1) -> pd.DataFrame:
    """Return a Markdown table of ``table.txt``, the first whose first head is this one, or the ``number``-th."""
    blocks = [block.splitlines() for block in load_text(RESULTS / name / "table.txt").split("\n\n")]
    tables = [[line.strip("| ").split(" | ") for line in block] for block in blocks]
    heads, _, *body = [found for found in tables if found[0][0] == head][number - 1]
    return pd.DataFrame(body, columns=heads).set_index(head)
