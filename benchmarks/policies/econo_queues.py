"""How many requests of equal length run together, and how much KV do waiting requests hold? EconoServe's Fig. 2 and 6.

Usage: python -m benchmarks.policies.econo_queues [--quick] [--out FILE]

At every plan, on the engine model, OPT-13B with 12 GB of KV, about stock's capacity, lengths known with an error of
30 %. ``groups``, under ``sync-coupled``: running requests whose predicted lengths are in one bucket of 32 tokens; the
share of groups with at least so many requests, and of requests in them. ``held``, under ``econo-paper``: of the KV
cache, what one request holds that waits after its prompt (new), after tokens of its reply (preempted), or with a part
of its prompt (chunked). ``completing_steps``: the share of stock's steps in which a request completes (Fig. 1f).

Writes results/econo_queues.json.gz; ``--quick`` writes nothing without ``--out``.
"""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.arguments import quick_and_out
from benchmarks.publish import RESULTS, write_result
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.estimator.step_time.profile import load_profile
from sloserve.scheduler.policy import Plan, Policy, Snapshot
from sloserve.scheduler.registry import make_policy, parse_policy
from sloserve.sim.model.engine import ModelEngine
from sloserve.sim.workloads.workload_registry import workload

PROFILE = "a100-opt-13b-12gb"
SEEDS, REQUESTS = (0, 1, 2), 300
RPS = {"sharegpt-poisson": 2.6, "alpaca-poisson": 30.0, "bookcorpus-poisson": 0.26}
FEWER = {"bookcorpus-poisson": 100}
"""Requests of a workload whose long prompts take ten times as long to run."""
LENGTHS = "length=oracle:length_error=0.3"
BUCKET = 32
SIZES = (2, 4, 12)


def watched(name: str, policy: str, seed: int, n: int, seen: Callable[[Policy, Snapshot, Plan], None]) -> None:
    """Serves ``n`` requests of a workload; ``seen`` is told of each plan."""
    source, profile = workload(name), load_profile(PROFILE)
    made = make_policy(*parse_policy(f"{policy}:{LENGTHS}"), seed=seed)
    plan = made.plan

    def planned(snapshot: Snapshot, now_s: float) -> Plan:
        found = plan(snapshot, now_s)
        seen(made, snapshot, found)
        return found

    made.plan = planned  # type: ignore[method-assign]
    settings = EngineSettings.of_profile(profile, max_model_len=4096)
    config = {"sloserve": {"policy": policy, "seed": seed} | source.slos.table.as_config()}
    ModelEngine(settings, profile, config, policy=made).run(source.requests(n, seed, RPS[name]))


def groups(name: str, seeds: tuple[int, ...], n: int) -> dict[str, Any]:
    """Sizes of groups of equal predicted length, over plans."""
    sizes: Counter[int] = Counter()

    def seen(policy: Policy, snapshot: Snapshot, plan: Plan) -> None:
        rows, running = snapshot.rows, snapshot.running
        if policy.lengths is not None and running.size:
            whole = rows.output_tokens[running] + policy.lengths.left(rows, running)
            _, counts = np.unique(np.ceil(whole / BUCKET), return_counts=True)
            sizes.update(counts.tolist())

    for seed in seeds:
        watched(name, "sync-coupled", seed, n, seen)
    found, members = sum(sizes.values()), sum(size * count for size, count in sizes.items())
    return {
        "groups": {str(at): sum(c for s, c in sizes.items() if s >= at) / found for at in SIZES},
        "requests": {str(at): sum(s * c for s, c in sizes.items() if s >= at) / members for at in SIZES},
    }


def held(name: str, seeds: tuple[int, ...], n: int) -> dict[str, Any]:
    """Shares of the KV cache that one waiting request holds, by kind, over plans."""
    shares: dict[str, list[float]] = {"new": [], "preempted": [], "chunked": []}

    def seen(policy: Policy, snapshot: Snapshot, plan: Plan) -> None:
        rows, engine = snapshot.rows, snapshot.engine
        whole = float(engine.total_blocks * engine.layout.block_size)
        for slot in plan.pause.tolist():
            shares["new" if rows.output_tokens[slot] <= 1 else "preempted"].append(rows.computed_tokens[slot] / whole)
        part = rows.computed_tokens[snapshot.running]
        some = (part > 0) & (part < rows.prompt_tokens[snapshot.running])
        shares["chunked"].extend((part[some] / whole).tolist())

    for seed in seeds:
        watched(name, "econo-paper", seed, n, seen)
    return {kind: {"share": float(np.mean(of)) if of else None, "seen": len(of)} for kind, of in shares.items()}


def completing(name: str, seeds: tuple[int, ...], n: int) -> float:
    """Share of stock's steps in which a request completes."""
    source, profile = workload(name), load_profile(PROFILE)
    completed = steps = 0
    for seed in seeds:
        engine = ModelEngine(EngineSettings.of_profile(profile, max_model_len=4096), profile, None)
        log = engine.run(source.requests(n, seed, RPS[name]))
        completed += len({one.token_times_s[-1] for one in log.requests if one.token_times_s.size})
        steps += log.steps.end_s.size
    return completed / steps


def main() -> None:
    quick, out = quick_and_out(__doc__, RESULTS / "econo_queues.json.gz")
    rows = []
    for name in ["alpaca-poisson"] if quick else RPS:
        given = (SEEDS[:1], 40) if quick else (SEEDS, FEWER.get(name, REQUESTS))
        row = {"workload": name, **groups(name, *given), "held": held(name, *given)}
        rows.append(row | {"completing_steps": completing(name, *given)})
        print(json.dumps(rows[-1]), flush=True)
    if out is not None:
        settings = {"profile": PROFILE, "seeds": SEEDS, "requests": [REQUESTS, FEWER], "rps": RPS, "lengths": LENGTHS}
        write_result(out, {**settings, "rows": rows})


if __name__ == "__main__":
    main()
