"""The mixed-integer program against every plan there is, and the search against the program."""

import math

import pytest

from sloserve.kernels.fleet import fleet_search
from sloserve.virtual_queues.contract import check_fleet_plan
from sloserve.virtual_queues.edf_queues import edf_queues
from sloserve.virtual_queues.exact import ExactPlanner, exact_queues
from tests.csrc.test_fleet_search import every_plan, problem
from tests.virtual_queues.fleets import MODELS, SERVING_OF, group, instance, state


@pytest.mark.parametrize(("seed", "groups", "instances", "models"), [(0, 4, 2, 2), (1, 4, 1, 3), (2, 3, 3, 2)])
def test_finds_the_best_of_all_plans(seed: int, groups: int, instances: int, models: int) -> None:
    p = problem(seed, groups, instances, models, tightness=1.5)
    result = exact_queues(p)
    least = every_plan(p)
    assert result.closed and result.found.cost == pytest.approx(least, rel=1e-4, abs=1e-4)
    assert result.bound <= least * (1 + 1e-4) + 1e-4


def test_nothing_found_in_time_is_earliest_deadline_first() -> None:
    p = problem(3, 12, 4, 4, tightness=3.0)
    result = exact_queues(p, time_limit_s=0.0)
    assert result.gap == math.inf and result.found.queues == edf_queues(p)


@pytest.mark.parametrize("seed", range(4))
def test_earliest_deadline_first_is_what_it_says(seed: int) -> None:
    """Deadlines ascend in each queue, and no group would have ended sooner elsewhere."""
    p = problem(seed, 12, 3, 3)
    queues = edf_queues(p)
    assert sorted(g for queue in queues for g in queue) == list(range(12))
    for queue in queues:
        assert [p.last_due_s[g] for g in queue] == sorted(p.last_due_s[queue])
    assert fleet_search(p, queues, moves=4000).cost <= fleet_search(p, queues).cost


def test_as_a_planner() -> None:
    groups = [group(k, MODELS[k % 2], 64, due_s=12.0 + k) for k in range(4)]
    there = state(groups, instance("a", "chat"), instance("b", "code"))
    plan = ExactPlanner(SERVING_OF).plan(there)
    check_fleet_plan(plan, there)
    assert (plan.solver, {name: {k % 2 for k in q} for name, q in plan.queues.items()}) == (
        "exact",
        {"a": {0}, "b": {1}},
    )
