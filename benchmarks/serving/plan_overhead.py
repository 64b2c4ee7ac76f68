"""What does the simulator charge for planning? Measured for every installed policy on vLLM's scheduler.

Usage: python -m benchmarks.serving.plan_overhead [--quick]

Requests come at once to a virtual engine with scarce KV, in several numbers of running and waiting ones. Timed in
thread CPU time is what the engine pays for a plan: rows gathered, the plan made, checked and carried out. Writes the
tables that the simulator reads (estimator/planning_cost.yaml of sloserve and of benchmarks): lines of non-negative
least squares through means over steps.
"""

import itertools
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from scipy.optimize import nnls

from benchmarks.arguments import is_quick
from benchmarks.publish import provenance
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.estimator.planning_cost import planning_costs
from sloserve.estimator.step_time.profile import load_profile
from sloserve.scheduler.registry import policy_class, policy_names
from sloserve.sim.workloads.workload_registry import workload

WARM_UP = 5
PROFILE = "a100-opt-13b"
TABLES = {
    package: Path(__file__).parents[2] / package / "estimator" / "planning_cost.yaml"
    for package in ("sloserve", "benchmarks")
}
"""The file that has the rows of a package's policies."""
SIZES = ((16, 256), (64, 256), (200, 256), (200, 32), (600, 128), (1500, 64), (2000, 256))
"""Requests that come at once, and how many of them may run."""
LATER, GAP_S = 100, 0.05
"""Requests that come after these, and seconds between them: some policies do more when one comes."""
STEPS = 80
WORKLOADS = ("reading-speed", "sharegpt-poisson")
"""Readers, and the default classes."""
REPEATS = 2
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


def timed(call: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    def call_timed(*args: Any, **kwargs: Any) -> Any:
        began = time.thread_time()
        found = call(*args, **kwargs)
        spent.append(time.thread_time() - began)
        return found

    return call_timed


def make_engine(policy: str, max_num_seqs: int = 512, work: str = "reading-speed") -> tuple[Any, Any]:
    """A virtual engine with scarce KV, and its workload."""
    from sloserve.vllm_plugin.virtual.engine import VirtualEngine

    profile = load_profile(PROFILE)
    settings = EngineSettings.of_profile(profile, max_num_seqs=max_num_seqs)
    source = workload(work)
    config = None if policy == "stock" else {"sloserve": {"policy": policy, **source.slos.table.as_config()}}
    return VirtualEngine(settings, profile, config), source


def planning_samples(policy: str, n: int, max_num_seqs: int, work: str, *, reused: bool) -> Samples:
    """What ``policy`` costs in the first steps: each fresh plan, or if ``reused`` each step that reuses the first one
    and books what came of it.
    """
    engine, source = make_engine(policy, max_num_seqs, work)
    planner: Any = engine.scheduler.planner
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
        if len(counts) >= STEPS + WARM_UP:
            raise _Enough
        counts.append((planner.table.num_running, len(planner.table.slot_of) - planner.table.num_running))
        return schedule()

    scheduler.schedule = counted_schedule
    try:
        at_once = source.requests(n + LATER, 0, 1e6)
        later = [replace(r, arrival_s=GAP_S * i) for i, r in enumerate(at_once[n:], 1)]
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
    sizes, repeats = (SIZES[1:3], 1) if quick else (SIZES, REPEATS)
    names = [name for name in policy_names() if policy_class(name).needs]
    policies = ["edf", "sjf"] if quick else [name for name in names if name not in PLANS_AS]

    def samples(policy: str, reused: bool) -> Samples:
        found: Samples = []
        for work, (n, seqs) in itertools.product(WORKLOADS, sizes):
            again = [planning_samples(policy, n, seqs, work, reused=reused) for _ in range(repeats)]
            found += [min(windows, key=lambda window: window[2]) for windows in zip(*again, strict=True)]
        return found

    limits = samples(LIMITS, False)
    found = {policy: samples(policy, False) for policy in sorted(policies)}
    step = [x for policy in (policies if quick else REUSED) for x in samples(policy, True)]
    third_party = [x for policy in ("edf", "sjf", "priority", "andes", "econo") for x in found.get(policy, [])]
    lines = {policy: fitted_line(of_policy) for policy, of_policy in found.items()}
    lines |= {variant: dict(lines[policy]) for variant, policy in PLANS_AS.items() if policy in lines}
    for policy, known in planning_costs().policies.items():
        if known.cell_us and policy in lines:
            lines[policy]["cell_us"] = known.cell_us
    measured: Any = provenance()
    machine = measured["hardware"]
    return {
        "hardware": f"{machine['cpus']} cores of {machine['cpu']}, Python {measured['python']}",
        "source": (
            f"python -m benchmarks.serving.plan_overhead, commit {measured['commit']}, vLLM {measured['vllm']}"
            ": thread CPU time; default is of edf, sjf, priority, andes and econo together"
        ),
        "step": fitted_line(step),
        "step_budget": fitted_line(limits),
        "default": fitted_line(third_party),
        "policies": dict(sorted(lines.items())),
        "fleet": planning_costs().fleet.model_dump(),  # measured by fleet_planner.py
    }


def tables(table: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the part of ``table`` that each package keeps: the rows of its policies, and all else in our own."""
    found: dict[str, dict[str, Any]] = {}
    for package in TABLES:
        rows = {
            name: line
            for name, line in table["policies"].items()
            if policy_class(name).__module__.startswith(f"{package}.")
        }
        kept = table if package == "sloserve" else {key: table[key] for key in ("hardware", "source")}
        found[package] = kept | {"policies": rows}
    return found


def text_of(table: dict[str, Any]) -> str:
    """Return a table as YAML."""
    return yaml.safe_dump(table, sort_keys=False, width=120)


def main() -> None:
    logging.getLogger("vllm").setLevel(logging.ERROR)
    quick = is_quick(__doc__)
    table = planning_table(quick)
    print(text_of(table))
    for package, part in () if quick else tables(table).items():
        head = "# Thread CPU time of planning, µs. What it covers: planning_cost.py."
        TABLES[package].write_text(f"{head}\n{text_of(part)}", encoding="utf-8")


if __name__ == "__main__":
    main()
