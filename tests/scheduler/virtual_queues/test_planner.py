"""The planner: deadlines first, models together, stable while nothing is missed, and a signal when nothing helps."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.scheduler.virtual_queues.contract import FleetState, RunningSums
from sloserve.scheduler.virtual_queues.problem import PlanSettings
from sloserve.scheduler.virtual_queues.qlm_planner import QLMPlanner
from tests.scheduler.virtual_queues.checks import check_fleet_plan
from tests.scheduler.virtual_queues.fleets import MODELS, SERVING_OF, cold, group, instance, state


def planner(**settings: float) -> QLMPlanner:
    return QLMPlanner(SERVING_OF, PlanSettings(**settings))  # type: ignore[arg-type]


def test_a_tight_deadline_goes_before_an_older_loose_one() -> None:
    plan = planner().plan(state([group(1, "chat", 640, due_s=300.0), group(2, "chat", 8, due_s=10.0)]))
    assert plan.queues == {"a": (2, 1)} and plan.late_s == 0.0 and plan.instances_needed is None


def test_groups_of_a_model_are_served_together_where_swaps_would_cost_deadlines() -> None:
    """By deadline alone this is four swaps."""
    groups = [group(k, MODELS[k % 2], 64, due_s=20.0 + k) for k in range(6)]
    (queue,) = planner().plan(state(groups)).queues.values()
    assert [k % 2 for k in queue] == [0, 0, 0, 1, 1, 1]


def test_models_are_served_where_they_are_active() -> None:
    groups = [group(k, MODELS[k % 2], 64, due_s=60.0) for k in range(4)]
    plan = planner().plan(state(groups, instance("a", "chat"), instance("b", "code")))
    assert {name: {k % 2 for k in queue} for name, queue in plan.queues.items()} == {"a": {0}, "b": {1}}


def test_a_swap_waits_until_what_streams_has_ended() -> None:
    """The reply of 10,000 tokens holds its model for over a minute, so that the deadline needs the other instance."""
    busy = RunningSums(1, 0.0, 100.0, 10_000.0, 1e8, longest_output_tokens=10_000.0)
    at = (instance("a", "chat", busy), cold(instance("b", "chat"), "code"))
    assert planner().plan(state([group(1, "code", 1, due_s=25.0)], *at)).queues == {"a": (), "b": (1,)}
    idle = (instance("a", "chat"), at[1])
    assert planner().plan(state([group(1, "code", 1, due_s=25.0)], *idle)).queues == {"a": (1,), "b": ()}


def test_a_model_that_just_came_stays() -> None:
    just = replace(instance("a", "chat"), activated_s=99.0)
    at = (just, cold(instance("b", "chat"), "code"))
    there = state([group(1, "code", 1, due_s=130.0)], *at, now_s=100.0)
    assert planner(min_active_s=60.0).plan(there).queues["b"] == (1,)
    assert planner(min_active_s=0.0).plan(there).queues["a"] == (1,)


def test_the_last_plan_is_gone_on_with_while_it_misses_nothing() -> None:
    """Another order would do as well; new groups are put into the old one."""
    groups = [group(1, "chat", 64, due_s=500.0), group(2, "chat", 64, due_s=400.0)]
    first = replace(planner().plan(state(groups)), queues={"a": (1, 2)})
    again = planner().plan(replace(state([*groups, group(3, "chat", 64, due_s=450.0)]), last=first))
    assert again.solver == "kept" and [ref for ref in again.queues["a"] if ref != 3] == [1, 2]
    # Now 2 would be late behind 1.
    tight = [group(1, "chat", 640, due_s=500.0), group(2, "chat", 64, due_s=12.0)]
    moved = planner().plan(replace(state(tight), last=first))
    assert (moved.solver, moved.queues) == ("search", {"a": (2, 1)})


def test_a_tail_model_without_deadlines_waits_for_its_turn_and_no_longer() -> None:
    """Chat that is due soon goes first, until the tail's wait is over."""
    groups = [group(1, "tail", 4, arrival_s=0.0), group(2, "chat", 640, due_s=1000.0)]
    early = planner(tail_max_wait_s=300.0).plan(state(groups))
    assert early.queues == {"a": (2, 1)}
    groups[1] = replace(groups[1], requests=6400, prompt_tokens=1.28e6, output_tokens=1.28e6, output_tokens2=2.56e8)
    assert planner(tail_max_wait_s=60.0).plan(state(groups)).queues == {"a": (1, 2)}


@pytest.mark.slow
def test_more_than_the_fleet_can_do_says_how_many_instances_would() -> None:
    groups = [group(k, "chat", 256, due_s=30.0) for k in range(16)]
    plan = planner().plan(state(groups))
    assert plan.late_s > 0 and plan.instances_needed is not None
    more = [instance("a"), *(instance(f"new{k}", None) for k in range(plan.instances_needed - 1))]
    assert planner().plan(state(groups, *more)).late_s <= sum(g.requests for g in groups)
    hopeless = planner().plan(state([group(1, "chat", 4, due_s=-5.0)]))
    assert hopeless.late_s > 0 and hopeless.instances_needed is None


def test_a_cached_prefix_is_worth_going_to() -> None:
    heavy = replace(group(1, "chat", 64), prompt_tokens=64 * 8000.0, first_due_s=14.0, last_due_s=14.0)
    both = (instance("a"), instance("b"))
    assert planner().plan(state([heavy], *both)).late_s > 0
    plan = planner().plan(state([replace(heavy, cached_tokens={"b": 64 * 7900.0})], *both))
    assert plan.queues["b"] == (1,) and plan.late_s == 0.0


def test_no_instance_and_no_group_are_plans_too() -> None:
    assert planner().plan(state([])).queues == {"a": ()}
    nowhere = planner().plan(FleetState(0.0, (group(1, "chat", 1),), (), {}))
    assert nowhere.unserved == (1,) and not nowhere.queues
    assert planner().plan(state([group(1, "unknown", 1)])).unserved == (1,)


GROUPS = st.lists(
    st.tuples(st.sampled_from(MODELS), st.integers(1, 300), st.sampled_from([5.0, 60.0, 900.0, math.inf])), max_size=12
)


@pytest.mark.slow
@given(before=GROUPS, after=GROUPS, instances=st.integers(1, 4), lost=st.integers(0, 1))
def test_every_plan_is_whole_and_a_new_leader_makes_the_same(
    before: list[tuple[str, int, float]], after: list[tuple[str, int, float]], instances: int, lost: int
) -> None:
    """Groups come, go and shrink, an instance is lost; what comes out is a plan, and the same from another object."""
    at = [instance(f"i{k}", MODELS[k % 3]) for k in range(instances)]
    groups = [group(k, *one) for k, one in enumerate(before)]
    first = planner().plan(state(groups, *at))
    check_fleet_plan(first, state(groups, *at))
    rest = [group(k, one[0], *two[1:]) for k, (one, two) in enumerate(zip(before, after, strict=False)) if k % 3]
    rest += [group(100 + k, *one) for k, one in enumerate(after)]
    then = replace(state(rest, *(at[lost:] or at), now_s=7.0), last=first)
    plan = planner().plan(then)
    check_fleet_plan(plan, then)
    assert planner().plan(then) == plan


@pytest.mark.parametrize("change", [{"chance": 1.0}, {"min_active_s": -1.0}, {"swap_price": -0.1}])
def test_settings_out_of_range_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        planner(**change)
