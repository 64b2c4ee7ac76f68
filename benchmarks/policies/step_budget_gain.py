"""What does the step budget reach where the server knows little, and what do ageing and planning cost?

Every policy runs at the default size of a step, from a cold start (no step, no reply seen), without the budget and with
it: step times learnt on line; of a profile that is right, or wrong by 30 %; and noisy by 10 %, with stalls. Then the
policies without the budget and without ageing, and without a charge for the time that planning takes. All with the same
requests. Runs go through the engine model.

Writes to the folder ``--out``: runs.csv, one row a run; table.txt. Traces are looked for where SLOSERVE_DATA says;
without them their cells are left out.

    python -m benchmarks.policies.step_budget_gain [--max-requests 400] [--seeds 3]
"""

import argparse
import csv
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import yaml

from benchmarks.policies.step_sizes import BUDGET, FIGURES, Row, experiment
from benchmarks.publish import RESULTS
from sloserve.core.errors import ConfigError
from sloserve.estimator.step_time.profile import load_profile
from sloserve.report.summary import summarize
from sloserve.sim.experiment import measured_points, run_experiment

POLICIES = ("stock", "edf", "sjf", "andes", "econo")
CELLS = (
    ("azure-conv", "default", "ample"),
    ("azure-code", "default", "ample"),
    ("servegen-10h", "default", "ample"),
    ("sharegpt", "default", "ample"),
)
NOISE = {"step_noise": 0.1}
PREFILL = ("token_ms", "attention_token2_ms", "prefix_attention_token2_ms")
WRONG = {"all 30 % too short": (0.7, 0.7), "all 30 % too long": (1.3, 1.3), "prefill 30 % too short": (0.7, 1.0)}
"""Factors of a wrong profile: on what prefill costs, and on everything else."""
COLUMNS = ("workload", "slo", "kv", "variant", "policy", "seed", "load", *FIGURES)


def wrong_profile(name: str, prefill: float, others: float, folder: Path) -> str:
    """A file like the shipped profile ``name``, wrong by these factors."""
    plain: dict[str, Any] = load_profile(name).model_dump(mode="json")

    def scaled(values: dict[str, Any]) -> dict[str, Any]:
        return {
            key: scaled(value)
            if isinstance(value, dict)
            else value * (prefill if key in PREFILL else others)
            if key.endswith("_ms")
            else value
            for key, value in values.items()
        }

    path = folder / f"{name}-{prefill:g}-{others:g}.yaml"
    path.write_text(yaml.safe_dump(plain | {"name": path.stem, "latency": scaled(plain["latency"])}))
    return str(path)


def variants(profile: str, folder: Path) -> dict[str, dict[str, Any]]:
    """Changes of the experiment, by what the table calls them; those with a budget first."""
    known = {
        f"budget, profile {how}": {"known_profile": wrong_profile(profile, *by, folder)} for how, by in WRONG.items()
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
            record = summarize(run.log, policy=run.policy, seed=point.seed, rps=point.rps, load=point.load)
            policy = run.policy.removesuffix(BUDGET).replace("fcfs", "stock")
            named = dict(zip(COLUMNS, (*cell, variant, policy, point.seed, point.load), strict=False))
            rows.append(named | {figure: record[figure] for figure in FIGURES})
    return rows


def table(rows: list[Row]) -> str:
    """Attainment in percent, its smallest and largest seed behind it; tokens per second of those without a budget."""
    lines = ["| workload | variant | " + " | ".join(POLICIES) + " |", "| --- | --- |" + " --- |" * len(POLICIES)]
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
            lines.append(f"| {workload} | {variant} | " + " | ".join(figures) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS / "step-budget")
    parser.add_argument("--max-requests", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    with (
        TemporaryDirectory(prefix="sloserve-profiles-") as folder,
        (args.out / "runs.csv").open("w", newline="") as file,
    ):
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for cell in CELLS:
            try:
                found = run_cell(cell, args.max_requests, args.seeds, Path(folder))
            except ConfigError as error:
                print(f"{', '.join(cell)}: left out: {error}", flush=True)
                continue
            rows += found
            writer.writerows({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()} for row in found)
            file.flush()
            (args.out / "table.txt").write_text(table(rows))
            print(f"{', '.join(cell)}: {len(found)} runs", flush=True)


if __name__ == "__main__":
    main()
