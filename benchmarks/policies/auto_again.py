"""Has `auto` lost anything in its 48 cells since the runs that are published of them?

`auto` and stock serve the later halves of all cells again, three seeds each, and are compared with the published runs
of `auto` (results/auto/runs.csv.gz), paired by cell and seed. Stock shows that requests and engine are the same.

    python -m benchmarks.policies.auto_again [--seeds 3] [--cells 48]

Prints the cells that differ most, and writes results/auto_again.json.gz. Traces are looked for in the folder that
SLOSERVE_DATA names; without it their cells are left out.
"""

import csv
import gzip
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.arguments import parser_for
from benchmarks.policies.auto_cells import AUTO, STOCK, experiment, read_cells, run
from benchmarks.policies.auto_judged import half_95
from benchmarks.publish import RESULTS, aligned, write_result
from sloserve.core.errors import ConfigError
from sloserve.sim.experiment import measured_points

PUBLISHED = RESULTS / "auto" / "runs.csv.gz"
SHOWN = 6
"""Cells at each end of the table that is printed."""

Row = dict[str, Any]
Runs = dict[tuple[int, int, str], Row]
"""Figures of runs by cell, seed and policy."""


def published() -> Runs:
    """Return the published runs of `auto` and stock on the later halves."""
    with gzip.open(PUBLISHED, "rt", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["half"] == "later" and row["policy"] in (AUTO, STOCK)]
    return {(int(row["cell"]), int(row["seed"]), row["policy"]): row for row in rows}


def again(seeds: int, cells: int) -> Runs:
    """Run `auto` and stock on the later halves."""
    found: Runs = {}
    for number, cell in list(read_cells().items())[:cells]:
        for seed in range(seeds):
            with TemporaryDirectory() as folder:
                try:
                    ours = experiment(cell, "later", seed, Path(folder))
                except ConfigError as error:
                    print(f"{number}, {', '.join(cell)}: left out: {error}", flush=True)
                    break
                for row in run(ours, [STOCK, AUTO], measured_points(ours)):
                    found[number, seed, row["policy"]] = row
        print(f"{number}, {', '.join(cell)}", flush=True)
    return found


def figure(row: Row, name: str) -> float:
    """Return a figure of a run; nan where it has none."""
    return float(row[name]) if row[name] not in ("", None) else math.nan


def compared(now: Runs, before: Runs) -> list[Row]:
    """Return a row for each cell: means over the seeds that both have, and the difference in points."""
    of_cell: dict[int, list[int]] = defaultdict(list)
    for cell, seed, policy in now:
        if policy == AUTO and (cell, seed, AUTO) in before:
            of_cell[cell].append(seed)
    rows = []
    for cell, seeds in of_cell.items():
        pairs = [(now[cell, seed, AUTO], before[cell, seed, AUTO], now[cell, seed, STOCK]) for seed in seeds]
        points = np.array([100.0 * (figure(a, "slo_attainment") - figure(b, "slo_attainment")) for a, b, _ in pairs])
        has_targets = not np.isnan(points).any()
        rows.append(
            {
                "cell": cell,
                "seeds": len(seeds),
                "attainment": _mean([figure(a, "slo_attainment") for a, _, _ in pairs]),
                "points": float(points.mean()) if has_targets else None,
                "half_95": half_95(points) if has_targets and points.size > 1 else None,
                "latency_over_before": _mean([_ratio(a, b, "normalized_latency_ms") for a, b, _ in pairs]),
                "tokens_over_stock": _mean([_ratio(a, c, "output_throughput") for a, _, c in pairs]),
                "preemptions_per_request": _mean([figure(a, "preemptions_per_request") for a, _, _ in pairs]),
            }
        )
    return rows


def _ratio(one: Row, other: Row, name: str) -> float:
    return figure(one, name) / figure(other, name)


def _mean(values: Sequence[float]) -> float | None:
    return None if np.isnan(values).any() else float(np.mean(values))


def summary(rows: Sequence[Row], now: Runs, before: Runs) -> Row:
    """Return what the cells have in common."""
    judged = [row for row in rows if row["points"] is not None]
    of_stock = [key for key in now if key[2] == STOCK and key in before]
    moved = [figure(now[key], "slo_attainment") - figure(before[key], "slo_attainment") for key in of_stock]
    return {
        "cells": len(rows),
        "cells_with_targets": len(judged),
        "points": float(np.mean([row["points"] for row in judged])),
        "worse_beyond_interval": [row["cell"] for row in judged if row["half_95"] and row["points"] < -row["half_95"]],
        "latency_over_before": float(np.exp(np.mean([np.log(row["latency_over_before"]) for row in rows]))),
        "tokens_over_stock": float(np.mean([row["tokens_over_stock"] for row in rows])),
        "cells_below_0.97_of_stock": [row["cell"] for row in rows if row["tokens_over_stock"] < 0.97],
        "least_tokens_over_stock": min(row["tokens_over_stock"] for row in rows),
        "stock_differs_by_points": 100.0 * float(np.nanmax(np.abs(moved))),
    }


def main() -> None:
    given = parser_for(__doc__, seeds=3, cells=48, out=RESULTS / "auto_again.json.gz").parse_args()
    now, before = again(given.seeds, given.cells), published()
    report(now, before, given.out)


def report(now: Runs, before: Runs, out: Path) -> None:
    """Print the comparison and write it."""
    rows, cells = compared(now, before), read_cells()
    order = sorted((row for row in rows if row["points"] is not None), key=lambda row: row["points"])
    shown = [["cell", "points", "interval", "tokens/s, x stock"]]
    for row in [*order[:SHOWN], *order[-SHOWN:]]:
        half = "-" if row["half_95"] is None else f"{row['half_95']:.1f}"
        name = f"{row['cell']}: {', '.join(cells[row['cell']])}"
        shown.append([name, f"{row['points']:+.1f}", half, f"{row['tokens_over_stock']:.3f}"])
    found = summary(rows, now, before)
    print(aligned(shown))
    print(found)
    write_result(out, found | {"rows": rows})


if __name__ == "__main__":
    main()
