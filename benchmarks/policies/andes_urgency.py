"""How early must a waiting reader count as urgent under `andes`?

`andes` makes room for waiting requests whose lead is below ``urgent_s``. Readers at reading speed: OPT-66B on four
A40 with swap space as in the paper, Llama 3 70B on A100s and 8B on an H100 with a short KV cache, each beyond
capacity, 300 requests a run. Seeds 10 to 12; the value was chosen on seed 0. Writes results/andes_urgency.json.gz,
the figures of each run; what the file has is not run again.

    python -m benchmarks.policies.andes_urgency [--quick] [--out FILE]
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.arguments import quick_and_out
from benchmarks.publish import RESULTS, load_text, write_result
from sloserve.sim.build_experiment import build_experiment
from sloserve.sim.experiment import MODEL, measured_points, run_experiment
from sloserve.sim.experiment_options import SimulateOptions

_READERS = {"workload": "reading-speed", "swap_space_gib": 240, "swapping": "always"}
_SHORT_KV = {"workload": "sharegpt-poisson", "slo": "reading", "kv_blocks": 3000}
CELLS: dict[str, dict[str, Any]] = {
    "a40x4-opt-66b": _READERS | {"load": "1.5"},
    "a100-llama3-70b-tp4": _SHORT_KV | {"load": "2.5"},
    "h100-llama3-8b": _SHORT_KV | {"load": "2.5"},
}
"""Flags by profile."""
SEEDS = (10, 11, 12)
POLICIES = (
    "stock",
    "edf:step_budget=true",
    "sjf:step_budget=true",
    "econo:step_budget=true",
    "niyama:step_budget=true",
    "andes",
    "andes-parts:urgent_s=0.5",
    "andes-parts:urgent_s=1",
    "andes-parts:urgent_s=4",
    "andes-paper",
    "auto",
)
FIGURES = ("qoe_mean", "qoe_p10", "slo_attainment", "output_throughput", "preemptions_per_request")


def measured(profile: str, seed: int, policies: Sequence[str], requests: int) -> Iterator[dict[str, Any]]:
    """Yield the figures of each run."""
    flags = CELLS[profile] | {"profile": profile, "max_requests": requests, "engine": MODEL}
    ours = replace(build_experiment(SimulateOptions(**flags, policy="stock")), seeds=(seed,), policies=tuple(policies))
    for one in run_experiment(ours, points=measured_points(ours)):
        record = one.record()
        row = {"profile": profile, "load": CELLS[profile]["load"], "seed": seed, "policy": one.policy}
        yield row | {name: float(f"{record[name]:.5g}") for name in FIGURES}


def main() -> None:
    quick, out = quick_and_out(__doc__, RESULTS / "andes_urgency.json.gz")
    if quick:
        print(json.dumps(next(measured(next(iter(CELLS)), SEEDS[0], POLICIES[:1], 20))))
        return
    rows = json.loads(load_text(out))["rows"] if out is not None and out.exists() else []
    for profile in CELLS:
        for seed in SEEDS:
            ran = {row["policy"] for row in rows if row["profile"] == profile and row["seed"] == seed}
            if todo := [policy for policy in POLICIES if policy not in ran]:
                for row in measured(profile, seed, todo, 300):
                    rows.append(row)
                    print(json.dumps(row), flush=True)
                if out is not None:
                    write_result(out, {"seeds": SEEDS, "rows": rows})


if __name__ == "__main__":
    main()
