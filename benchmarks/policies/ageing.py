"""What does ageing cost, and what do those who aged have of it?

Usage: python -m benchmarks.policies.ageing [--seeds 3] [--requests 1200]

Four cells at twice stock's capacity, long enough that requests age; each policy without ageing, as shipped, and with
twice the share, on the same requests and on the engine model. Writes results/ageing.json.gz: means over seeds, and the
differences from no ageing paired by seed with 95 % intervals over all cells. The other side of the price is how long
the slowest requests took, and waited for a token at most.
"""

import itertools
import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.arguments import parser_for
from benchmarks.policies.auto_cells import AutoCell, experiment
from benchmarks.policies.auto_judged import half_95
from benchmarks.publish import RESULTS, write_result
from sloserve.scheduler.settings import PluginSettings
from sloserve.sim.experiment import measured_points, run_experiment

CELLS = [
    AutoCell("azure-conv", "readers", "scarce", "h100-llama3-8b", "2"),
    AutoCell("azure-conv", "readers", "ample", "h100-llama3-8b", "2"),
    AutoCell("sharegpt", "readers", "scarce", "a100-opt-13b", "2"),
    AutoCell("servegen-10h", "mixed", "ample", "a100-llama3-70b-tp4", "2"),
]
POLICIES = ("auto", "edf:step_budget=true", "andes:step_budget=true", "sjf:step_budget=true", "niyama:step_budget=true")
SHIPPED = PluginSettings().aged_share
SHARES = (0.0, SHIPPED, 2 * SHIPPED)
FIGURES = ("slo_attainment", "qoe_mean", "output_throughput", "p99_e2el_ms", "max_wait_s")


def figures(cell: AutoCell, seed: int, share: float, requests: int) -> dict[str, dict[str, float]]:
    """Of each policy."""
    with TemporaryDirectory() as folder:
        ours = experiment(cell, "earlier", seed, Path(folder), aged_share=share, max_requests=requests)
        found = {}
        for one in run_experiment(replace(ours, policies=POLICIES), points=measured_points(ours)):
            record = one.record()
            found[one.policy] = {name: float("nan") if record[name] is None else record[name] for name in FIGURES}
        return found


def main() -> None:
    given = parser_for(__doc__, seeds=3, requests=1200, out=RESULTS / "ageing.json.gz").parse_args()
    rows: list[dict[str, Any]] = []
    added: dict[tuple[str, float, str], list[float]] = defaultdict(list)
    for cell in CELLS:
        by_share = {s: [figures(cell, i, s, given.requests) for i in range(given.seeds)] for s in SHARES}
        for policy, share in itertools.product(POLICIES, SHARES):
            means = {name: float(np.mean([one[policy][name] for one in by_share[share]])) for name in FIGURES}
            rows.append({**cell._asdict(), "policy": policy, "aged_share": share, **means})
            print(json.dumps(rows[-1]), flush=True)
            for name, i in itertools.product(FIGURES, range(given.seeds)):
                added[policy, share, name].append(by_share[share][i][policy][name] - by_share[0.0][i][policy][name])
    over_all = []
    for (policy, share, name), values in added.items():
        if share:
            row = {"policy": policy, "aged_share": share, "figure": name}
            over_all.append({**row, "added": float(np.mean(values)), "half_95": half_95(np.array(values))})
    write_result(given.out, {"seeds": given.seeds, "requests": given.requests, "rows": rows, "over_all": over_all})


if __name__ == "__main__":
    main()
