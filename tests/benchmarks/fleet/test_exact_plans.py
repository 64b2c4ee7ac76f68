"""The mixed-integer program against every plan there is, and the search against the program."""

import math

import pytest

from benchmarks.fleet.edf_queues import edf_queues
from benchmarks.fleet.exact_plans import exact_queues
from sloserve.core.kernels.fleet import fleet_search
from tests.csrc.test_fleet_search import every_plan, problem


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "groups", "instances", "models"), [(0, 4, 2, 2), (1, 4, 1, 3), (2, 3, 3, 2)])
def test_finds_the_best_of_all_plans(seed: int, groups: int, instances: int, models: int) -> None:
    p = problem(seed, groups, instances, models, tightness=1.5)
    result = exact_queues(p)
    least = every_plan(p)
    assert result.closed and result.found.cost == pytest.approx(least, rel=1e-4, abs=1e-4)
    assert result.bound <= least * (1 + 1e-4) + 1e-4


@pytest.mark.slow
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
