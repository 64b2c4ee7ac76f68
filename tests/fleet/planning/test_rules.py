"""Rules in place of the planner's search: who turns to which model, and when."""

from dataclasses import replace

import pytest

from sloserve.core.errors import ConfigError
from sloserve.fleet.file import parse_fleet
from sloserve.fleet.planning.rules import RulePlanner, planner_of
from sloserve.fleet.planning.snapshot import plan_settings, serving_of
from sloserve.scheduler.virtual_queues.contract import (
    FleetPlan,
    FleetState,
    GroupSums,
    InstanceState,
    ModelState,
    RunningSums,
)
from sloserve.scheduler.virtual_queues.swaps import swap_table

FLEET = parse_fleet(
    """
models: {chat: {profile: h100-llama3-8b}, code: {profile: h100-llama3-8b}, legal: {profile: h100-llama3-8b}}
hosts: {a: {device: h100, devices: 2, host_memory_gib: 64}}
switching: {min_active_s: 5, max_wait_s: 30}
"""
)
NOW_S = 1000.0
REF = {"chat": 1, "code": 2, "legal": 3}


def waits(model: str, since_s: float = 1.0, due_s: float = 60.0) -> GroupSums:
    at_s, due = NOW_S - since_s, NOW_S + due_s
    return GroupSums(REF[model], model, 4, 400.0, 400.0, 40_000.0, due, due, at_s)


def has(
    name: str, active: str, running: int = 4, active_for_s: float = 100.0, ready_in_s: float = 0.0
) -> InstanceState:
    models = dict.fromkeys(FLEET.models, ModelState.WARM) | {active: ModelState.ACTIVE}
    ready_s = NOW_S + ready_in_s if ready_in_s else float("-inf")
    return InstanceState(name, "h100", models, NOW_S - active_for_s, ready_s, RunningSums(running))


def plan(text: str, groups: list[GroupSums], *instances: InstanceState, last: FleetPlan | None = None) -> FleetPlan:
    planner = planner_of(text, serving_of(FLEET), plan_settings(FLEET))
    assert isinstance(planner, RulePlanner)
    return planner.plan(FleetState(NOW_S, tuple(groups), instances, swap_table(FLEET.swaps()), last))


def queues(*args: object, **given: object) -> list[tuple[int, ...]]:
    found = plan(*args, **given)  # type: ignore[arg-type]
    return [found.queues["a/0"], found.queues["a/1"]]


BUSY = has("a/0", "chat"), has("a/1", "code", running=9)


def test_on_demand_a_model_that_is_active_nowhere_takes_an_instance_at_once() -> None:
    assert queues("on-demand", [waits("chat"), waits("code")], *BUSY) == [(1,), (2,)]
    assert queues("on-demand", [waits("chat"), waits("legal", 0.0)], *BUSY) == [(1,), (3,)]
    # One of several of its model is given up first, and an idle one before that.
    chats = has("a/0", "chat", running=9), has("a/1", "chat", running=1)
    assert queues("on-demand", [waits("legal"), waits("chat")], *chats) == [(1,), (3,)]
    idle = has("a/0", "chat", running=0), has("a/1", "code")
    assert queues("on-demand", [waits("legal"), waits("code")], *idle) == [(3,), (2,)]


def test_a_turn_that_was_begun_is_gone_on_with_and_no_second_one_begins() -> None:
    begun = FleetPlan({"a/0": (1,), "a/1": (3,)})
    draining = has("a/0", "chat"), has("a/1", "code", ready_in_s=9.0)
    assert queues("on-demand", [waits("chat"), waits("legal")], *draining, last=begun) == [(1,), (3,)]
    comes = has("a/0", "chat"), has("a/1", "legal", running=0, active_for_s=0.0, ready_in_s=3.0)
    assert queues("on-demand", [waits("chat"), waits("legal")], *comes, last=begun) == [(1,), (3,)]
    young = has("a/0", "chat", active_for_s=4.0), has("a/1", "code", active_for_s=4.0)
    assert queues("on-demand", [waits("legal")], *young) == [(), ()]


def test_collate_waits_for_an_idle_instance_or_for_its_bound() -> None:
    groups = [waits("legal", since_s=11.0), waits("chat", since_s=20.0), waits("code")]
    assert queues("collate:max_wait_s=12", groups, *BUSY) == [(1,), (2,)]
    assert queues("collate:max_wait_s=10", groups, *BUSY) == [(3,), (2,)]
    assert queues("collate", [waits("legal", 29.0)], *BUSY) == [(), ()]
    assert queues("collate", [waits("legal", 31.0)], *BUSY) == [(3,), ()]


def test_edf_turns_to_a_model_when_its_first_request_must_begin() -> None:
    assert queues("edf", [waits("legal", due_s=60.0), waits("chat", due_s=90.0)], *BUSY) == [(1,), ()]
    assert queues("edf", [waits("legal", due_s=6.0), waits("code", due_s=90.0)], *BUSY) == [(3,), (2,)]
    # Not from one for whose model something is due sooner.
    assert queues("edf", [waits("legal", due_s=6.0), waits("chat", due_s=5.0)], *BUSY) == [(1,), (3,)]


def group(ref: int, requests: int, due_s: float, since_s: float = 1.0) -> GroupSums:
    tokens = 400.0 * requests
    due = NOW_S + due_s
    return GroupSums(ref, "chat", requests, tokens, tokens, 400.0 * tokens, due, due, NOW_S - since_s)


CHATS = has("a/0", "chat"), has("a/1", "chat")


def test_sa_puts_first_what_meets_a_deadline_that_serving_by_arrival_would_miss() -> None:
    groups = [group(7, 900, 900.0, since_s=9.0), group(8, 2, 20.0, since_s=1.0)]
    assert queues("sa", groups, CHATS[0], has("a/1", "code"))[0] == (8, 7)
    assert queues("on-demand", groups, CHATS[0], has("a/1", "code"))[0] == (7, 8)


def test_sa_shares_groups_by_free_memory_and_serves_each_once() -> None:
    full = replace(CHATS[0], running=RunningSums(4, context_tokens=400_000.0))
    groups = [group(ref, 20, 600.0) for ref in range(4)]
    assert [len(queue) for queue in queues("sa", groups, *CHATS)] == [2, 2]
    first, second = queues("sa", groups, full, CHATS[1])
    assert len(second) > len(first) and sorted((*first, *second)) == [0, 1, 2, 3]


def test_sa_has_a_queue_for_a_group_larger_than_any_memory_and_for_full_instances() -> None:
    over = RunningSums(4, context_tokens=9e9)
    full = [replace(instance, running=over) for instance in CHATS]
    assert sorted(sum(queues("sa", [group(1, 10**5, 60.0), group(2, 1, 60.0)], *full), ())) == [1, 2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("random", "'random' is unknown; known here: qlm, on-demand, collate, edf, sa"),
        ("edf:max_wait_s=3", "option 'max_wait_s' is unknown; only collate has one"),
        ("collate:max_wait_s=soon", "max_wait_s: 'soon' is not a number of seconds >= 0"),
    ],
)
def test_a_name_that_is_none_is_refused_in_the_file(text: str, message: str) -> None:
    section = f"models: {{a: {{profile: h100-llama3-8b}}}}\nhosts: {{n: {{device: h100, devices: 1}}}}\nplanner: {text}"
    with pytest.raises(ConfigError, match=message):
        parse_fleet(section)
