"""What a fleet may rely on in a plan."""

import math
from dataclasses import replace

import pytest

from sloserve.lso.plan import PlanError
from sloserve.scheduler.virtual_queues.contract import (
    FleetPlan,
    FleetState,
    GroupSums,
    InstanceState,
    ModelState,
)
from tests.scheduler.virtual_queues.checks import check_fleet_plan


def group(ref: int, model: str) -> GroupSums:
    return GroupSums(ref, model, 4, 400.0, 80.0, 2000.0, first_due_s=9.0, last_due_s=9.0, first_arrival_s=0.0)


def instance(name: str, active: str, *warm: str) -> InstanceState:
    return InstanceState(name, "h100", {**dict.fromkeys(warm, ModelState.WARM), active: ModelState.ACTIVE})


STATE = FleetState(
    now_s=0.0,
    groups=(group(1, "chat"), group(2, "code"), group(3, "chat"), group(4, "unknown")),
    instances=(instance("a", "chat", "code"), instance("b", "chat")),
    swap_s={},
)
PLAN = FleetPlan({"a": (2, 1), "b": (3,)}, unserved=(4,))


def test_a_plan_names_each_group_once() -> None:
    check_fleet_plan(PLAN, STATE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"queues": {"a": (2, 1), "c": (3,)}}, "no instance is named 'c'"),
        ({"queues": {"a": (2, 1), "b": (3, 9)}}, "there is no group 9"),
        ({"queues": {"a": (2, 1, 3), "b": (3,)}}, "group 3 is planned twice"),
        ({"queues": {"a": (1,), "b": (3, 2)}}, "group 2 asks for 'code', which it cannot serve"),
        ({"queues": {"a": (2,), "b": (3,)}}, r"groups \[1\] are in none"),
        ({"unserved": ()}, r"unserved: \[\]; no instance can serve \[4\]"),
        ({"unserved": (3, 4)}, r"unserved: \[3, 4\]; no instance can serve \[4\]"),
    ],
)
def test_a_plan_that_loses_or_repeats_a_group_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        check_fleet_plan(replace(PLAN, **change), STATE)  # type: ignore[arg-type]


def test_one_model_of_an_instance_is_active() -> None:
    assert instance("a", "chat", "code").active == "chat"
    empty = InstanceState("a", "h100", {"chat": ModelState.COLD})
    assert empty.active is None and empty.activated_s == -math.inf and not empty.running.requests
