"""Is any policy worse off with swap space than without, where more comes than the engine can serve?

Usage: python -m benchmarks.swap.overload [--seeds 3]

Eight cells with scarce KV at 2 to 4 times stock's capacity, most of them with readers alone, whose queue does not
drain: a victim of a preemption then waits for its turn however its KV comes back. Each policy runs with and without
swap space on the same requests, on the engine model. Writes results/swap_overload.json.gz: means, and differences
paired by seed; those of all cells with their 95 % interval.
"""

import itertools
import json
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.arguments import parser_for
from benchmarks.policies.auto_cells import AutoCell, experiment, run
from benchmarks.policies.auto_judged import half_95
from benchmarks.publish import RESULTS, write_result
from sloserve.sim.experiment import measured_points

CELLS = [
    AutoCell("azure-conv", "readers", "scarce", "h100-llama3-8b", "4"),
    AutoCell("servegen-10h", "readers", "scarce", "h100-llama3-8b", "3"),
    AutoCell("servegen-19h", "readers", "scarce", "a100-llama3-70b-tp4", "2"),
    AutoCell("sharegpt", "readers", "scarce", "a100-opt-13b", "3"),
    AutoCell("multiround", "readers", "scarce", "a100-opt-13b", "3"),
    AutoCell("azure-conv", "mixed", "scarce", "a100-llama3-70b-tp4", "2"),
    AutoCell("sharegpt", "deadline", "scarce", "a100-opt-13b", "2"),
    AutoCell("reasoning", "default", "scarce", "h100-llama3-8b", "2"),
]
POLICIES = ["auto", *(f"{name}:step_budget=true" for name in ("edf", "andes", "sjf", "econo", "qlm", "niyama"))]
SWAP = "swap_space_gib=16"
FIGURES = ("slo_attainment", "qoe_mean", "output_throughput", "normalized_latency_ms", "preemptions_per_request")


def rows_of(cell: AutoCell, seeds: int) -> dict[str, list[dict[str, float]]]:
    """The figures of each policy, with and without swap space, by seed."""
    found: dict[str, list[dict[str, float]]] = defaultdict(list)
    names = [*POLICIES, *(f"{policy}@{SWAP}" for policy in POLICIES)]
    for seed in range(seeds):
        with TemporaryDirectory() as folder:
            ours = experiment(cell, "earlier", seed, Path(folder))
            for row in run(ours, names, measured_points(ours)):
                found[row["policy"]].append({name: float(row[name] or "nan") for name in FIGURES})
    return found


def main() -> None:
    given = parser_for(__doc__, seeds=3, out=RESULTS / "swap_overload.json.gz").parse_args()
    rows: list[dict[str, Any]] = []
    added: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for cell in CELLS:
        found = rows_of(cell, given.seeds)
        for policy, name in itertools.product(POLICIES, FIGURES):
            without, with_swap = (np.array([one[name] for one in found[key]]) for key in (policy, f"{policy}@{SWAP}"))
            row = {**cell._asdict(), "policy": policy, "figure": name, "without": float(without.mean())}
            rows.append(row | {"with": float(with_swap.mean()), "added_by_seed": (with_swap - without).tolist()})
            added[policy][name] += (with_swap - without).tolist()
            if name == "slo_attainment":
                print(json.dumps(rows[-1]), flush=True)
    over_all = []
    for policy, name in itertools.product(POLICIES, FIGURES):
        values = np.array(added[policy][name])
        values = values[~np.isnan(values)]
        over_all.append({"policy": policy, "figure": name, "added": float(values.mean()), "half_95": half_95(values)})
        print(json.dumps(over_all[-1]), flush=True)
    write_result(given.out, {"seeds": given.seeds, "swap": SWAP, "rows": rows, "over_all": over_all})


if __name__ == "__main__":
    main()
