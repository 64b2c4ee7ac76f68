"""Scores of two plans for one snapshot: who agrees on what, and whose order keeps more promises."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.core.kernels.kv_layout import KVLayout
from sloserve.core.rows import Rows, State
from sloserve.engine.plan_score import (
    NEEDS,
    AdmissionRate,
    admission_order,
    agreement,
    own_order,
    predicted_gain,
    predicted_met,
)
from sloserve.scheduler.policy import EngineFacts, Plan, Snapshot

NOW_S = 100.0


def snapshot_of(waiting: list[dict[str, Any]], running: int = 0, free_slots: int = 2) -> Snapshot:
    """Waiting requests have the first slots, the running ones those behind."""
    rows = Rows(NEEDS)
    for request in waiting:
        rows.add(**({"arrival_s": NOW_S} | request))
    for _ in range(running):
        rows.add(state=State.RUNNING)
    engine = EngineFacts(10, 10, KVLayout.full(16), 8, 64, free_slots)
    return Snapshot(rows, rows.slots_in(State.WAITING, State.PREEMPTED), rows.slots_in(State.RUNNING), engine)


def slots(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


def agree(one: Plan, other: Plan, snapshot: Snapshot) -> float | None:
    orders = [admission_order(plan, snapshot, own_order(snapshot)) for plan in (one, other)]
    return agreement(one, orders[0], other, orders[1], snapshot)


def test_an_untouched_queue_has_the_preempted_in_front() -> None:
    at = snapshot_of([{}, {}, {"state": State.PREEMPTED}])
    assert own_order(at).tolist() == [2, 0, 1]


def test_a_plan_s_order_is_those_it_names_then_those_present_who_wait() -> None:
    at = snapshot_of([{}, {}, {}], running=1)
    assert admission_order(Plan(waiting=slots(2, 3)), at, slots(3, 1, 0, 2)).tolist() == [2, 1, 0]
    assert admission_order(Plan.IDENTITY, at, slots(1, 0, 2)).tolist() == [1, 0, 2]


@pytest.mark.parametrize(
    ("one", "other", "free_slots", "expected"),
    [
        (Plan(waiting=slots(0, 1, 2)), Plan(waiting=slots(1, 0, 2)), 2, 1.0),  # the same two, order aside
        (Plan(waiting=slots(0, 1, 2)), Plan(waiting=slots(0, 2, 1)), 2, 1 / 3),
        (Plan(waiting=slots(0, 1, 2)), Plan(waiting=slots(2, 1, 0)), 0, 0.0),  # the next slot
        (Plan(waiting=slots(0, 1, 2)), Plan(waiting=slots(2, 1, 0)), 3, None),  # all get in
        (Plan(preempt=slots(3)), Plan(preempt=slots(3, 4)), 3, 1 / 2),
        (Plan(preempt=slots(3)), Plan(pause=slots(3)), 3, 0.0),
        (Plan(pause=slots(3, 4)), Plan(pause=slots(4, 3)), 3, 1.0),
        (Plan(preempt=slots(4)), Plan(preempt=slots(4), waiting=slots(2)), 1, 1 / 3),
        (Plan.IDENTITY, Plan(running=slots(4, 3)), 3, None),
    ],
)
def test_agreement(one: Plan, other: Plan, free_slots: int, expected: float | None) -> None:
    at = snapshot_of([{}, {}, {}], running=2, free_slots=free_slots)
    assert agree(one, other, at) == agree(other, one, at) == expected


@given(st.permutations(range(6)), st.permutations(range(6)), st.integers(0, 7))
def test_agreement_is_a_share_and_whole_with_oneself(one: list[int], other: list[int], free_slots: int) -> None:
    at = snapshot_of([{}] * 6, free_slots=free_slots)
    plans = Plan(waiting=slots(*one)), Plan(waiting=slots(*other))
    found = agree(*plans, at)
    assert found is None or 0.0 <= found <= 1.0
    assert agree(plans[0], plans[0], at) == (None if free_slots >= 6 else 1.0)


def test_whoever_is_admitted_before_its_target_has_passed_is_predicted_to_meet_it() -> None:
    at = snapshot_of(
        [
            {"ttft_s": 0.5},  # two free slots: now, now, then one a second
            {"ttft_s": 0.5, "arrival_s": NOW_S - 1.0},  # late already
            {"ttft_s": 1.0, "e2e_s": 0.9},
            {},
            {"ttft_s": 0.1, "e2e_s": 3.0, "state": State.PREEMPTED},  # has had its first token
        ]
    )
    # By slot, without the fourth, which has no target.
    assert predicted_met(slots(0, 1, 2, 3, 4), at, 1.0, NOW_S).tolist() == [True, False, False, True]
    assert predicted_met(slots(2, 3, 4, 1, 0), at, 1.0, NOW_S).tolist() == [False, False, True, True]
    assert predicted_met(slots(0, 2, 3, 1, 4), at, 1.0, NOW_S).tolist() == [True, False, True, True]


def test_the_gain_is_the_difference_in_shares() -> None:
    at = snapshot_of([{"ttft_s": 9.0}, {"ttft_s": 9.0}, {"ttft_s": 0.5}, {}], free_slots=1)
    first, better = slots(0, 1, 2, 3), slots(2, 0, 1, 3)
    assert predicted_gain(first, better, at, 1.0, NOW_S) == pytest.approx(1 / 3)
    assert predicted_gain(better, first, at, 1.0, NOW_S) == pytest.approx(-1 / 3)
    assert predicted_gain(first, better, at, None, NOW_S) is None
    assert predicted_gain(slots(0), slots(0), snapshot_of([{}]), 1.0, NOW_S) is None


def test_the_rate_follows_the_admissions_and_counts_steps_of_one_instant_together() -> None:
    rate = AdmissionRate(memory_s=1.0)
    rate.observe(3, 0.0)
    assert rate.per_s is None
    rate.observe(1, 0.0)
    rate.observe(0, 0.5)
    assert rate.per_s == pytest.approx(8.0)
    for step in range(200):
        rate.observe(1, 0.6 + 0.1 * step)
    assert rate.per_s == pytest.approx(10.0, rel=1e-3)
