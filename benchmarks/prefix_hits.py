"""What does it buy a policy to know what the prefix cache holds of the prompts that wait?

Conversations of several rounds, with the prompts' real beginnings (Mooncake's trace), on an engine with a prefix cache;
each policy as it is, and with the column `hit_tokens` always 0. The engine model. The trace is looked for in the folder
that SLOSERVE_DATA names.

    python benchmarks/prefix_hits.py [--window 0:0.5] [--loads 1,1.5] [--seeds 3] [--max-requests 300]
"""

import argparse
import csv
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from step_sizes import BUDGET, FIGURES, ROOT

from sloserve.report.summary import summarize
from sloserve.sim.experiment import MODEL, measured_points, run_experiment
from sloserve.sim.model.port import ModelPort
from sloserve.sim.simulate import build_experiment
from sloserve.workloads.readers.found import find_trace
from sloserve.workloads.window import Window

TRACE = Path("mooncake_conversation_first_half.csv.gz")
POLICIES = ("edf" + BUDGET, "sjf" + BUDGET, "andes" + BUDGET, "econo" + BUDGET, "auto")


def unknown(self: ModelPort, request: Any, before: int) -> int:
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "prefix_hits")
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--window", default="0:0.5")
    parser.add_argument("--loads", default="1,1.5")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--max-requests", type=int, default=300)
    args = parser.parse_args()
    begin, end = map(float, args.window.split(":"))
    built = build_experiment(
        trace=find_trace(TRACE), policy=args.policies, load=args.loads, max_requests=args.max_requests, seeds=args.seeds
    )
    ours = replace(
        built,
        window=Window(begin, end),
        engine=replace(built.engine, enable_prefix_caching=True),
        engine_kind=MODEL,
    )
    args.out.mkdir(parents=True, exist_ok=True)
    points = measured_points(ours)
    with (args.out / "runs.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["hits", "policy", "load", "seed", *FIGURES], lineterminator="\n")
        writer.writeheader()
        for hits in ("known", "unknown"):
            with mock.patch.object(ModelPort, "hit_tokens", unknown if hits == "unknown" else ModelPort.hit_tokens):
                for run in run_experiment(ours, points=points):
                    point = run.point
                    record = summarize(run.log, policy=run.policy, seed=point.seed, rps=point.rps, load=point.load)
                    row = {"hits": hits, "policy": run.policy, "load": point.load, "seed": point.seed}
                    writer.writerow(row | {figure: record[figure] for figure in FIGURES})
                    file.flush()


if __name__ == "__main__":
    main()
