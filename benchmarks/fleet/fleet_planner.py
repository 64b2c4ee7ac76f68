"""How near to the best plan of a fleet does the search come, and how long does it take with a long queue?

Usage: python -m benchmarks.fleet.fleet_planner [--quick] [--only exact|slack|queue] [--limit-s 60] [--out FILE]

``exact``: small fleets whose deadlines bind, planned by the mixed-integer program (HiGHS, a limit of wall time) and by
the search; both have one objective, weighted seconds of lateness and the price of swaps. ``gap`` is HiGHS's own,
0 where the optimum is proven; ``over`` is what the search's plan costs more than the program's, as a share, and
``over_s`` the same in seconds of penalty a request; ``edf`` has earliest deadline first in the same measure.

``slack``: the same where deadlines can be kept, so that the optimum has no lateness, and ``over_s`` says what there is
to say.

``queue``: 80 instances (half h100, half a100) and 40 models, half of them on two devices only in host memory; CPU
seconds of grouping a request, of the sums of all groups, and of whole plans: the first, and one after half of the
requests were served and as many came. Writes results/fleet_planner.json.gz, each part with the commit that it was
measured on; ``--quick`` writes nothing without ``--out``.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.arguments import parser_for
from benchmarks.fleet.edf_queues import edf_queues
from benchmarks.fleet.exact_plans import exact_queues
from benchmarks.publish import RESULTS, provenance, read_json, write_json
from sloserve.core.kernels.fleet import fleet_search
from sloserve.estimator.completion.group_time import Serving
from sloserve.estimator.completion.steady_state import EngineSize
from sloserve.estimator.step_time.profile import Profile, load_profile
from sloserve.scheduler.virtual_queues.contract import FleetState, GroupSums, InstanceState, ModelState
from sloserve.scheduler.virtual_queues.groups import Groups, Member
from sloserve.scheduler.virtual_queues.model_swap import model_swap
from sloserve.scheduler.virtual_queues.problem import PlanSettings, ProblemMaker
from sloserve.scheduler.virtual_queues.qlm_planner import QLMPlanner
from sloserve.scheduler.virtual_queues.swaps import swap_table

SEEDS = range(3)
SMALL = ((5, 2, 2), (6, 2, 3), (7, 2, 3), (8, 2, 3), (8, 3, 4), (10, 4, 4))
"""Groups, instances, models."""
LOADS = (0.8, 1.6)
"""Work over the time until the last deadline."""
SLACK_LOADS = (0.05, 0.1)
QUEUES = (1_000, 10_000, 40_000, 100_000, 400_000)
DEVICES = {"h100": load_profile("h100-llama2-7b"), "a100": load_profile("a100-llama2-7b")}
BATCH = 32.0
"""Mean batch that groups are cut by: groups of 128 requests."""


def serving(profile: Profile) -> Serving:
    return Serving(
        profile, EngineSize(profile.max_num_seqs, profile.max_num_batched_tokens, profile.kv_capacity_tokens)
    )


def fleet(instances: int, models: int, rng: np.random.Generator) -> tuple[ProblemMaker, QLMPlanner, FleetState]:
    names = [f"model{m}" for m in range(models)]
    serving_of = {(name, device): serving(profile) for device, profile in DEVICES.items() for name in names}
    swap = swap_table({(name, device): model_swap(profile) for device, profile in DEVICES.items() for name in names})
    found = []
    for i in range(instances):
        active = names[int(rng.integers(models))]
        states = {name: ModelState.WARM if rng.random() < 0.5 else ModelState.COLD for name in names}
        device = "a100" if i % 2 else "h100"
        found.append(InstanceState(f"instance{i}", device, {**states, active: ModelState.ACTIVE}))
    settings = PlanSettings(min_active_s=0.0)
    return (
        ProblemMaker(serving_of, settings),
        QLMPlanner(serving_of, settings),
        FleetState(0.0, (), tuple(found), swap),
    )


def small_groups(count: int, instances: int, models: int, load: float, rng: np.random.Generator) -> list[GroupSums]:
    """Groups of 20 to 400 requests; deadlines lie within what all of the work takes, over the load."""
    groups = []
    for ref in range(count):
        n, prompt, output = int(rng.integers(20, 400)), float(rng.uniform(50, 800)), float(rng.uniform(50, 400))
        due_s = float(rng.uniform(0.2, 1.0)) * count * 9.0 / instances / load
        groups.append(
            GroupSums(
                ref,
                f"model{int(rng.integers(models))}",
                n,
                n * prompt,
                n * output,
                n * output**2 * 1.3,
                due_s,
                due_s + float(rng.uniform(0, 5)),
                0.0,
                until_first_token=bool(rng.random() < 0.3),
            )
        )
    return groups


def against_exact(count: int, instances: int, models: int, load: float, seed: int, limit_s: float) -> dict[str, Any]:
    rng = np.random.default_rng([seed, count, instances])
    maker, _, state = fleet(instances, models, rng)
    groups = small_groups(count, instances, models, load, rng)
    problem = maker.problem(replace(state, groups=tuple(groups)), groups)
    exact_s, exact = timed(lambda: exact_queues(problem, limit_s))
    settings = maker.settings
    search_s, found = timed(lambda: fleet_search(problem, moves=settings.moves(count)))
    requests = sum(group.requests for group in groups)
    edf = fleet_search(problem, edf_queues(problem))
    best = exact.found.cost
    return {
        "groups": count,
        "instances": instances,
        "models": models,
        "load": load,
        "seed": seed,
        "gap": round(exact.gap, 6),
        "closed": exact.closed,
        "exact_late": round(exact.found.late, 3),
        "exact_cost": round(best, 3),
        "search_cost": round(found.cost, 3),
        "over": round(found.cost / best - 1.0, 6) if best > 1e-6 else None,
        "over_s": round((found.cost - best) / requests, 6),
        "edf_over_s": round((edf.cost - best) / requests, 3),
        "exact_cpu_s": round(exact_s, 3),
        "search_cpu_ms": round(search_s * 1e3, 3),
    }


def member(request: int, at_s: float, models: int, rng: np.random.Generator) -> Member:
    """Half of the requests are due in 30 to 120 s, half in 10 to 30 minutes; a few models get most of them."""
    model = f"model{int(models * rng.random() ** 2)}"
    slo_s = float(rng.choice([30.0, 60.0, 120.0, 600.0, 1800.0]))
    output = float(rng.lognormal(4.8, 0.7))
    return Member(request, model, float(rng.lognormal(5.0, 1.0)), output, output / 2, at_s, slo_s)


def with_queue(requests: int) -> dict[str, Any]:
    rng = np.random.default_rng(requests)
    _, planner, state = fleet(80, 40, rng)
    groups = Groups(batch=BATCH)
    members = [member(k, k / 5000.0, 40, rng) for k in range(requests + requests // 2)]
    add_s, _ = timed(lambda: [groups.add(one) for one in members[:requests]])
    sums_s, sums = timed(groups.sums)
    now = requests / 5000.0
    state = replace(state, now_s=now, groups=sums)
    plan_s, plan = timed(lambda: planner.plan(state))
    for one in members[: requests // 2]:
        groups.remove(one.request)
    for one in members[requests:]:
        groups.add(one)
    pieces = [timed(groups.tidy)[0] for _ in range(400)]
    later = replace(state, now_s=now + 5.0, groups=groups.sums(), last=plan)
    again_s, again = timed(lambda: planner.plan(later))
    return {
        "requests": requests,
        "groups": len(sums),
        "add_us": round(add_s / requests * 1e6, 2),
        "sums_ms": round(sums_s * 1e3, 2),
        "plan_ms": round(plan_s * 1e3, 1),
        "sums_and_plan_us_a_request": round((sums_s + plan_s) / requests * 1e6, 2),
        "late_s_a_request": round(plan.late_s / requests, 3),
        "instances_needed": plan.instances_needed,
        "replan_ms": round(again_s * 1e3, 1),
        "replanned_by": again.solver,
        "tidy_ms_worst": round(max(pieces) * 1e3, 2),
    }


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds of this thread, and what came of it."""
    began = time.process_time()
    found = call()
    return time.process_time() - began, found


def exact_rows(quick: bool, limit_s: float, loads: Sequence[float] = LOADS) -> Iterator[dict[str, Any]]:
    for size in ((4, 2, 2),) if quick else SMALL:
        for load in loads:
            for seed in range(1) if quick else SEEDS:
                yield against_exact(*size, load, seed, limit_s)


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=("exact", "slack", "queue"))
    parser.add_argument("--limit-s", type=float, default=60.0, help="of wall time, for each exact plan")
    parser.add_argument("--out", type=Path, help="instead of fleet_planner.json")
    given = parser.parse_args()
    path = given.out or RESULTS / "fleet_planner.json.gz"
    result = read_json(path)
    parts = {
        "exact": lambda: exact_rows(given.quick, given.limit_s),
        "slack": lambda: exact_rows(given.quick, given.limit_s, SLACK_LOADS),
        "queue": lambda: map(with_queue, (1_000,) if given.quick else QUEUES),
    }
    for part, measured in parts.items():
        if given.only not in (None, part):
            continue
        rows = []
        for row in measured():
            rows.append(row)
            print(json.dumps(row), flush=True)
        if given.out or not given.quick:
            result[part] = {**provenance(), "limit_s": given.limit_s, "batch": BATCH, "rows": rows}
            write_json(path, result, sort_keys=True)


if __name__ == "__main__":
    main()
