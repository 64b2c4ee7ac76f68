"""The highest load at which no more than 1 % of requests miss a target, by policy.

Usage: python -m benchmarks.policies.highest_load [--workers 2] [--policies auto,niyama:step_budget=true]

Six workloads, three windows each of their later halves, on the engine model. Loads are multiples of stock's capacity of
each window, on a ladder of 5 % steps from 0.05 to 3; a step is found by bisection. Violations need not grow with the
load in every window: steps above it are tried until two in a row fail, and every second one below it, down to half of
it; where two of these in a row fail, what counts is the highest step below them that keeps the limit. A run has 400
requests (reasoning 200), so at most 12 of the 1,200 may be late. What even the best policy misses at the lowest step
(prompts too long for their target) is added to the limit and said. Writes results/highest_load.json.gz.

With ``--policies``, rows of other policies stay as they are in the result if their limit still is what it was.
"""

import itertools
import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

from benchmarks.arguments import parser_for
from benchmarks.policies.auto_cells import AutoCell, experiment, run
from benchmarks.publish import RESULTS, read_json, write_result
from sloserve.sim.experiment import Point, measured_points

CELLS = [
    AutoCell("azure-conv", "readers", "scarce", "h100-llama3-8b", "1"),
    AutoCell("azure-code", "mixed", "ample", "h100-llama3-8b", "1"),
    AutoCell("servegen-10h", "mixed", "scarce", "a100-llama3-70b-tp4", "1"),
    AutoCell("servegen-19h", "readers", "scarce", "a100-llama3-70b-tp4", "1"),
    AutoCell("sharegpt", "mixed", "scarce", "a100-opt-13b", "1"),
    AutoCell("reasoning", "readers", "scarce", "a100-llama3-70b-tp4", "1"),
]
POLICIES = ("stock", *(f"{name}:step_budget=true" for name in ("edf", "andes", "econo", "niyama")), "auto")
SEEDS = (400, 401, 402)
REQUESTS = {"reasoning": 200}
"""A run, where 400 would take too long."""
MAX_LATE: Final = 0.01
LOADS = 0.05 * 1.05 ** np.arange(84)
"""The ladder, up to 2.87 times the capacity."""
BEYOND, BELOW = 2, 14
"""Steps in a row that fail, and how far below what was found others are looked for."""


class Ladder:
    """Shares of late requests by step of one cell; what was run is not run again."""

    def __init__(self, cell: AutoCell, policy: str, folder: Path) -> None:
        self._policy = policy
        of_seed = [
            experiment(cell, "later", seed, folder, max_requests=REQUESTS.get(cell.workload, 400)) for seed in SEEDS
        ]
        self._runs = [(ours, measured_points(ours)[0]) for ours in of_seed]
        self.capacity_rps = float(np.mean([point.rps for _, point in self._runs]))
        self.late = cache(self._late)

    def _late(self, step: int) -> float:
        shares = []
        for ours, point in self._runs:
            at = Point(point.seed, point.rps * float(LOADS[step]), float(LOADS[step]))
            (row,) = run(ours, [self._policy], [at])
            shares.append(1.0 - float(row["slo_attainment"]))
        return float(np.mean(shares))

    def highest(self, limit: float) -> int:
        """The highest step that keeps ``limit``; -1 for none."""
        below, above = -1, len(LOADS)
        while above - below > 1:
            middle = (below + above) // 2
            below, above = (middle, above) if self.late(middle) <= limit else (below, middle)
        best, step, failed = below, below + 1, 0
        while failed < BEYOND and step < len(LOADS):
            best, failed = (step, 0) if self.late(step) <= limit else (best, failed + 1)
            step += 1
        return self.kept_below(best, limit)

    def kept_below(self, best: int, limit: float) -> int:
        """``best``, or the highest step that keeps ``limit`` below others that do not."""
        step, failed = best - 2, 0
        while failed < BEYOND and step >= max(best - BELOW, 0):
            failed = 0 if self.late(step) <= limit else failed + 1
            step -= 2
        if failed < BEYOND:
            return best
        step += 1
        while step >= 0 and self.late(step) > limit:
            step -= 1
        return self.kept_below(step, limit)


def lowest_late(cell: AutoCell, policy: str) -> float:
    with TemporaryDirectory() as folder:
        return Ladder(cell, policy, Path(folder)).late(0)


def highest_load(cell: AutoCell, policy: str, limit: float) -> dict[str, Any]:
    with TemporaryDirectory() as folder:
        ladder = Ladder(cell, policy, Path(folder))
        step = ladder.highest(limit)
        if step < 0:
            return {"load": None, "rps": None, "late": None}
        load = float(LOADS[step])
        return {"load": load, "rps": load * ladder.capacity_rps, "late": ladder.late(step)}


def labels_of(cell: AutoCell) -> dict[str, str]:
    return {name: value for name, value in cell._asdict().items() if name != "load"}


def kept_rows(result: Path, again: Sequence[str]) -> dict[tuple[str, ...], dict[str, Any]]:
    """Rows of the result by cell and policy, without the policies that run again."""
    rows = read_json(result).get("rows", [])
    names = (*labels_of(CELLS[0]), "policy")
    return {tuple(row[name] for name in names): row for row in rows if row["policy"] not in again}


def main() -> None:
    parser = parser_for(__doc__, workers=2, out=RESULTS / "highest_load.json.gz")
    parser.add_argument("--policies", help="comma-separated, to run again alone. Default: all")
    given = parser.parse_args()
    kept = kept_rows(given.out, given.policies.split(",")) if given.policies else {}
    jobs = list(itertools.product(CELLS, POLICIES))
    with ProcessPoolExecutor(given.workers) as pool:
        floors = dict(zip(jobs, pool.map(lowest_late, *zip(*jobs, strict=True)), strict=True))
        least = {cell: min(floors[cell, policy] for policy in POLICIES) for cell in CELLS}
        searches = {}
        for cell, policy in jobs:
            limit = least[cell] + MAX_LATE
            if kept.get((*labels_of(cell).values(), policy), {}).get("max_late") != limit:
                searches[cell, policy] = pool.submit(highest_load, cell, policy, limit)
        rows: list[dict[str, Any]] = []
        for cell, policy in jobs:
            labels = labels_of(cell)
            if (cell, policy) in searches:
                found = searches[cell, policy].result()
                rows.append({**labels, "policy": policy, "max_late": least[cell] + MAX_LATE, **found})
            else:
                rows.append(kept[*labels.values(), policy])
            print(json.dumps(rows[-1]), flush=True)
    write_result(given.out, {"seeds": SEEDS, "rows": rows})


if __name__ == "__main__":
    main()
