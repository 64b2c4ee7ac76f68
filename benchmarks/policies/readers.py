"""`auto` beside its rivals where readers are more than the engine can serve, and where other targets are.

Usage: python -m benchmarks.policies.readers

The cells on which the growth of ``wait_share`` with what is late already was chosen (scheduler/auto/constants.py), so
that they show what it does and judge nothing: that is for windows which nobody tuned on. Each runs on both halves of
its workload, three seeds, at multiples of stock's capacity, on the engine model. Writes results/readers.json.gz.
"""

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.arguments import parser_for
from benchmarks.policies.auto_cells import AutoCell, experiment, run
from benchmarks.publish import RESULTS, write_result
from sloserve.core.errors import ConfigError
from sloserve.scheduler.auto import constants
from sloserve.sim.experiment import Point, measured_points

CELLS = [
    AutoCell("azure-conv", "readers", "scarce", "h100-llama3-8b", "2"),
    AutoCell("azure-conv", "readers", "ample", "h100-llama3-8b", "2"),
    AutoCell("servegen-10h", "readers", "ample", "a100-llama3-70b-tp4", "2"),
    AutoCell("servegen-19h", "readers", "scarce", "a100-llama3-70b-tp4", "1.5"),
    AutoCell("azure-conv", "mixed", "scarce", "h100-llama3-8b", "1.5"),
    AutoCell("servegen-19h", "mixed", "ample", "a100-llama3-70b-tp4", "1.5"),
    AutoCell("azure-code", "default", "ample", "a100-llama3-70b-tp4", "1.5"),
    AutoCell("sharegpt", "deadline", "scarce", "a100-opt-13b", "1.5"),
]
RIVALS = ["stock", *(f"{name}:step_budget=true" for name in ("sjf", "edf", "andes", "econo", "niyama"))]
FIGURES = ("slo_attainment", "qoe_mean", "output_throughput", "normalized_latency_ms")
FIXED = "auto, wait_share always 0.2"


def main() -> None:
    given = parser_for(__doc__, seeds=3, out=RESULTS / "readers.json.gz").parse_args()
    rows: list[dict[str, Any]] = []
    usual = constants.CONSTANTS
    for cell in CELLS:
        for half in ("earlier", "later"):
            found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
            for seed in range(given.seeds):
                with TemporaryDirectory() as folder:
                    try:
                        ours = experiment(cell, half, seed, Path(folder))
                    except ConfigError as error:
                        print(f"{', '.join(cell)}: left out: {error}", flush=True)
                        break
                    points: list[Point] = measured_points(ours)
                    for row in run(ours, [*RIVALS, "auto"], points):
                        for figure in FIGURES:
                            found[row["policy"]][figure].append(float(row[figure] or "nan"))
                    constants.CONSTANTS = replace(usual, late_wait_share=usual.wait_share)
                    try:
                        for row in run(ours, ["auto"], points):
                            for figure in FIGURES:
                                found[FIXED][figure].append(float(row[figure] or "nan"))
                    finally:
                        constants.CONSTANTS = usual
            for policy, figures in found.items():
                means = {
                    name: None if np.isnan(v).all() else round(float(np.mean(v)), 4) for name, v in figures.items()
                }
                attainment = [round(one, 4) for one in figures["slo_attainment"]]
                rows.append(
                    {**cell._asdict(), "half": half, "policy": policy, **means, "attainment_by_seed": attainment}
                )
                print(json.dumps(rows[-1]), flush=True)
    write_result(given.out, {"seeds": given.seeds, "rows": rows})


if __name__ == "__main__":
    main()
