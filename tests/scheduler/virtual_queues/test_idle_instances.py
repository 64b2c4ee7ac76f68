"""Idle instances get what waits elsewhere, where that costs no deadline and the swap pays back."""

import math
from dataclasses import replace

import pytest

from sloserve.scheduler.virtual_queues.contract import FleetPlan, GroupSums, InstanceState, RunningSums
from sloserve.scheduler.virtual_queues.problem import PlanSettings
from sloserve.scheduler.virtual_queues.qlm_planner import QLMPlanner
from tests.scheduler.virtual_queues.fleets import SERVING_OF, group, instance, state

PLANNER = QLMPlanner(SERVING_OF, PlanSettings(use_idle=True))
BUSY = RunningSums(64, 0.0, 12_800.0, 6_400.0, 640_000.0, 100.0)
LATER = 86_400.0


def queues(
    groups: list[GroupSums], *instances: InstanceState, planner: QLMPlanner = PLANNER
) -> dict[str, tuple[int, ...]]:
    """As they are planned after a plan that has all groups on ``a``, which misses nothing."""
    last = FleetPlan({one.name: tuple(g.ref for g in groups if one.name == "a") for one in instances})
    return dict(planner.plan(replace(state(groups, *instances), last=last)).queues)


BATCHES = [group(k, "chat", 640, due_s=LATER) for k in range(4)]
ON_A, EMPTY = instance("a", "chat", BUSY), instance("b", None)


def test_an_empty_instance_gets_a_group_although_nothing_would_be_late() -> None:
    found = queues(BATCHES, ON_A, EMPTY)
    assert found == {"a": (0, 1, 2), "b": (3,)}, "the one that would have waited longest"
    kept = QLMPlanner(SERVING_OF, PlanSettings())
    assert queues(BATCHES, ON_A, EMPTY, planner=kept) == {"a": (0, 1, 2, 3), "b": ()}


def test_several_get_one_each_and_what_they_have_stays() -> None:
    found = queues(BATCHES, ON_A, EMPTY, instance("c", None))
    assert found == {"a": (0, 1), "b": (3,), "c": (2,)}
    again = PLANNER.plan(replace(state(BATCHES, ON_A, EMPTY, instance("c", None)), last=FleetPlan(found)))
    assert dict(again.queues) == found


def test_one_long_group_is_served_by_both() -> None:
    """The plan names it for the empty one; the busy one has room for others of its model."""
    assert queues(BATCHES[:1], ON_A, EMPTY) == {"a": (), "b": (0,)}


@pytest.mark.parametrize(
    ("groups", "idle"),
    [
        pytest.param([group(1, "chat", 16, due_s=LATER)], EMPTY, id="a swap takes longer than the work"),
        pytest.param(BATCHES, replace(instance("b", "code"), activated_s=-100.0), id="the only one with its model"),
        pytest.param(BATCHES, replace(EMPTY, ready_s=5.0), id="a swap is in progress"),
        pytest.param([replace(BATCHES[0], comes_over_s=60.0)], EMPTY, id="streams that are only expected"),
        pytest.param(BATCHES, replace(EMPTY, models={"tail": next(iter(EMPTY.models.values()))}), id="cannot serve it"),
    ],
)
def test_an_instance_stays_idle_where_that_is_better(groups: list[GroupSums], idle: InstanceState) -> None:
    assert queues(groups, ON_A, idle)["b"] == ()


def test_a_second_instance_of_a_model_that_is_not_waited_for_is_taken() -> None:
    idle = instance("b", "code"), instance("c", "code")
    found = queues(BATCHES, ON_A, *idle)
    assert sum(bool(found[name]) for name in "bc") == 1, "one of the two keeps the model"


def test_no_deadline_is_given_up() -> None:
    """The last group would be late after a swap: it is another that moves, or none."""
    urgent = [BATCHES[0], group(9, "chat", 320, due_s=40.0)]
    late = QLMPlanner(SERVING_OF, PlanSettings()).plan(state(urgent, ON_A, EMPTY)).late_s
    assert PLANNER.plan(state(urgent, ON_A, EMPTY)).late_s <= late + 1e-9


def test_without_deadlines_too() -> None:
    groups = [replace(one, first_due_s=math.inf, last_due_s=math.inf) for one in BATCHES]
    assert queues(groups, ON_A, EMPTY)["b"] == (3,)
