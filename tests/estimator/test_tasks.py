"""What is learned of tasks: calls still to come, tool times, and the rest of a task."""

import numpy as np
import pytest

from sloserve.estimator.tasks import EVIDENCE, LEAST_TASKS, MOST_AHEAD, RANGES, TaskHabits


def saw(habits: TaskHabits, calls: int, *, call_s: float = 1.0, tool_s: float = 2.0) -> None:
    for number in range(1, calls + 1):
        if number > 1:
            habits.next_call(number - 1, tool_s)
        habits.call_ended(number, call_s)
    habits.task_ended(calls)


def test_nothing_is_said_before_enough_tasks_have_ended() -> None:
    habits = TaskHabits()
    for _ in range(LEAST_TASKS - 1):
        saw(habits, 3)
    assert not habits.is_known
    assert habits.calls_to_come(1, (0.5,)) is None
    assert habits.tool_s(1) is None
    assert habits.rest_s(1) is None
    assert habits.chance_of_end(1) is None
    assert habits.chance_of_call(1, 0.0, 1.0) is None
    saw(habits, 3)
    assert habits.is_known


def test_tasks_of_equal_length_are_foreseen_to_the_call() -> None:
    habits = TaskHabits()
    for _ in range(100):
        saw(habits, 5)
    for so_far, rest in ((0, 5), (1, 4), (3, 2), (4, 1), (5, 0)):
        found = habits.calls_to_come(so_far, (0.5, 0.9))
        assert found is not None
        assert found.expected == pytest.approx(rest, abs=0.25)
        assert found.quantiles == {0.5: rest, 0.9: rest}
    assert habits.chance_of_end(0) == 0.0
    assert (habits.chance_of_end(5) or 0.0) > 0.98


def test_a_task_that_is_open_counts_for_the_calls_before_alone() -> None:
    """Tasks whose end is not known yet are censored: those that ended early do not stand for all."""
    habits = TaskHabits()
    for _ in range(50):
        saw(habits, 2)
        habits.call_ended(1, 1.0)
        habits.next_call(1, 1.0)
        habits.call_ended(2, 1.0)
        habits.next_call(2, 1.0)  # and then nothing is known
    assert habits.chance_of_end(1) == pytest.approx(0.0, abs=0.01)
    assert habits.chance_of_end(2) == pytest.approx(0.5, abs=0.01)


def test_long_tasks_have_longer_rests_where_most_are_short() -> None:
    habits = TaskHabits()
    for _ in range(100):
        saw(habits, 2)
        saw(habits, 40)
    early, late = habits.calls_to_come(1, (0.9,)), habits.calls_to_come(10, (0.9,))
    assert early is not None and late is not None
    assert early.expected == pytest.approx(0.5 * 1 + 0.5 * 39, rel=0.15)
    assert late.expected == pytest.approx(30, rel=0.2)  # it has outlived the short ones


@pytest.mark.parametrize("calling", [True, False])
def test_the_rest_of_a_task_sums_calls_and_tools(calling: bool) -> None:
    habits = TaskHabits()
    for _ in range(200):
        saw(habits, 4, call_s=3.0, tool_s=5.0)
    found = habits.rest_s(1, (0.5, 0.9), calling=calling)
    assert found is not None
    actual = 3 + 2 * 8 if calling else 3 * 8
    assert found.expected == pytest.approx(actual, rel=0.05)
    assert found.quantiles[0.5] == pytest.approx(actual, rel=0.05)
    done = habits.rest_s(4, (0.9,))
    assert done is not None
    assert done.quantiles[0.9] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.slow
def test_quantiles_of_the_rest_hold_for_tasks_of_random_length_and_times() -> None:
    rng = np.random.default_rng(5)
    habits, rests = TaskHabits(), []
    for number in range(2000):
        calls = int(rng.geometric(0.1))
        times = rng.lognormal(0.0, 1.0, 2 * calls - 1)
        for i in range(calls):
            if i:
                habits.next_call(i, float(times[2 * i - 1]))
            habits.call_ended(i + 1, float(times[2 * i]))
        habits.task_ended(calls)
        if number >= 1000:
            rests.append(float(times.sum()))
    found = habits.rest_s(0, (0.5, 0.9), calling=True)
    assert found is not None
    for level, limit in found.quantiles.items():
        assert np.mean(np.array(rests) <= limit) == pytest.approx(level, abs=0.05)
    assert found.expected == pytest.approx(np.mean(rests), rel=0.15)


def test_tool_times_have_quantiles_and_say_when_the_next_call_comes() -> None:
    habits = TaskHabits()
    for i in range(200):
        saw(habits, 2, tool_s=0.5 if i % 10 else 60.0)
    found = habits.tool_s(1, (0.5, 0.95))
    assert found is not None
    assert found.expected == pytest.approx(0.9 * 0.5 + 0.1 * 60.0, rel=0.05)
    assert 0.4 < found.quantiles[0.5] < 0.8
    assert 40.0 < found.quantiles[0.95] < 75.0
    assert habits.chance_of_call(1, 0.0, 1.0) == pytest.approx(0.9, abs=0.03)
    assert habits.chance_of_call(1, 2.0, 100.0) == pytest.approx(1.0, abs=0.15)
    assert habits.chance_of_call(1, 2.0, 10.0) == pytest.approx(0.0, abs=0.01)
    assert habits.chance_of_call(2, 0.0, 1e9) == pytest.approx(0.0, abs=0.02)  # the task has ended


def test_a_wait_without_a_call_makes_the_end_likelier() -> None:
    habits = TaskHabits()
    for _ in range(100):
        saw(habits, 2, tool_s=1.0)
        saw(habits, 1)
    chances = [habits.chance_of_call(1, waited_s, 1e9) or 0.0 for waited_s in (0.0, 1.0, 1.3, 5.0)]
    assert chances == sorted(chances, reverse=True)
    assert chances[0] == pytest.approx(0.5, abs=0.02)
    assert chances[-1] == pytest.approx(0.0, abs=0.02)


def test_old_evidence_is_forgotten() -> None:
    habits = TaskHabits()
    for _ in range(4 * EVIDENCE):
        saw(habits, 2, call_s=1.0)
    for _ in range(3 * EVIDENCE):
        saw(habits, 6, call_s=4.0)
    found = habits.calls_to_come(0, (0.5,))
    assert found is not None
    assert found.quantiles[0.5] == 6
    rest = habits.rest_s(0, (), calling=True)
    assert rest is not None
    assert rest.expected == pytest.approx(6 * 4 + 5 * 2, rel=0.15)


@pytest.mark.parametrize("so_far", [0, 1, int(RANGES[-1]), 10**6])
def test_numbers_of_calls_beyond_all_evidence_have_finite_estimates(so_far: int) -> None:
    habits = TaskHabits()
    for calls in range(1, 30):
        saw(habits, calls)
    found, rest = habits.calls_to_come(so_far, (0.5, 0.99)), habits.rest_s(so_far, (0.5, 0.99))
    assert found is not None and rest is not None
    assert 0.0 <= found.expected <= MOST_AHEAD
    assert 0.0 <= rest.quantiles[0.5] <= rest.quantiles[0.99] < float("inf")


def test_tasks_of_one_call_have_no_tools() -> None:
    habits = TaskHabits()
    for _ in range(20):
        saw(habits, 1)
    assert habits.tool_s(1) is None
    rest = habits.rest_s(0, (0.9,), calling=True)
    assert rest is not None
    assert rest.quantiles[0.9] == pytest.approx(1.0, rel=0.1)
