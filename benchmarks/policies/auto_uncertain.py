"""Does `auto` stay first where what it knows is wrong, or the load jumps?

Usage: python -m benchmarks.policies.auto_uncertain [--seeds 3]

Six cells of auto_judged.py in overload, beside the five rivals that came nearest there, under: nothing wrong; step
times that vary by 20 %; a profile that says 0.7 and 1.5 times the true times, and does not know better before the first
steps; lengths told with an error of 30 and 50 % (policies that predict lengths); and, on the slow engines, ten times
the arrivals for 20 s amid a load of 0.8. Writes results/auto_uncertain.json.gz: % in time, and `auto` less the best
rival of each cell and trouble, paired by seed.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.arguments import parser_for
from benchmarks.policies.auto_cells import AutoCell, experiment, run
from benchmarks.policies.auto_judged import half_95
from benchmarks.publish import RESULTS, write_result
from benchmarks.scaled_profile import scaled_profile
from sloserve.core.request import WorkloadRequest
from sloserve.sim.experiment import Experiment, Point, measured_points
from sloserve.sim.workloads.workload_registry import Workload

CELLS = [
    AutoCell("azure-conv", "readers", "scarce", "h100-llama3-8b", "2"),
    AutoCell("servegen-19h", "readers", "ample", "a100-llama3-70b-tp4", "2"),
    AutoCell("azure-conv", "mixed", "scarce", "a100-llama3-70b-tp4", "1.5"),
    AutoCell("azure-code", "mixed", "ample", "a100-llama3-70b-tp4", "2"),
    AutoCell("sharegpt", "default", "scarce", "a100-opt-13b", "2"),
    AutoCell("servegen-10h", "deadline", "scarce", "h100-llama3-8b", "2"),
]
AUTO = "auto"
RIVALS = tuple(f"{name}:step_budget=true" for name in ("niyama", "andes", "econo", "edf", "sjf"))
LENGTHS = (AUTO, *(f"{name}:step_budget=true" for name in ("niyama", "andes", "econo", "sjf")))
BURST, BURST_S, AMID = 10.0, 20.0, 0.8
SEEDS = (100, 101, 102)
BURST_REQUESTS = 400


class WithBurst(Workload):
    """The same requests, those of ``BURST * BURST_S`` seconds of their time compressed into ``BURST_S`` of ours."""

    def requests(self, n: int, seed: int, *args: Any, **kwargs: Any) -> list[WorkloadRequest]:
        made = super().requests(n, seed, *args, **kwargs)
        begin_s = made[n // 8].arrival_s
        found = []
        for one in made:
            after_s = max(one.arrival_s - begin_s, 0.0)
            saved_s = min(after_s, BURST * BURST_S) * (1.0 - 1.0 / BURST)
            found.append(replace(one, arrival_s=one.arrival_s - saved_s))
        return found


def burst_of(ours: Experiment) -> Experiment:
    fields = {name: getattr(ours.workload, name) for name in Workload.__slots__}
    return replace(ours, workload=WithBurst(**fields), max_requests=BURST_REQUESTS)


def troubles(cell: AutoCell, ours: Experiment, folder: Path) -> dict[str, tuple[Experiment, tuple[str, ...]]]:
    """The experiment of each trouble, and its policies."""
    every = (AUTO, *RIVALS)
    found = {"none": (ours, every), "steps vary by 20 %": (replace(ours, step_noise=0.2), every)}
    for factor in (0.7, 1.5):
        path = str(scaled_profile(cell.profile, factor, folder))
        found[f"profile says {factor:g}"] = (replace(ours, known_profile=path), every)
    for error in (0.3, 0.5):
        told = tuple(f"{name}:length=oracle:length_error={error}" for name in LENGTHS)
        found[f"lengths wrong by {error:.0%}"] = (ours, told)
    if cell.profile == "a100-llama3-70b-tp4":  # on faster engines such a burst is thousands of requests
        found["burst"] = (burst_of(ours), every)
    return found


def beside_best(attained: Mapping[str, Sequence[float]], *others: str) -> dict[str, Any]:
    """Mean attainment by policy, and ``auto`` less the best rival, paired by seed. others: that are no rivals."""
    of = {policy: np.array(values) for policy, values in attained.items()}
    best = max((policy for policy in of if policy not in (AUTO, *others)), key=lambda policy: of[policy].mean())
    ahead = of[AUTO] - of[best]
    means = {policy: float(values.mean()) for policy, values in of.items()}
    return {
        "attainment": means,
        "best_rival": best,
        "auto_less_best": float(ahead.mean()),
        "half_95": half_95(ahead),
    }


def main() -> None:
    given = parser_for(__doc__, seeds=len(SEEDS), out=RESULTS / "auto_uncertain.json.gz").parse_args()
    rows: list[dict[str, Any]] = []
    for cell in CELLS:
        attained: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for seed in SEEDS[: given.seeds]:
            with TemporaryDirectory() as folder:
                ours = experiment(cell, "later", seed, Path(folder))
                points = measured_points(ours)
                calm = [Point(point.seed, point.rps * AMID / float(cell.load), AMID) for point in points]
                for trouble, (tried, names) in troubles(cell, ours, Path(folder)).items():
                    for row in run(tried, names, calm if trouble == "burst" else points):
                        attained[trouble][row["policy"].split(":")[0]].append(float(row["slo_attainment"]))
        for trouble, of in attained.items():
            rows.append({**cell._asdict(), "trouble": trouble, **beside_best(of)})
            print(json.dumps(rows[-1]), flush=True)
    write_result(given.out, {"seeds": SEEDS[: given.seeds], "rows": rows})


if __name__ == "__main__":
    main()
