"""What of a plan still holds for a later step, by itself, without vLLM."""

from typing import Any

import numpy as np
import pytest

from sloserve.core.kernels.kv_layout import KVLayout
from sloserve.core.rows import Rows, State
from sloserve.engine.held_plan import MAX_PAUSE_AGE_S, MAX_PLAN_AGE_S, HeldPlan
from sloserve.scheduler.policy import EngineFacts, Plan, Snapshot

ENGINE = EngineFacts(100, 100, KVLayout.full(16), 8, 2048, 8)
MADE_S = 50.0


def engine_of(*states: State) -> Rows:
    rows = Rows(frozenset())
    for state in states:
        rows.add(state=state)
    return rows


def held(rows: Rows, **plan: Any) -> HeldPlan:
    arrays = {k: np.array(v) if isinstance(v, list) else v for k, v in plan.items()}
    snapshot = Snapshot(rows, rows.slots_in(State.WAITING, State.PREEMPTED), rows.slots_in(State.RUNNING), ENGINE)
    return HeldPlan.of(Plan(**arrays), snapshot, MADE_S)


def now(plan: HeldPlan, rows: Rows, age_s: float = 0.1) -> Plan:
    found = plan.now(rows, MADE_S + age_s)
    assert found is not None
    return found


RUNNING, WAITING, PREEMPTED = State.RUNNING, State.WAITING, State.PREEMPTED


def test_pauses_go_on_and_preemptions_do_not() -> None:
    rows = engine_of(RUNNING, RUNNING, RUNNING)
    plan = now(held(rows, pause=[1], preempt=[2]), rows)
    assert (plan.pause.tolist(), plan.preempt.tolist()) == ([1], [])


def test_who_runs_no_more_is_not_paused() -> None:
    rows = engine_of(RUNNING, RUNNING, RUNNING)
    plan = held(rows, pause=[0, 1])
    rows.state[0] = PREEMPTED
    assert now(plan, rows).pause.tolist() == [1]
    # Nor is it when it runs again: the plan meant it as it ran then.
    assert now(plan.without(0), rows).pause.tolist() == [1]
    rows.state[0] = RUNNING
    assert now(plan.without(0), rows).pause.tolist() == [1]
    assert plan.without(2) is plan


def test_never_all_that_run_are_paused() -> None:
    rows = engine_of(RUNNING, RUNNING, RUNNING)
    plan = held(rows, pause=[0, 1])
    rows.free(2)
    assert now(plan, rows).pause.tolist() == []


def test_who_must_not_be_paused_any_more_is_not() -> None:
    rows = engine_of(RUNNING, RUNNING, RUNNING)
    plan = held(rows, pause=[0, 1])
    rows.pausable[1] = False
    assert now(plan, rows).pause.tolist() == [0]


def test_pauses_end_before_the_plan_and_the_plan_before_long() -> None:
    rows = engine_of(RUNNING, RUNNING, WAITING)
    plan = held(rows, pause=[1], max_running=2, token_budget=64, prefill_chunk_tokens=7)
    assert now(plan, rows, MAX_PAUSE_AGE_S).pause.tolist() == [1]
    late = now(plan, rows, MAX_PAUSE_AGE_S + 0.01)
    assert (late.pause.tolist(), late.max_running, late.token_budget, late.prefill_chunk_tokens) == ([], 2, 64, 7)
    assert now(plan, rows, MAX_PLAN_AGE_S).max_running == 2
    assert plan.now(rows, MADE_S + MAX_PLAN_AGE_S + 0.01) is None


@pytest.mark.parametrize("waiting", [WAITING, PREEMPTED])
def test_a_limit_on_admission_holds_while_somebody_waits_whom_it_kept_out(waiting: State) -> None:
    rows = engine_of(RUNNING, waiting)
    plan = held(rows, max_running=1)
    rows.add()
    assert now(plan, rows).max_running == 1
    rows.free(1)
    assert now(plan, rows).max_running is None


def test_a_limit_that_kept_nobody_out_does_not_keep_out_who_came_since() -> None:
    rows = engine_of(RUNNING)
    plan = held(rows, max_running=1)
    rows.add()
    assert now(plan, rows).max_running is None


def test_a_token_budget_goes_on_to_have_a_token_for_each_who_is_served() -> None:
    rows = engine_of(RUNNING, RUNNING, RUNNING, WAITING, WAITING)
    ample, scarce = held(rows, token_budget=2, pause=[0]), held(rows, token_budget=1)
    rows.state[3:5] = RUNNING
    assert now(ample, rows).token_budget == 4
    assert now(scarce, rows).token_budget == 1


def test_the_identity_stays_the_identity_at_any_age() -> None:
    rows = engine_of(RUNNING)
    assert HeldPlan.of(Plan.IDENTITY, Snapshot(rows, *[np.arange(1)] * 2, ENGINE), 0.0).now(rows, 1e9) is Plan.IDENTITY
