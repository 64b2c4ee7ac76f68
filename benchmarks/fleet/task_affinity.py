"""What do the tasks of agents gain if a fleet sends each call where its prefix is?

The closed loop of ``benchmarks.policies.agent_tasks`` on a fleet in virtual time: Llama 3 70B on INSTANCES times four
A100 with a KV cache of 96,000 tokens each. A call comes when the call before has ended and its tool has run, and its
prompt repeats the whole conversation. The live fleet's own gateways, planner and agents decide; engines run stock's
scheduler, or ``auto`` without a word about tasks, at the rate at which stock or ``auto`` begins to fall behind.

- ``random``, ``least-loaded``: each call is assigned on arrival, to any instance or to the one with the fewest;
- ``affinity off``: a gateway with ``affinity: false``;
- ``affinity``: a gateway as it is;
- ``caches known``: a gateway that looks into the prefix caches, as exact and immediate KV events would let it;
- ``3 gateways, own prompts``: each call comes through one of three gateways, which know what they sent themselves;
- ``3 gateways``: the same, and agents report the prompts of the last seconds to all of them, as it is.

``--section conversations`` has the conversations of ``paced``'s section ``rounds`` in virtual time instead, with and
without affinity, on four H100s at a light load.

    python -m benchmarks.fleet.task_affinity [--section tasks] [--seeds 4] [--quick]

Prints and writes its part of benchmarks/results/task_affinity.json.gz. Tasks: share of tasks in time, mean and p99 of
their latency, share of prompt tokens that prefix caches had, and prompt tokens computed over those that a cache which
forgets nothing would leave to compute; means over seeds, and differences from ``affinity off`` in tasks in time with
half of their 95 % intervals, paired by seed. Conversations: times to the first token, per token and of whole requests,
means over seeds.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.arguments import parser_for
from benchmarks.fleet.known_caches import KnowingFleet
from benchmarks.fleet.paced_models import ROUTING, rounds_predicted
from benchmarks.policies.agent_tasks import KV_BLOCKS, PROFILE, unloaded_s
from benchmarks.policies.agent_workload import AgentLoop, nothing
from benchmarks.policies.auto_judged import half_95
from benchmarks.publish import RESULTS, aligned, merge_result
from sloserve.core.outcome import Outcome
from sloserve.core.request import WorkloadRequest
from sloserve.core.slo import ClassTable
from sloserve.fleet.file import parse_fleet
from sloserve.fleet.fleet import Fleet
from sloserve.fleet.planner_rule import EDF
from sloserve.fleet.simulated.dispatcher import Dispatcher
from sloserve.fleet.simulated.dispatchers.assigned import LeastLoaded, Random
from sloserve.fleet.simulated.live.live_fleet import LiveFleet
from sloserve.fleet.simulated.live.live_options import Options
from sloserve.fleet.simulated.loop import FleetRun
from sloserve.sim.closed_loop import Source
from sloserve.sim.model.engine import ModelEngine
from sloserve.sim.workloads.tasks.arrivals import arriving
from sloserve.sim.workloads.tasks.plan import BLOCK
from sloserve.sim.workloads.tasks.react import react_tasks

INSTANCES, TASKS, QUICK_TASKS = 2, 70, 4
RATES = {"stock": 0.14, "auto": 0.18}
"""Tasks per second and instance, by the policy of the engines."""
FILE = f"""
models: {{agents: {{profile: {PROFILE}}}}}
hosts: {{node: {{device: a100x4, width: 4, devices: {4 * INSTANCES}, host_memory_gib: 999}}}}
settings: {{policy: auto, classes: {{task: {{rank: 0}}}}}}
"""
OFF = "affinity off"
WAYS = {
    OFF: Options(prefixes=False),
    "affinity": Options(),
    "3 gateways, own prompts": Options(gateways=3, reported_prefixes=False),
    "3 gateways": Options(gateways=3),
}
KNOWN = "caches known"
NAMES = ("random", "least-loaded", *WAYS, KNOWN)
FIGURES = {
    "in_time": "in time", "mean_s": "mean s", "p99_s": "p99 s", "hit_rate": "hits", "computed_over_needed": "computed",
}  # fmt: skip


class Calls(Source):
    """The calls of tasks as requests for the fleet's model."""

    def __init__(self, loop: AgentLoop, classes: ClassTable) -> None:
        self._loop, self._slo = loop, classes.slo("task", classes["task"].targets)

    def first(self) -> list[WorkloadRequest]:
        return self._named(self._loop.first())

    def after(self, request: WorkloadRequest, outcome: Outcome, now_s: float) -> list[WorkloadRequest]:
        return self._named(self._loop.after(request, outcome, now_s))

    def _named(self, requests: Iterable[WorkloadRequest]) -> list[WorkloadRequest]:
        return [replace(request, model="agents", slo=self._slo) for request in requests]


def fleet() -> Fleet:
    """Return the fleet, with the KV cache of the runs on one engine."""
    read = parse_fleet(FILE)
    (model,) = read.models.values()
    size = {"kv_capacity_tokens": KV_BLOCKS * BLOCK}
    profiles = {device: profile.model_copy(update=size) for device, profile in model.profiles.items()}
    return replace(read, models={"agents": replace(model, profiles=profiles)})


def dispatcher(name: str, seed: int) -> Dispatcher:
    if name in WAYS:
        return LiveFleet(EDF, WAYS[name], seed)
    if name == KNOWN:
        return KnowingFleet(EDF, Options(), seed)
    return LeastLoaded() if name == "least-loaded" else Random(seed)


def row_of(name: str, policy: str, seed: int, n: int = TASKS) -> dict[str, Any]:
    """Return the figures of one run of ``n`` tasks."""
    served = fleet()
    (profile,) = served.models["agents"].profiles.values()
    tasks = arriving(react_tasks(n, seed), seed, RATES[policy] * INSTANCES, unloaded_s(n, seed))
    loop = AgentLoop(tasks, nothing, profile)
    run = FleetRun(
        served,
        dispatcher(name, seed),
        ModelEngine,
        policy=None if policy == "stock" else policy,
        seed=seed,
        prefix_caching=True,
    )
    requests = run.run_source(Calls(loop, served.settings.classes)).run.requests
    outcomes = loop.outcomes()
    latency_s = np.array([math.nan if one.latency_s is None else one.latency_s for one in outcomes])
    new = sum(task.prompt_tokens(i) - task.repeated_tokens(i) for task in tasks for i in range(len(task.calls)))
    prompts = sum(one.request.prompt_tokens for one in requests)
    computed = prompts - sum(one.cached_tokens - one.recomputed_tokens for one in requests)
    return {
        "name": name,
        "policy": policy,
        "seed": seed,
        "in_time": float(np.mean([bool(one.in_time) for one in outcomes])),
        "mean_s": float(np.nanmean(latency_s)),
        "p99_s": float(np.nanpercentile(latency_s, 99)),
        "hit_rate": sum(one.cached_tokens for one in requests) / prompts,
        "computed_over_needed": computed / new,
        "unfinished": int(np.isnan(latency_s).sum()),
    }


def means(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the means of each way under each policy, with differences from ``affinity off`` paired by seed."""
    rows = []
    for policy in RATES:
        off = [one["in_time"] for one in runs if (one["name"], one["policy"]) == (OFF, policy)]
        for name in NAMES:
            own = [one for one in runs if (one["name"], one["policy"]) == (name, policy)]
            added = np.array([one["in_time"] for one in own]) - off
            row: dict[str, Any] = {"name": name, "policy": policy, "unfinished": sum(one["unfinished"] for one in own)}
            row |= {figure: float(np.mean([one[figure] for one in own])) for figure in FIGURES}
            rows.append(row | {"less_off": float(added.mean()), "less_off_half_95": half_95(added)})
    return rows


def of_conversations(seeds: int) -> dict[str, Any]:
    """Return the means of the conversations with and without affinity, by name."""
    found = {name: [rounds_predicted(name, seed) for seed in range(seeds)] for name in ROUTING}
    return {name: {key: float(np.mean([row[key] for row in rows])) for key in rows[0]} for name, rows in found.items()}


def of_tasks(seeds: int, n: int) -> dict[str, Any]:
    """Return the figures of ``n`` tasks, and print them."""
    runs = [row_of(name, policy, seed, n) for policy in RATES for seed in range(seeds) for name in NAMES]
    rows = means(runs)
    shown = [["engines", "calls go", *FIGURES.values(), f"less {OFF}"]]
    for row in rows:
        added = f"{row['less_off']:+.3f} +- {row['less_off_half_95']:.3f}"
        shown.append([row["policy"], row["name"], *(f"{row[figure]:.3f}" for figure in FIGURES), added])
    print(aligned(shown))
    settings = {"profile": PROFILE, "kv_blocks": KV_BLOCKS, "instances": INSTANCES, "tasks": n, "rates": RATES}
    return {**settings, "rows": rows, "runs": runs}


def main() -> None:
    parser = parser_for(__doc__, section="tasks", seeds=4)
    parser.add_argument("--quick", action="store_true", help="two seeds of few tasks; writes nothing without --out")
    parser.add_argument("--out", type=Path, help="instead of task_affinity.json.gz")
    given = parser.parse_args()
    out = given.out or (None if given.quick else RESULTS / "task_affinity.json.gz")
    seeds, n = (2, QUICK_TASKS) if given.quick else (given.seeds, TASKS)
    if given.section == "tasks":
        found = of_tasks(seeds, n)
    else:
        found = {"conversations": of_conversations(seeds)}
        print(found)
    if out is not None:
        merge_result(out, found)


if __name__ == "__main__":
    main()
