"""How long does a plan take, and what is that beside vLLM's own schedule()?

Usage: python benchmarks/plan_overhead.py [--quick]

Requests come at once to a virtual engine with scarce KV. In each of the first steps three things are timed in thread
CPU time: the policy's plan alone; the same with what the engine pays for it, rows gathered, plan checked and carried
out; and vLLM's whole schedule() with it. Policies in turn, stock among them. Writes results/plan-overhead.json: medians
and p99 over the steps, µs.
"""

import json
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from provenance import provenance

from sloserve.estimator.step_time.profile import load_profile
from sloserve.vllm_plugin.virtual.settings import EngineSettings
from sloserve.workloads.registry import workload

POLICIES = ("stock", "andes", "econo", "econo-paper", "edf", "sjf")
REQUESTS = (100, 500, 2000)
REPEATS = 3
STEPS = 300
"""Timed in each run, the first ones: later there are fewer requests."""
WARM_UP = 5
PROFILE = "a100-opt-13b"
TIMED = ("plan", "planning", "schedule")
"""The policy's plan; all that is done for it; the whole of schedule()."""


class _Enough(Exception):
    """All steps were timed."""


def timed(call: Callable[..., Any], spent: list[float], most: int | None = None) -> Callable[..., Any]:
    def call_timed(*args: Any, **kwargs: Any) -> Any:
        began = time.thread_time()
        found = call(*args, **kwargs)
        spent.append(time.thread_time() - began)
        if most is not None and len(spent) >= most:
            raise _Enough
        return found

    return call_timed


def costs_s(policy: str, n: int, seed: int) -> dict[str, list[float]]:
    """Of the first steps while ``n`` requests wait or run, by TIMED."""
    from sloserve.vllm_plugin.virtual.engine import VirtualEngine

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
    config = None if policy == "stock" else {"sloserve": {"policy": policy, **source.slos.table.as_config()}}
    engine = VirtualEngine(settings, profile, config)
    spent: dict[str, list[float]] = {what: [] for what in TIMED}
    if policy != "stock":
        planner: Any = engine.scheduler._planner
        planner.policy.plan = timed(planner.policy.plan, spent["plan"])
        # Between the two vLLM preempts, which is not planning.
        parts: tuple[list[float], list[float]] = ([], [])
        planner.next_step = timed(planner.next_step, parts[0])
        planner.apply_plan = timed(planner.apply_plan, parts[1])
    scheduler: Any = engine.scheduler
    scheduler.schedule = timed(scheduler.schedule, spent["schedule"], STEPS + WARM_UP)
    try:
        engine.run(source.requests(n, seed, 1e6))
    except _Enough:
        pass
    if policy != "stock":
        spent["planning"] = [sum(both) for both in zip(*parts, strict=False)]
    return {what: costs[WARM_UP:] for what, costs in spent.items()}


def main() -> None:
    logging.getLogger("vllm").setLevel(logging.ERROR)
    quick = "--quick" in sys.argv
    sizes, repeats = ((100,), 1) if quick else (REQUESTS, REPEATS)
    spent: dict[tuple[str, int], dict[str, list[float]]] = {
        (policy, n): {what: [] for what in TIMED} for n in sizes for policy in POLICIES
    }
    for repeat in range(repeats):
        for (policy, n), all_costs in spent.items():
            for what, costs in costs_s(policy, n, repeat).items():
                all_costs[what] += costs
    rows = [
        {"policy": policy, "requests": n, "steps": len(costs["schedule"])}
        | {
            f"{what}_us_{name}": float(np.percentile(costs[what], q)) * 1e6
            for what in TIMED
            for name, q in (("median", 50), ("p99", 99))
            if costs[what]
        }
        for (policy, n), costs in spent.items()
    ]
    for row in rows:
        print(json.dumps(row))
    if not quick:
        path = Path(__file__).parent / "results" / "plan-overhead.json"
        path.write_text(json.dumps({**provenance(), "repeats": repeats, "rows": rows}, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
