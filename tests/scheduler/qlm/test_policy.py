"""QLM on one engine: groups in the order of a plan, requests inside as they came or by deadline, preemption."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sloserve.scheduler.policy import Plan, Snapshot, check_plan
from sloserve.scheduler.qlm.policy import QLM

Make = Callable[..., Snapshot]
NOW_S = 1000.0
SOON = {"arrival_s": NOW_S - 1.0, "e2e_s": 9.0, "prompt_tokens": 50}
LATER = {"arrival_s": NOW_S - 300.0, "e2e_s": 900.0, "prompt_tokens": 50}


def planned(at: Snapshot, times: int = 4, **settings: Any) -> Plan:
    """The plan once the virtual queue has been searched, which takes some steps."""
    policy = QLM(QLM.Settings(**settings))
    for slot in at.waiting.tolist():
        policy.arrived(at.rows, slot, NOW_S)
    for _ in range(times):
        made = policy.plan(at, NOW_S)
        check_plan(made, at)
    return made


def order(plan: Plan) -> list[int]:
    assert plan.waiting is not None
    return plan.waiting.tolist()


@pytest.mark.parametrize("times", [1, 4])
def test_a_group_that_is_due_soon_goes_first_before_and_after_a_plan(times: int, snapshot: Make) -> None:
    assert order(planned(snapshot([LATER, LATER, SOON, LATER, SOON]), times)) == [2, 4, 0, 1, 3]


def test_inside_a_group_as_they_came_or_by_deadline(snapshot: Make) -> None:
    rows = [{**SOON, "e2e_s": e2e} for e2e in (9.0, 8.0, 10.0, 7.5)]
    assert order(planned(snapshot(rows))) == [0, 1, 2, 3]
    assert order(planned(snapshot(rows), inside="edf")) == [3, 1, 0, 2]


def test_without_a_deadline_class_decides(snapshot: Make) -> None:
    free = {"arrival_s": NOW_S - 1.0}
    rows = [{**free, "class_rank": 1}, free, {**SOON, "class_rank": 1}, free]
    assert order(planned(snapshot(rows))) == [1, 3, 2, 0]


def test_running_requests_give_way_to_a_head_that_is_due_much_sooner(snapshot: Make) -> None:
    full: dict[str, Any] = {"max_num_seqs": 2}
    at = snapshot([SOON], running=[LATER, LATER], **full)
    assert planned(at).preempt.size == 1
    assert not planned(at, preempt=False).preempt.size
    assert not planned(at, preempt_margin_s=10_000.0).preempt.size
    late = {**SOON, "arrival_s": NOW_S - 20.0}
    assert not planned(snapshot([late], running=[LATER, LATER], **full)).preempt.size


def test_an_admitted_request_leaves_its_group_and_a_preempted_one_is_first_again(snapshot: Make) -> None:
    at = snapshot([SOON, SOON, SOON])
    policy = QLM()
    for slot in range(3):
        policy.arrived(at.rows, slot, NOW_S)
    ref = policy._groups._group_of[0].ref
    at.rows.state[0] = 3  # running
    policy.plan(Snapshot(at.rows, np.array([1, 2]), np.array([0]), at.engine), NOW_S)
    assert policy._groups.requests == 2 and 0 not in policy._groups._group_of
    at.rows.state[0] = 2  # preempted
    made = policy.plan(at, NOW_S)
    assert policy._groups._group_of[0].ref == ref and order(made)[0] == 0
    for slot in range(3):
        policy.finished(at.rows, slot, NOW_S)
    assert not policy._groups.requests and not len(policy._groups)


@pytest.mark.parametrize("change", [{"inside": "lifo"}, {"delta": 0.0}, {"replan_s": -1.0}, {"length": "guess"}])
def test_settings_out_of_range_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        QLM.Settings(**change)
