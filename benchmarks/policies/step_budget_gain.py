"""What does the step budget reach where the server knows little, and what do ageing and planning cost?

Every policy runs at the default size of a step, from a cold start (no step, no reply seen), without the budget and with
it: step times learnt on line; of a profile that is right, or wrong by 30 %; and noisy by 10 %, with stalls. Then the
policies without the budget and without ageing, and without a charge for the time that planning takes. All with the same
requests. Runs go through the engine model.

Writes to the folder ``--out``: runs.csv.gz, one row a run; table.txt. Traces are looked for where SLOSERVE_DATA says;
without them their cells are left out.

    python -m benchmarks.policies.step_budget_gain [--max-requests 400] [--seeds 3]
"""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.arguments import parser_for
from benchmarks.policies.step_sizes import BUDGET, FIGURES, POLICIES, Row, experiment
from benchmarks.publish import RESULTS, RUNS, markdown, short, write_rows, write_table
from benchmarks.scaled_profile import scaled_profile
from sloserve.core.errors import ConfigError
from sloserve.sim.experiment import measured_points, run_experiment

CELLS = (
    ("azure-conv", "default", "ample"),
    ("azure-code", "default", "ample"),
    ("servegen-10h", "default", "ample"),
    ("sharegpt", "default", "ample"),
)
NOISE = {"step_noise": 0.1}
WRONG = {"all 30 % too short": (0.7, None), "all 30 % too long": (1.3, None), "prefill 30 % too short": (1.0, 0.7)}
"""Factors of a wrong profile: on everything, and on what prefill costs where that is another."""
COLUMNS = ("workload", "slo", "kv", "variant", "policy", "seed", "load", *FIGURES)


def variants(profile: str, folder: Path) -> dict[str, dict[str, Any]]:
    """Changes of the experiment, by what the table calls them; those with a budget first."""
    known = {
        f"budget, profile {how}": {"known_profile": str(scaled_profile(profile, factor, folder, prefill))}
        for how, (factor, prefill) in WRONG.items()
    }
    return {
        "budget, learnt": {},
        "budget, profile right": {"known_profile": profile},
        **known,
        "budget, learnt, noise": NOISE,
        "budget, all 30 % too short, noise": known["budget, profile all 30 % too short"] | NOISE,
        "no budget": {},
        "no budget, noise": NOISE,
        "no budget, no ageing": {"aged_share": 0.0},
        "no budget, planning free": {"plan_cost": 0.0},
    }


def run_cell(cell: tuple[str, str, str], max_requests: int, seeds: int, folder: Path) -> list[Row]:
    rows = []
    ours = experiment(*cell, "later", max_requests, seeds)
    points = measured_points(ours)
    for variant, changes in variants(ours.profile.name, folder).items():
        names = ["fcfs" + BUDGET, *(policy + BUDGET for policy in POLICIES[1:])]
        names = names if variant.startswith("budget") else list(POLICIES)
        for run in run_experiment(replace(ours, policies=tuple(names), **changes), points=points):
            point = run.point
            record = run.record()
            policy = run.policy.removesuffix(BUDGET).replace("fcfs", "stock")
            named = dict(zip(COLUMNS, (*cell, variant, policy, point.seed, point.load), strict=False))
            rows.append(named | {figure: record[figure] for figure in FIGURES})
    return rows


def table(rows: list[Row]) -> str:
    """Attainment in percent, its smallest and largest seed behind it; tokens per second of those without a budget."""
    shown = [["workload", "variant", *POLICIES]]
    for workload in dict.fromkeys(row["workload"] for row in rows):
        of_cell = [row for row in rows if row["workload"] == workload]
        for variant in dict.fromkeys(row["variant"] for row in of_cell):
            figures = []
            for policy in POLICIES:
                found = [r for r in of_cell if r["policy"] == policy and r["variant"] == variant]
                plain = [r for r in of_cell if r["policy"] == policy and r["variant"] == "no budget"]
                attained = 100 * np.array([float(r["slo_attainment"]) for r in found])
                speed = sum(float(r["output_throughput"]) for r in found)
                speed /= sum(float(r["output_throughput"]) for r in plain)
                figures.append(f"{attained.mean():.1f} ({attained.min():.0f}..{attained.max():.0f}), {speed:.3f}")
            shown.append([workload, variant, *figures])
    return "\n".join(markdown(shown)) + "\n"


def main() -> None:
    args = parser_for(__doc__, out=RESULTS / "step-budget", max_requests=400, seeds=3).parse_args()
    rows: list[Row] = []
    with TemporaryDirectory(prefix="sloserve-profiles-") as folder:
        for cell in CELLS:
            try:
                found = run_cell(cell, args.max_requests, args.seeds, Path(folder))
            except ConfigError as error:
                print(f"{', '.join(cell)}: left out: {error}", flush=True)
                continue
            rows += found
            write_rows(args.out / RUNS, map(short, rows), COLUMNS)
            write_table(args.out, table(rows))
            print(f"{', '.join(cell)}: {len(found)} runs", flush=True)


if __name__ == "__main__":
    main()
