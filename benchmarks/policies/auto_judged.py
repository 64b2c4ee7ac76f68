"""Is `auto` the wrong choice anywhere? Judged on windows that nothing was tuned on, beside rivals and simple settings.

Usage: python -m benchmarks.policies.auto_judged [--workers 2] [--rivals niyama:step_budget=true]

Twenty of the 48 cells of auto_cells.py (every one with targets at 1.5 times stock's capacity or more, and others at 1
in the order of the list), and four in deep overload: readers and reasoning at 3 and 4 times the capacity. Windows are
drawn from the later half of each workload with seeds that no other run has used. This list was committed before the
first run.

Rivals: stock with three sizes of a step (Sarathi's chunks, tuned), and edf, sjf, andes, econo, qlm, niyama, priority
with the step budget; ``--rivals`` names those alone that run beside stock. A rival dominates `auto` in a cell where it
is better in one figure by more than the paired 95 % interval, and in no figure worse by any amount. Writes
results/auto_judged.json.gz.
"""

import itertools
import json
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from scipy.special import stdtrit

from benchmarks.arguments import parser_for
from benchmarks.policies.auto_cells import AutoCell, experiment, read_cells, run
from benchmarks.publish import RESULTS, write_result
from sloserve.sim.experiment import measured_points

DEEP = [
    AutoCell("azure-conv", "readers", "scarce", "h100-llama3-8b", "3"),
    AutoCell("servegen-19h", "readers", "ample", "a100-llama3-70b-tp4", "3"),
    AutoCell("reasoning", "default", "scarce", "h100-llama3-8b", "3"),
    AutoCell("reasoning", "readers", "scarce", "a100-llama3-70b-tp4", "4"),
]
NUM_CELLS = 24
SEEDS = (200, 201, 202)
"""The windows of the first judgement, 100 to 102, are known; these are not."""
STOCK, AUTO = "stock", "auto"
BUDGETED = ("edf", "sjf", "andes", "econo", "qlm", "niyama", "priority")
RIVALS = [
    STOCK,
    *(f"{STOCK}@max_num_batched_tokens={size}" for size in (512, 1024)),
    *(f"{name}:step_budget=true" for name in BUDGETED),
]
SIGNS = {"slo_attainment": 1, "qoe_mean": 1, "output_throughput": 1, "normalized_latency_ms": -1}
"""Figures, and whether more is better."""


def cells() -> list[AutoCell]:
    listed = [cell for cell in read_cells().values() if cell.targets != "none"]
    above = [cell for cell in listed if float(cell.load) >= 1.5]
    others = [cell for cell in listed if float(cell.load) == 1.0]
    return [*(above + others)[: NUM_CELLS - len(DEEP)], *DEEP]


def figures(cell: AutoCell, seed: int, names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Of each policy; nan where it says nothing."""
    with TemporaryDirectory() as folder:
        ours = experiment(cell, "later", seed, Path(folder))
        rows = run(ours, names, measured_points(ours))
        return {row["policy"]: {name: float(row[name] or "nan") for name in SIGNS} for row in rows}


def half_95(values: np.ndarray) -> float:
    if values.size < 2:
        return float("nan")
    return float(stdtrit(values.size - 1, 0.975) * values.std(ddof=1) / np.sqrt(values.size))


def dominates(rival: list[dict[str, float]], ours: list[dict[str, float]]) -> bool:
    better = False
    for name, sign in SIGNS.items():
        gain = sign * np.array([one[name] - other[name] for one, other in zip(rival, ours, strict=True)])
        if np.isnan(gain).any():
            continue
        if gain.mean() < 0.0:
            return False
        better |= bool(gain.mean() > half_95(gain))
    return better


def main() -> None:
    parser = parser_for(__doc__, workers=2, seeds=len(SEEDS), cells=NUM_CELLS, out=RESULTS / "auto_judged.json.gz")
    parser.add_argument("--rivals", help="comma-separated, to run beside stock. Default: all")
    given = parser.parse_args()
    names = [*([STOCK, *given.rivals.split(",")] if given.rivals else RIVALS), AUTO]
    found: dict[tuple[AutoCell, str], list[dict[str, float]]] = defaultdict(list)
    jobs = list(itertools.product(cells()[: given.cells], SEEDS[: given.seeds]))
    with ProcessPoolExecutor(given.workers) as pool:
        for (cell, seed), of in zip(
            jobs, pool.map(figures, *zip(*jobs, strict=True), itertools.repeat(names)), strict=True
        ):
            print(*cell, seed, {name: round(one["slo_attainment"], 3) for name, one in of.items()}, flush=True)
            for policy, one in of.items():
                found[cell, policy].append(one)
    rows: list[dict[str, Any]] = []
    for (cell, policy), of_seeds in found.items():
        ours, stock = found[cell, AUTO], found[cell, STOCK]
        row = {**cell._asdict(), "policy": policy}
        row |= {name: float(np.mean([one[name] for one in of_seeds])) for name in SIGNS}
        added = np.array([one["slo_attainment"] - x["slo_attainment"] for one, x in zip(of_seeds, ours, strict=True)])
        over_stock = [x["output_throughput"] / y["output_throughput"] for x, y in zip(of_seeds, stock, strict=True)]
        row |= {"attainment_less_autos": float(added.mean()), "half_95": half_95(added)}
        row |= {"tokens_over_stock": float(np.mean(over_stock))}
        rows.append(row | {"dominates_auto": policy != AUTO and dominates(of_seeds, ours)})
    for target in sorted({row["targets"] for row in rows}) + ["all"]:
        of_target = [row for row in rows if target in (row["targets"], "all")]
        means = {p: np.mean([r["slo_attainment"] for r in of_target if r["policy"] == p]) for p in names}
        qoe = {p: np.nanmean([r["qoe_mean"] for r in of_target if r["policy"] == p] + [np.nan]) for p in means}
        print(target, {p: (round(float(m) * 100, 1), round(float(qoe[p]), 3)) for p, m in means.items()})
    for row in rows:
        if row["dominates_auto"]:
            print("dominated:", json.dumps(row))
    write_result(given.out, {"seeds": SEEDS[: given.seeds], "rows": rows})


if __name__ == "__main__":
    main()
