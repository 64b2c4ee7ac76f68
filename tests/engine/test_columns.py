"""What a request's row says of its targets."""

from types import SimpleNamespace

import numpy as np
import pytest

from sloserve.core.slo import DEFAULT_CLASSES, DUE_NOW_S, MAX_TARGET_S, Targets
from sloserve.core.stated import StatedSLO
from sloserve.core.tasks import TaskCall
from sloserve.engine.columns import static_columns
from sloserve.scheduler.registry import make_policy
from tests.snapshots import Request, make_snapshot

NOW_S = 1000.0


def row(slo_class: str, *, arrival_s: float = NOW_S - 30.0, **targets: float) -> Request:
    request = SimpleNamespace(arrival_time=arrival_s, priority=0, num_prompt_tokens=100, max_tokens=200)
    slo = DEFAULT_CLASSES.slo(slo_class, Targets(**targets))
    return static_columns(request, StatedSLO(slo, DEFAULT_CLASSES.names.index(slo_class), None))


def task_row(call: TaskCall, **targets: float) -> Request:
    """Return the row of a call of a task that arrived 30 s ago."""
    request = SimpleNamespace(arrival_time=NOW_S - 30.0, priority=0, num_prompt_tokens=100, max_tokens=200)
    slo = DEFAULT_CLASSES.slo("interactive", Targets(**targets))
    return static_columns(request, StatedSLO(slo, 1, None, call=call, task=3))


def test_a_first_token_that_is_due_now_is_no_target_and_the_others_stay() -> None:
    found = row("batch", ttft_s=DUE_NOW_S, tpot_s=0.1, e2e_s=60.0)
    assert np.isnan(found["ttft_s"]) and (found["tpot_s"], found["e2e_s"]) == (0.1, 60.0)
    assert row("batch", ttft_s=1.5 * DUE_NOW_S)["ttft_s"] == 1.5 * DUE_NOW_S


def test_what_is_left_of_the_deadline_of_a_task_is_the_target_of_its_call() -> None:
    assert task_row(TaskCall("t", due_s=NOW_S + 50.0))["e2e_s"] == 80.0
    assert task_row(TaskCall("t", due_s=NOW_S + 50.0), e2e_s=20.0)["e2e_s"] == 20.0
    assert task_row(TaskCall("t", due_s=NOW_S - 10.0), e2e_s=60.0)["e2e_s"] == 20.0
    found = task_row(TaskCall("t", due_s=NOW_S + 50.0, calls=7, last=True))
    assert (found["task"], found["task_due_s"], found["task_calls"], found["task_last"]) == (3, NOW_S + 50.0, 7, True)


def test_the_time_until_a_task_is_due_is_the_own_time_of_its_last_call_alone() -> None:
    assert np.isnan(task_row(TaskCall("t", due_s=NOW_S + 50.0))["own_e2e_s"])
    assert task_row(TaskCall("t", due_s=NOW_S + 50.0), e2e_s=90.0)["own_e2e_s"] == 90.0
    assert task_row(TaskCall("t", due_s=NOW_S + 50.0, last=True), e2e_s=90.0)["own_e2e_s"] == 80.0
    assert task_row(TaskCall("t", due_s=NOW_S + 50.0, calls=1))["own_e2e_s"] == 80.0
    assert task_row(TaskCall("t", due_s=NOW_S - 31.0, last=True), e2e_s=90.0)["own_e2e_s"] == 90.0
    assert row("batch", e2e_s=60.0)["own_e2e_s"] == 60.0


def test_a_deadline_in_a_far_future_is_no_larger_target_than_a_request_may_have() -> None:
    assert task_row(TaskCall("t", due_s=2.5e11))["e2e_s"] == MAX_TARGET_S


def test_a_deadline_that_has_passed_and_a_task_without_one_are_no_target() -> None:
    for call in (TaskCall("t", due_s=NOW_S - 31.0), TaskCall("t", due_s=NOW_S - 30.0), TaskCall("t")):
        assert np.isnan(task_row(call)["e2e_s"])
    assert task_row(TaskCall("t", due_s=NOW_S - 31.0), e2e_s=60.0)["e2e_s"] == 60.0


def order(policy: str, requests: list[Request]) -> list[int]:
    """Slots in the order of admission."""
    at = make_snapshot(requests)
    rule = make_policy(policy, {})
    for slot in at.waiting.tolist():
        rule.arrived(at.rows, slot, NOW_S)
    waiting = rule.plan(at, NOW_S).waiting
    assert waiting is not None
    return waiting.tolist()


@pytest.mark.parametrize("policy", ["auto", "edf", "qlm", "sa", "econo"])
def test_due_now_is_served_as_its_class_is_and_not_last(policy: str) -> None:
    """Where no other target is stated: as one that came as early and asks for nothing."""
    due, free = row("batch", ttft_s=DUE_NOW_S), row("batch")
    assert order(policy, [due, free]) == [0, 1]
    assert order(policy, [free, due]) == [0, 1]


@pytest.mark.parametrize("policy", ["auto", "edf", "qlm"])
def test_due_now_goes_before_every_less_urgent_class(policy: str) -> None:
    others = [row("background"), row("background", e2e_s=1000.0)]
    assert order(policy, [*others, row("batch", ttft_s=DUE_NOW_S)])[0] == 2
