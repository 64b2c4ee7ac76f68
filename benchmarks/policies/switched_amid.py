"""Is `auto` still first when an operator switches it on amid overload, with a queue of requests that it never met?

Usage: python -m benchmarks.policies.switched_amid [--seeds 3]

The cells of auto_uncertain.py on vLLM's own scheduler in virtual time. Each run begins first come, first served; when
half of the requests have arrived, `set_policies`, which ``PUT /sloserve/policy`` calls, switches to the policy. Counted
are requests that have not ended by then. The policy has learned neither step times nor lengths. Beside it: first come,
first served to the end, and `auto` from the start on the same requests. Writes results/switched_amid.json.gz.
"""

import json
import math
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.arguments import parser_for
from benchmarks.policies.auto_cells import experiment
from benchmarks.policies.auto_uncertain import AUTO, CELLS, RIVALS, beside_best
from benchmarks.publish import RESULTS, write_result
from sloserve.core.runlog import RunLog
from sloserve.sim.experiment import Experiment, Point, measured_points
from sloserve.vllm_plugin.virtual.engine import VirtualEngine

SEEDS = (300, 301, 302)
FCFS = "fcfs"
ALWAYS = "auto from the start"


def served(ours: Experiment, point: Point, first: str, then: str) -> tuple[RunLog, float]:
    """The run, and the time of the switch in s: the arrival of the middle request."""
    requests = ours.requests(point.seed, rps=point.rps)
    middle_s = requests[len(requests) // 2].arrival_s
    table = (ours.slos or ours.workload.slos).table
    section = {"policy": first, "seed": point.seed, "aged_share": ours.aged_share, "plan_share": ours.plan_share}
    engine = VirtualEngine(ours.engine, ours.profile, {"sloserve": section | table.as_config()})
    engine.give(*requests)
    while engine.at < middle_s:
        engine.advance()
    engine.scheduler.set_policies(then)
    while engine.at < math.inf:
        engine.advance()
    return engine.log(requests), middle_s


def attainment_after(log: RunLog, since_s: float) -> float:
    """The share in time of the requests that had not ended at ``since_s``; nan for none."""
    found = [bool(r.good) for r in log.requests if r.finish_s is None or r.finish_s > since_s]
    return float(np.mean(found)) if found else float("nan")


def main() -> None:
    given = parser_for(__doc__, seeds=len(SEEDS), out=RESULTS / "switched_amid.json.gz").parse_args()
    rows: list[dict[str, Any]] = []
    for cell in CELLS:
        attained: dict[str, list[float]] = defaultdict(list)
        for seed in SEEDS[: given.seeds]:
            with TemporaryDirectory() as folder:
                ours = experiment(cell, "later", seed, Path(folder))
                (point,) = measured_points(ours)
            for policy in (AUTO, *RIVALS, FCFS):
                attained[policy.split(":")[0]].append(attainment_after(*served(ours, point, FCFS, policy)))
            attained[ALWAYS].append(attainment_after(*served(ours, point, AUTO, AUTO)))
        rows.append({**cell._asdict(), **beside_best(attained, ALWAYS)})
        print(json.dumps(rows[-1]), flush=True)
    write_result(given.out, {"seeds": SEEDS[: given.seeds], "rows": rows})


if __name__ == "__main__":
    main()
