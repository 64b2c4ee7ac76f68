"""How long does a plan of Andes take, beside those of simple orders?

Requests come at once to a virtual engine with scarce KV; every plan of the first steps is
timed as the engine pays for it: rows gathered, planned, checked, carried out. Writes results/andes-overhead.json: µs of
thread CPU time, policies interleaved, medians and p99 over plans.
"""

import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from provenance import provenance

from sloserve.estimator.profile import load_profile
from sloserve.sim.workloads import workload
from sloserve.vllm_plugin.engine_settings import EngineSettings

POLICIES = ("andes", "edf", "sjf")
REQUESTS = (100, 500, 2000)
REPEATS = 3
PLANS = 300
"""Plans timed in each run, the first ones: later there are fewer requests."""
WARM_UP = 5
PROFILE = "a100-opt-13b"


def plan_costs_s(policy: str, n: int, seed: int) -> list[float]:
    """Costs of the first plans while ``n`` requests wait or run."""
    from sloserve.vllm_plugin.virtual_engine import VirtualEngine

    profile = load_profile(PROFILE)
    settings = EngineSettings(
        kv_blocks=profile.kv_blocks,
        block_size=profile.block_size,
        max_num_seqs=512,
        max_num_batched_tokens=profile.max_num_batched_tokens,
        max_model_len=profile.max_model_len,
        enable_prefix_caching=False,
    )
    source = workload("reading-speed")
    engine = VirtualEngine(settings, profile, {"sloserve": {"policy": policy, **source.slos.table.as_config()}})
    spent: list[float] = []
    planner = engine.scheduler._planner
    plan = planner.next_plan

    def timed(scheduler: Any, now_s: float) -> Any:
        began = time.thread_time()
        found = plan(scheduler, now_s)
        spent.append(time.thread_time() - began)
        if len(spent) >= PLANS + WARM_UP:
            raise _Enough
        return found

    planner.next_plan = timed
    try:
        engine.run(source.requests(n, seed, 1e6))
    except _Enough:
        pass
    return spent[WARM_UP:]


class _Enough(Exception):
    """All plans were timed."""


def main() -> None:
    logging.getLogger("vllm").setLevel(logging.ERROR)
    sizes, repeats = ((100,), 1) if "--quick" in sys.argv else (REQUESTS, REPEATS)
    spent: dict[tuple[str, int], list[float]] = {(p, n): [] for p in POLICIES for n in sizes}
    for repeat in range(repeats):
        for policy, n in spent:
            spent[policy, n] += plan_costs_s(policy, n, repeat)
    rows = [
        {
            "policy": policy,
            "requests": n,
            "plans": len(costs),
            "us_median": float(np.median(costs)) * 1e6,
            "us_p99": float(np.percentile(costs, 99)) * 1e6,
        }
        for (policy, n), costs in spent.items()
    ]
    for row in rows:
        print(row)
    if "--quick" not in sys.argv:
        path = Path(__file__).parent / "results" / "andes-overhead.json"
        path.write_text(
            json.dumps({**provenance(), "repeats": repeats, "plans": rows}, indent=1, sort_keys=True) + "\n"
        )


if __name__ == "__main__":
    main()
