"""What does it buy a policy to know what the prefix cache holds of the prompts that wait?

Conversations of several rounds, with the prompts' real beginnings (Mooncake's trace), on an engine with a prefix cache;
each policy as it is, and with the column `hit_tokens` always 0. The engine model, the earlier half of the trace. It is
looked for in the folder that SLOSERVE_DATA names. Writes results/prefix_hits.json.gz: a row for each run.

    python -m benchmarks.policies.prefix_hits [--policies auto] [--loads 1.5] [--seeds 3] [--max-requests 400]
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.arguments import parser_for
from benchmarks.policies.step_sizes import FIGURES, HALVES
from benchmarks.publish import RESULTS, write_result
from benchmarks.traces import MOONCAKE
from sloserve.sim.build_experiment import build_experiment
from sloserve.sim.experiment import MODEL, measured_points, run_experiment
from sloserve.sim.experiment_options import SimulateOptions
from sloserve.sim.model.model_port import ModelPort


def unknown(self: ModelPort, request: Any, before: int) -> int:
    return 0


def main() -> None:
    args = parser_for(__doc__, policies="auto", loads="1.5", seeds=3, max_requests=400).parse_args()
    built = build_experiment(
        SimulateOptions(
            trace=Path(MOONCAKE),
            policy=args.policies,
            load=args.loads,
            max_requests=args.max_requests,
            seeds=args.seeds,
        )
    )
    ours = replace(
        built,
        window=HALVES["earlier"],
        engine=replace(built.engine, enable_prefix_caching=True),
        engine_kind=MODEL,
    )
    points, rows = measured_points(ours), []
    for hits in ("known", "unknown"):
        with mock.patch.object(ModelPort, "hit_tokens", unknown if hits == "unknown" else ModelPort.hit_tokens):
            for run in run_experiment(ours, points=points):
                point = run.point
                record = run.record()
                row = {"hits": hits, "policy": run.policy, "load": point.load, "seed": point.seed}
                rows.append(row | {figure: record[figure] for figure in FIGURES})
                print(json.dumps(rows[-1]), flush=True)
    write_result(RESULTS / "prefix_hits.json.gz", {"max_requests": args.max_requests, "runs": rows})


if __name__ == "__main__":
    main()
