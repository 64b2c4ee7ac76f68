"""Replies of thousands of tokens whose lengths nobody knows: who keeps targets, and how often are requests preempted?

Usage: python -m benchmarks.policies.long_replies [--workers 2]

Requests of ``reasoning-poisson`` (replies of 2,440 tokens in the mean, the longest of 30,000) at multiples of what
stock carries, KV for 48,000 tokens, so many that queues form. Three seeds that nothing was tuned on. In the
rows ``shift`` the replies of the second half are four times as long as those of the first, which no policy is told.
Writes results/long_replies.json.gz: requests in time, QoE, preemptions a request, and what `auto` has more than
each policy, paired by seed.
"""

import itertools
import json
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.arguments import parser_for
from benchmarks.policies.auto_cells import AutoCell, experiment, run
from benchmarks.policies.auto_judged import half_95
from benchmarks.publish import RESULTS, write_result
from sloserve.core.request import WorkloadRequest
from sloserve.sim.experiment import Experiment, measured_points
from sloserve.sim.workloads.workload_registry import Workload

CELLS = [
    AutoCell("reasoning", "default", "scarce", "h100-llama3-8b", "2"),
    AutoCell("reasoning", "mixed", "scarce", "h100-llama3-8b", "1.5"),
    AutoCell("reasoning", "readers", "scarce", "h100-llama3-8b", "3"),
    AutoCell("reasoning", "readers", "scarce", "a100-llama3-70b-tp4", "4"),
    AutoCell("reasoning", "mixed", "scarce", "a100-llama3-70b-tp4", "1.5"),
]
SHIFT = 4
SEEDS = (210, 211, 212)
NUM_REQUESTS = 200
STOCK, AUTO = "stock", "auto"
POLICIES = (
    STOCK,
    *(f"{name}:step_budget=true" for name in ("edf", "sjf", "andes", "econo", "niyama", "sa", "qlm")),
    AUTO,
)
FIGURES = ("slo_attainment", "qoe_mean", "preemptions_per_request", "output_throughput")


class Shifted(Workload):
    """The same requests, but the replies of the first half are a quarter as long."""

    def requests(self, n: int, seed: int, *args: Any, **kwargs: Any) -> list[WorkloadRequest]:
        made = super().requests(n, seed, *args, **kwargs)
        short = [replace(one, output_tokens=max(one.output_tokens // SHIFT, 1)) for one in made[: n // 2]]
        return short + made[n // 2 :]


def shifted(ours: Experiment) -> Experiment:
    return replace(ours, workload=Shifted(**{name: getattr(ours.workload, name) for name in Workload.__slots__}))


def figures(cell: AutoCell, shift: bool, seed: int) -> dict[str, dict[str, float]]:
    """Of each policy; nan where it says nothing."""
    with TemporaryDirectory() as folder:
        ours = replace(experiment(cell, "later", seed, Path(folder)), max_requests=NUM_REQUESTS)
        if shift:
            ours = shifted(ours)
        rows = run(ours, list(POLICIES), measured_points(ours))
        return {row["policy"]: {name: float(row[name] or "nan") for name in FIGURES} for row in rows}


def main() -> None:
    given = parser_for(__doc__, workers=2, out=RESULTS / "long_replies.json.gz").parse_args()
    jobs = list(itertools.product(CELLS, (False, True), SEEDS))
    found: dict[tuple[AutoCell, bool, str], list[dict[str, float]]] = defaultdict(list)
    with ProcessPoolExecutor(given.workers) as pool:
        for (cell, shift, seed), of in zip(jobs, pool.map(figures, *zip(*jobs, strict=True)), strict=True):
            print(*cell, "shift" if shift else "", seed, {p: round(one["slo_attainment"], 3) for p, one in of.items()})
            for policy, one in of.items():
                found[cell, shift, policy].append(one)
    rows: list[dict[str, Any]] = []
    for (cell, shift, policy), of_seeds in found.items():
        more = [
            ours["slo_attainment"] - one["slo_attainment"]
            for ours, one in zip(found[cell, shift, AUTO], of_seeds, strict=True)
        ]
        means = {name: float(np.mean([one[name] for one in of_seeds])) for name in FIGURES}
        rows.append(
            {**cell._asdict(), "shift": shift, "policy": policy, **means}
            | {"auto_has_more": float(np.mean(more)), "half_95": half_95(np.array(more))}
        )
    for policy in POLICIES:
        of = [row for row in rows if row["policy"] == policy]
        print(policy, json.dumps({name: round(float(np.mean([row[name] for row in of])), 3) for name in FIGURES}))
    write_result(given.out, {"requests": NUM_REQUESTS, "seeds": SEEDS, "rows": rows})


if __name__ == "__main__":
    main()
