"""Does `auto` change its ways with who is there, or with how many wait?

- *one*: requests with a deadline alone, at 1.5 times stock's capacity; and the same with one more in their midst, which
  has a deadline too, or which streams (TTFT and TPOT). By how many points does the attainment of the others move?
- *long*: 20,000 requests of all kinds at a steady 1.5 times stock's capacity, more than `auto` can serve too, so that
  the queue grows from nothing to thousands. Attainment, and the mean of those that wait, by tenths of the run.

The engine model, ShareGPT's lengths, 3,000 KV blocks. Writes results/auto_regimes.json.gz.

    python -m benchmarks.policies.auto_regimes [--requests 20000] [--others 600] [--seeds 2]
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import yaml

from benchmarks.arguments import parser_for
from benchmarks.policies.auto_cells import MIXED
from benchmarks.publish import RESULTS, write_result
from sloserve.core.request import WorkloadRequest
from sloserve.core.runlog import RequestLog, RunLog
from sloserve.core.slo import SLO, Targets
from sloserve.estimator.planning_cost import planning_costs
from sloserve.sim.build_experiment import build_experiment
from sloserve.sim.experiment import MODEL, PLAN_SHARE, Experiment, measured_points, run_experiment
from sloserve.sim.experiment_options import SimulateOptions
from sloserve.sim.model.engine import ModelEngine

FLAGS: Final[dict[str, Any]] = {"workload": "sharegpt-poisson", "kv_blocks": 3000, "engine": MODEL}
LOAD: Final = 1.5
RUSH: Final = 5000
"""Requests that come at once to find stock's capacity: of fewer, the steps at the end are not full."""
DEADLINE: Final = {"fixed": {"share": 1, "e2e_ms": 12_000}}
EXTRA: Final = {"deadline": Targets(e2e_s=12.0), "stream": Targets(ttft_s=0.5, tpot_s=0.03)}
WHERE: Final = (0.25, 0.5, 0.75)
PARTS: Final = 10


def experiment(folder: Path, targets: dict[str, Any], **flags: Any) -> Experiment:
    path = folder / "slo.yaml"
    path.write_text(yaml.safe_dump({"classes": targets}), encoding="utf-8")
    return build_experiment(SimulateOptions(**FLAGS | {"slo": str(path)} | flags))


def attainment(requests: Sequence[RequestLog]) -> float:
    return float(np.mean([bool(one.good) for one in requests]))


def served(ours: Experiment, policy: str, seed: int, requests: Sequence[WorkloadRequest]) -> RunLog:
    slos = ours.slos or ours.workload.slos
    section = {"policy": policy, "seed": seed, "aged_share": ours.aged_share, "plan_share": PLAN_SHARE}
    config = {"sloserve": section | slos.table.as_config()}
    engine = ModelEngine(ours.engine, ours.profile, config, planning_costs=planning_costs())
    return engine.run(list(requests))


def one_more(ours: Experiment, policy: str) -> list[dict[str, Any]]:
    """Points by which the attainment of all others moves for one request, by its kind, of each seed and place."""
    found = []
    for seed in ours.seeds:
        requests = ours.requests(seed, rps=(ours.rps or ())[0])
        before = attainment(served(ours, policy, seed, requests).requests)
        for kind, targets in EXTRA.items():
            for where in WHERE:
                at = int(where * len(requests))
                extra = replace(requests[at], request_id="extra", slo=SLO(requests[at].slo.slo_class, targets))
                log = served(ours, policy, seed, [*requests[:at], extra, *requests[at:]])
                after = attainment([one for one in log.requests if one.request.request_id != "extra"])
                moved = round(100.0 * (after - before), 2)
                found.append({"seed": seed, "extra": kind, "at": where, "before": before, "points": moved})
    return found


def by_tenths(log: RunLog) -> dict[str, list[float]]:
    steps = log.steps
    parts = np.array_split(np.arange(len(log.requests)), PARTS)
    edges = [log.requests[part[0]].request.arrival_s for part in parts] + [log.requests[-1].request.arrival_s]
    waiting = [
        float(steps.waiting[(steps.end_s >= begin) & (steps.end_s < end)].mean())
        for begin, end in zip(edges, edges[1:], strict=False)
    ]
    return {
        "attainment": [round(attainment([log.requests[i] for i in part]), 4) for part in parts],
        "waiting": [round(one) for one in waiting],
    }


def main() -> None:
    args = parser_for(__doc__, requests=20_000, others=600, seeds=2).parse_args()
    with TemporaryDirectory() as name:
        folder = Path(name)
        capacity = experiment(folder, DEADLINE, max_requests=RUSH, policy="stock", load="1", seeds=1)
        (point,) = measured_points(capacity)
        one = {"max_requests": args.others, "rps": str(LOAD * point.rps), "seeds": args.seeds}
        ones = one_more(experiment(folder, DEADLINE, policy="auto", **one), "auto")
        print(json.dumps(ones))
        many = {"max_requests": args.requests, "rps": str(LOAD * point.rps), "seeds": 1}
        long = experiment(folder, MIXED, policy="auto", **many)
        (run,) = run_experiment(long)
        found = by_tenths(run.log)
    write_result(RESULTS / "auto_regimes.json.gz", {"one": ones, "capacity_rps": point.rps, "long": found})
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
