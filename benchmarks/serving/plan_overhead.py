"""How long does a plan take, and what is that beside vLLM's own schedule()?

Usage: python -m benchmarks.serving.plan_overhead [--quick] [--table]

Requests come at once to a virtual engine with scarce KV. In each of the first steps three things are timed in thread
CPU time: the policy's plan alone; the same with what the engine pays for it, rows gathered, plan checked and carried
out; and vLLM's whole schedule() with it. Policies in turn, stock among them. Writes results/plan-overhead.json: medians
and p99 over the steps, µs.

--table instead measures, for every installed policy and several numbers of running and waiting requests, what the
simulator charges for planning, and writes the table (sloserve/estimator/planning_cost.yaml): lines of non-negative
least squares through means over steps.
"""

import itertools
import json
import logging
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from scipy.optimize import nnls

import sloserve
from benchmarks.publish import RESULTS, provenance, write_result
from sloserve.estimator.planning_cost import planning_costs
from sloserve.estimator.step_time.profile import load_profile
from sloserve.scheduler.registry import policy_class, policy_names
from sloserve.virtual.engine_settings import EngineSettings
from sloserve.workloads.registry import workload

POLICIES = ("stock", "andes", "auto", "econo", "econo-paper", "edf", "sjf")
REQUESTS = (100, 500, 2000)
REPEATS = 3
STEPS = 300
"""Timed in each run, the first ones: later there are fewer requests."""
WARM_UP = 5
PROFILE = "a100-opt-13b"
TIMED = ("plan", "planning", "schedule")
"""The policy's plan; all that is done for it; the whole of schedule()."""


TABLE = Path(sloserve.__file__).parent / "estimator" / "planning_cost.yaml"
TABLE_SIZES = ((16, 256), (64, 256), (200, 256), (200, 32), (600, 128), (1500, 64), (2000, 256))
"""Requests that come at once, and how many of them may run."""
TABLE_LATER, TABLE_GAP_S = 100, 0.05
"""Requests that come after these, and seconds between them: some policies do more when one comes."""
TABLE_STEPS = 80
TABLE_WORKLOADS = ("reading-speed", "sharegpt-poisson")
"""Readers, and the default classes."""
TABLE_REPEATS = 2
"""Repeats of each run, which are alike: the least mean of each window counts, as others shared the machine."""
WINDOW = 20
"""Steps whose mean is one point of a fit: a policy may plan at one step and reuse what it found at the next ones."""
LEAST_SPREAD = 10.0
PLANS_AS = {"andes-parts": "andes", "econo-parts": "econo"}
"""Variants for experiments, which plan as these do unless asked otherwise: not timed themselves."""
LIMITS = "fcfs:step_budget=true"
"""Makes no plan but the step budget."""
REUSED = ("edf", "andes", "econo")
"""Policies that a step with a plan made before was timed with."""
Samples = list[tuple[float, float, float]]
"""Running, waiting, seconds."""


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


def make_engine(policy: str, max_num_seqs: int = 512, work: str = "reading-speed") -> tuple[Any, Any]:
    """A virtual engine with scarce KV, and its workload."""
    from sloserve.vllm_plugin.virtual.engine import VirtualEngine

    profile = load_profile(PROFILE)
    settings = EngineSettings(
        kv_blocks=profile.kv_blocks,
        block_size=profile.block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=profile.max_num_batched_tokens,
        max_model_len=profile.max_model_len,
        enable_prefix_caching=False,
    )
    source = workload(work)
    config = None if policy == "stock" else {"sloserve": {"policy": policy, **source.slos.table.as_config()}}
    return VirtualEngine(settings, profile, config), source


def costs_s(policy: str, n: int, seed: int) -> dict[str, list[float]]:
    """Returns what each of the first steps costs while ``n`` requests wait or run, in seconds, by ``TIMED``."""
    engine, source = make_engine(policy)
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


def planning_samples(policy: str, n: int, max_num_seqs: int, work: str, *, reused: bool) -> Samples:
    """What ``policy`` costs in the first steps: each fresh plan, or if ``reused`` each step that reuses the first one
    and books what came of it.
    """
    engine, source = make_engine(policy, max_num_seqs, work)
    planner: Any = engine.scheduler._planner
    if reused:
        first = iter([True])
        planner.budget.allows = lambda now_s: next(first, False)
    names = ("next_step", "apply_plan", *(("admitted", "progressed") if reused else ()))
    spent: dict[str, list[float]] = {name: [] for name in names}
    for name in names:
        setattr(planner, name, timed(getattr(planner, name), spent[name]))
    counts: list[tuple[int, int]] = []
    scheduler: Any = engine.scheduler
    schedule = scheduler.schedule

    def counted_schedule() -> Any:
        if len(counts) >= TABLE_STEPS + WARM_UP:
            raise _Enough
        counts.append((planner.table.num_running, len(planner.table.slot_of) - planner.table.num_running))
        return schedule()

    scheduler.schedule = counted_schedule
    try:
        at_once = source.requests(n + TABLE_LATER, 0, 1e6)
        later = [replace(r, arrival_s=TABLE_GAP_S * i) for i, r in enumerate(at_once[n:], 1)]
        engine.run([*at_once[:n], *later])
    except _Enough:
        pass
    costs = [sum(parts) for parts in zip(*spent.values(), strict=False)]
    points = list(zip(counts, costs, strict=False))[WARM_UP:]
    windows = [points[i : i + WINDOW] for i in range(0, len(points) - WINDOW + 1, WINDOW)]
    return [
        (
            float(np.mean([running for (running, _), _ in window])),
            float(np.mean([waiting for (_, waiting), _ in window])),
            float(np.mean([cost for _, cost in window])),
        )
        for window in windows
    ]


def fitted_line(samples: Sequence[tuple[float, float, float]]) -> dict[str, float]:
    """The line through ``samples`` with the least squares, none of its coefficients negative.

    Errors weigh less where there are more requests, and so do not depend on the cost: where a policy has little to do
    now and then, the line is the mean. A count that hardly varies, as of a policy that lets few run, has no slope.
    """
    counts = np.array([(1.0, running, waiting) for running, waiting, _ in samples])
    costs_us = np.array([cost for _, _, cost in samples]) * 1e6
    size = 50.0 + counts[:, 1] + counts[:, 2]
    varies = np.array([True, counts[:, 1].std() > LEAST_SPREAD, counts[:, 2].std() > LEAST_SPREAD])
    found, _ = nnls(counts * varies / size[:, None], costs_us / size)
    names = ("base_us", "running_us", "waiting_us")
    return {name: float(f"{value:.3g}") for name, value in zip(names, found, strict=True)}


def planning_table(quick: bool) -> dict[str, Any]:
    """See :mod:`sloserve.estimator.planning_cost`."""
    sizes, repeats = (TABLE_SIZES[1:3], 1) if quick else (TABLE_SIZES, TABLE_REPEATS)
    names = [name for name in policy_names() if policy_class(name).needs]
    policies = ["edf", "sjf"] if quick else [name for name in names if name not in PLANS_AS]

    def samples(policy: str, reused: bool) -> Samples:
        found: Samples = []
        for work, (n, seqs) in itertools.product(TABLE_WORKLOADS, sizes):
            again = [planning_samples(policy, n, seqs, work, reused=reused) for _ in range(repeats)]
            found += [min(windows, key=lambda window: window[2]) for windows in zip(*again, strict=True)]
        return found

    limits = samples(LIMITS, False)
    found = {policy: samples(policy, False) for policy in sorted(policies)}
    step = [x for policy in (policies if quick else REUSED) for x in samples(policy, True)]
    third_party = [x for policy in ("edf", "sjf", "priority", "andes", "econo") for x in found.get(policy, [])]
    lines = {policy: fitted_line(of_policy) for policy, of_policy in found.items()}
    lines |= {variant: dict(lines[policy]) for variant, policy in PLANS_AS.items() if policy in lines}
    measured: Any = provenance()
    machine = measured["hardware"]
    return {
        "hardware": f"{machine['cpus']} cores of {machine['cpu']}, Python {measured['python']}",
        "source": (
            f"python -m benchmarks.serving.plan_overhead --table, commit {measured['commit']}, vLLM {measured['vllm']}"
            ": thread CPU time; default is of edf, sjf, priority, andes and econo together"
        ),
        "step": fitted_line(step),
        "step_budget": fitted_line(limits),
        "default": fitted_line(third_party),
        "policies": dict(sorted(lines.items())),
        "fleet": planning_costs().fleet.model_dump(),  # measured by fleet_planner.py
    }


def main() -> None:
    logging.getLogger("vllm").setLevel(logging.ERROR)
    quick = "--quick" in sys.argv
    if "--table" in sys.argv:
        text = yaml.safe_dump(planning_table(quick), sort_keys=False, width=120)
        print(text)
        if not quick:
            TABLE.write_text(f"# Thread CPU time of planning, µs. What it covers: planning_cost.py.\n{text}")
        return
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
        write_result(RESULTS / "plan-overhead.json", {"repeats": repeats, "rows": rows})


if __name__ == "__main__":
    main()
