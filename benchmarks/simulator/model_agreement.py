"""How far is the engine model from vLLM's real scheduler, over traces, generators and policies?

Writes benchmarks/results/model_agreement.json.gz: for each run the difference, model less vLLM, of attainment, mean QoE
and output tokens/s, and how many requests got any token at another time. Traces are looked for in the folder that
SLOSERVE_DATA names; those that are not there are left out, and the result says so.

With --rows only those rows are run, and replace theirs in the result.

    python -m benchmarks.simulator.model_agreement [--max-requests 300] [--seeds 1] [--policies stock,edf]
        [--rows reading-bursts]
"""

import json
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.arguments import parser_for
from benchmarks.publish import RESULTS, provenance, read_json, write_result
from benchmarks.traces import MOONCAKE, TRACES
from sloserve.core.errors import ConfigError
from sloserve.core.runlog import RunLog
from sloserve.scheduler.registry import main_policies
from sloserve.sim.build_experiment import build_experiment
from sloserve.sim.experiment import MODEL, VLLM, Experiment, measured_points, run_experiment
from sloserve.sim.experiment_options import SimulateOptions
from sloserve.sim.report.summary import summarize
from sloserve.sim.run_name import STOCK

POLICIES = ",".join((STOCK, *main_policies()))
FIGURES = ("slo_attainment", "qoe_mean", "output_throughput")
H100: dict[str, Any] = {"profile": "h100-llama3-8b"}
ROWS: dict[str, dict[str, Any]] = {
    **{name: H100 | {"trace": file} for name, file in TRACES.items()},
    "mooncake": {"profile": "h200-llama3-8b", "trace": MOONCAKE},
    "sharegpt": H100 | {"workload": "sharegpt-poisson"},
    "reading-bursts": H100 | {"workload": "reading-speed-gamma3"},
}
SCARCE = {"kv_blocks": 3000}
SWAP: dict[str, Any] = SCARCE | {
    "policy": "fcfs,edf,andes@swapping=always,econo@link_gb_per_s=1", "swap_space_gib": 4.0, "link_gb_per_s": 5.0
}  # fmt: skip
SWAPPED = ("azure-conv", "sharegpt")
"""Rows that are run with swap space, too."""


def experiments(max_requests: int, seeds: int, policies: str) -> dict[str, Experiment | None]:
    """By name; ``None`` where the trace is missing."""
    found: dict[str, Experiment | None] = {}
    for name, row in ROWS.items():
        flags = dict(row) | {"max_requests": max_requests, "seeds": seeds, "policy": policies, "load": "1.5"}
        try:
            found[name] = build_experiment(SimulateOptions(**flags))
        except ConfigError:
            found[name] = None
            continue
        if name != "mooncake":  # its prompts do not fit
            found[f"{name}-scarce-kv"] = build_experiment(SimulateOptions(**flags, **SCARCE))
        if name in SWAPPED:
            found[f"{name}-swap"] = build_experiment(SimulateOptions(**flags | SWAP))
    return found


def differences(theirs: RunLog, ours: RunLog, **run: Any) -> dict[str, Any]:
    """What tells the model's run from vLLM's."""
    a, b = (summarize(log, **run) for log in (theirs, ours))
    pairs = zip(theirs.requests, ours.requests, strict=True)
    return {
        **run,
        **{f"{name}_difference": None if a[name] is None else b[name] - a[name] for name in FIGURES},
        "slo_attainment": a["slo_attainment"],
        "requests": len(theirs.requests),
        "requests_that_differ": sum(not np.array_equal(x.token_times_s, y.token_times_s) for x, y in pairs),
        "preemptions": sum(r.num_preemptions for r in theirs.requests),
        "swaps": sum(r.num_swaps for r in theirs.requests),
    }


def main() -> None:
    parser = parser_for(__doc__, max_requests=300, seeds=1, policies=POLICIES)
    parser.add_argument("--rows", help="comma-separated; all if not given")
    args = parser.parse_args()
    path = RESULTS / "model_agreement.json.gz"
    found = experiments(args.max_requests, args.seeds, args.policies)
    rows: list[dict[str, Any]] = []
    if args.rows:
        found = {name: found[name] for name in args.rows.split(",")}
        rows = [row for row in read_json(path)["runs"] if row["workload"] not in found]
    missing, commit = [], provenance()["commit"]
    for name, experiment in found.items():
        if experiment is None:
            missing.append(name)
            continue
        ours = replace(experiment, engine_kind=MODEL)
        points = measured_points(ours)
        both = (run_experiment(replace(experiment, engine_kind=kind), points=points) for kind in (VLLM, MODEL))
        for theirs, model in zip(*both, strict=True):
            point = theirs.point
            run = {"policy": theirs.policy, "seed": point.seed, "rps": point.rps, "load": point.load}
            rows.append({"workload": name, "commit": commit, **differences(theirs.log, model.log, **run)})
            print(json.dumps(rows[-1]), flush=True)
    worst = {
        key: max((abs(row[key]) for row in rows if row[key] is not None), default=0.0)
        for key in ("requests_that_differ", *(f"{name}_difference" for name in FIGURES))
    }
    write_result(path, {"runs": rows, "missing_traces": missing, "largest_difference": worst})
    print(json.dumps(worst, indent=1))


if __name__ == "__main__":
    main()
