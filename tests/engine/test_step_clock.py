"""When the steps in flight will end: two deep, idle, slower and faster than predicted, and when outputs are lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.engine.step_clock import StepClock
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.estimator.step_time.profile import load_profile

PROFILE = load_profile("h100-llama3-8b")
DECODES = StepLoad.of((), [500] * 32)
MIXED = StepLoad.of([(1000, 0)], [500] * 32)
DECODES_S, MIXED_S = PROFILE.step_s(DECODES), PROFILE.step_s(MIXED)


def test_nothing_is_in_flight_at_first_and_after_the_last_output() -> None:
    clock = StepClock(PROFILE)
    assert clock.busy_s(5.0) == 0.0
    clock.scheduled(DECODES, 5.0)
    clock.output(5.0 + DECODES_S)
    assert clock.busy_s(5.0 + DECODES_S) == 0.0


def test_two_steps_in_flight_end_one_after_the_other() -> None:
    clock = StepClock(PROFILE)
    clock.scheduled(DECODES, 10.0)
    assert clock.busy_s(10.0) == pytest.approx(DECODES_S)
    assert clock.busy_s(10.0 + DECODES_S / 2) == pytest.approx(DECODES_S / 2)
    clock.scheduled(MIXED, 10.001)
    assert clock.busy_s(10.001) == pytest.approx(DECODES_S + MIXED_S - 0.001)


def test_a_launch_counts_for_the_step_that_was_launched_until_the_next_is_scheduled() -> None:
    """Launching took longer than the wait after it: the step before ended when predicted, and the next began then."""
    clock = StepClock(PROFILE)
    clock.scheduled(DECODES, 0.0)
    clock.scheduled(MIXED, 0.001)
    launched_s, seen_s = 2.0 * DECODES_S, 2.0 * DECODES_S + 0.001
    clock.launched(launched_s)
    clock.output(seen_s)
    assert clock.busy_s(seen_s) == pytest.approx(max(DECODES_S + MIXED_S - seen_s, 0.0))
    assert clock.latency.observed == 0
    clock.scheduled(DECODES, seen_s)
    clock.output(DECODES_S + MIXED_S)  # of the next nothing is known yet
    assert clock.latency.observed == 1


def test_each_output_is_a_new_anchor() -> None:
    """The first step takes twice as long as predicted: overdue, it is due at any moment; the next starts after it."""
    clock = StepClock(PROFILE)
    clock.scheduled(DECODES, 0.0)
    assert clock.busy_s(1.5 * DECODES_S) == 0.0
    clock.scheduled(MIXED, 0.001)
    assert clock.busy_s(1.5 * DECODES_S) == pytest.approx(MIXED_S)
    late_s = 2.0 * DECODES_S
    clock.output(late_s)
    assert clock.busy_s(late_s) == pytest.approx(MIXED_S)
    assert clock.busy_s(late_s + 2.0 * MIXED_S) == 0.0


def test_without_a_profile_it_learns_from_the_first_steps_on() -> None:
    clock, now_s = StepClock(), 0.0
    for _ in range(12):
        clock.scheduled(DECODES, now_s)
        now_s += DECODES_S
        clock.output(now_s)
    clock.scheduled(DECODES, now_s)
    assert clock.latency.observed == 12
    assert clock.busy_s(now_s) == pytest.approx(DECODES_S, rel=0.02)


def test_a_step_without_tokens_takes_no_time_but_its_turn() -> None:
    clock = StepClock(PROFILE)
    clock.scheduled(StepLoad(), 1.0)
    clock.scheduled(DECODES, 1.0)
    assert clock.busy_s(1.0) == pytest.approx(DECODES_S)
    clock.output(1.0)
    clock.output(1.0 + DECODES_S)
    assert clock.busy_s(2.0) == 0.0 and clock.latency.observed == 1


loads = st.sampled_from([StepLoad(), DECODES, MIXED])
events = st.lists(st.tuples(st.sampled_from(["scheduled", "output"]), loads, st.floats(-1.0, 3.0)), max_size=200)


@given(events)
def test_whatever_happens_it_is_finite_never_negative_and_keeps_little(happened: list) -> None:  # type: ignore[type-arg]
    """Outputs that were never scheduled, steps without an output, a clock that goes back."""
    clock, now_s = StepClock(PROFILE), 100.0
    for event, load, passed_s in happened:
        now_s += passed_s
        if event == "scheduled":
            clock.scheduled(load, now_s)
        else:
            clock.output(now_s)
        assert 0.0 <= clock.busy_s(now_s) < 1000.0


@given(events, st.integers(1, 30))
def test_when_it_is_asked_changes_no_answer(happened: list, every: int) -> None:  # type: ignore[type-arg]
    """What it is told is worked in later where nobody asks."""
    seldom, always, now_s = StepClock(PROFILE), StepClock(PROFILE), 100.0
    for i, (event, load, passed_s) in enumerate(happened):
        now_s += passed_s
        for clock in (seldom, always):
            if event == "scheduled":
                clock.scheduled(load, now_s)
            else:
                clock.output(now_s)
        asked = always.latency.state(), always.decodes, always.busy_s(now_s)
        if i % every == 0 or i == len(happened) - 1:
            assert (seldom.latency.state(), seldom.decodes, seldom.busy_s(now_s)) == asked


def test_outputs_that_never_come_are_forgotten() -> None:
    clock = StepClock(PROFILE)
    for i in range(1000):
        clock.scheduled(DECODES, float(i))
    assert clock.busy_s(999.0) <= 64 * DECODES_S


def test_a_fault_while_a_step_is_noted_hinders_no_later_one() -> None:
    """The timer has the step, and its prediction is missing: the next step makes up for it."""
    clock = StepClock(PROFILE)
    clock.scheduled(DECODES, 0.0)
    assert clock.busy_s(0.0) > 0.0
    clock._predicted_s.clear()  # as an exception between the two leaves it
    assert clock.busy_s(0.0) == 0.0
    clock.scheduled(MIXED, 0.001)
    assert clock.busy_s(0.001) > 0.0
    for seen_s in (DECODES_S, DECODES_S + MIXED_S):
        clock.output(seen_s)
    assert clock.busy_s(1.0) == 0.0
