"""Priority: the request's own number, then its class, then arrival; preempts for a strictly better one."""

from collections.abc import Callable
from typing import Any

import pytest

from sloserve.scheduler.fcfs import FCFS
from sloserve.scheduler.policy import Plan, Snapshot, check_plan
from sloserve.scheduler.priority import Priority

Make = Callable[..., Snapshot]


def plan(at: Snapshot, **settings: Any) -> Plan:
    made = Priority(Priority.Settings(**settings)).plan(at, 0.0)
    check_plan(made, at)
    return made


def order(slots: Any) -> list[int]:
    return [int(s) for s in slots]


def test_own_number_before_class_before_arrival(snapshot: Make) -> None:
    ranked = [
        {"priority": 1, "class_rank": 0},
        {"priority": 0, "class_rank": 3},
        {"priority": 0, "class_rank": 1},
        {"priority": 0, "class_rank": 1},
        {"priority": -2, "class_rank": 3},
    ]
    made = plan(snapshot(waiting=ranked, max_num_seqs=5))
    assert order(made.waiting) == [4, 2, 3, 1, 0]
    assert order(plan(snapshot(running=ranked, max_num_seqs=5)).running) == [4, 2, 3, 1, 0]


def test_every_64_bit_number_keeps_its_place(snapshot: Make) -> None:
    """None wraps, and none is rounded: neighbours beyond 2**53 differ."""
    numbers = [2**54, 5, 2**63 - 1, 2**60 + 1, -(2**63), 2**60, 2**63 - 2]
    ranked = [{"priority": number, "class_rank": 1} for number in numbers]
    made = plan(snapshot(waiting=ranked, max_num_seqs=7))
    assert [numbers[s] for s in order(made.waiting)] == sorted(numbers)
    made = plan(snapshot([{"priority": 2**60}], [{"priority": 2**60 + 1}], max_num_seqs=1))
    assert order(made.preempt) == [0]


def test_preempts_the_worst_and_of_those_the_last_to_arrive(snapshot: Make) -> None:
    made = plan(snapshot([{"priority": 0}], [{"priority": p} for p in (1, 5, 2, 5)], max_num_seqs=4))
    assert order(made.preempt) == [3]
    assert order(made.running) == [0, 2, 1]


@pytest.mark.parametrize(
    ("waiting", "running", "settings"),
    [
        ({"priority": 1}, {"priority": 1}, {}),
        ({"priority": 1, "class_rank": 2}, {"priority": 1, "class_rank": 2}, {}),
        ({"priority": 2}, {"priority": 1}, {}),
        ({"priority": 0}, {"priority": 1}, {"preempt": False}),
        ({"priority": 0}, {"priority": 1, "num_preemptions": 1}, {"max_preemptions": 1}),
        ({"priority": 0}, {"priority": 1, "preemptable": False}, {}),
    ],
)
def test_preempts_nobody_who_is_equal_better_exhausted_or_guarded(
    waiting: dict[str, int], running: dict[str, int], settings: dict[str, Any], snapshot: Make
) -> None:
    assert not plan(snapshot([waiting], [running], max_num_seqs=1), **settings).preempt.size


def test_a_better_class_preempts_at_equal_numbers(snapshot: Make) -> None:
    assert order(plan(snapshot([{"class_rank": 0}], [{"class_rank": 1}], max_num_seqs=1)).preempt) == [0]


def test_negative_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="max_preemptions: -1 is not 0 or more, and finite"):
        Priority.Settings(max_preemptions=-1)


def test_fcfs_plans_the_identity_and_needs_no_column(snapshot: Make) -> None:
    policy = FCFS()
    assert not policy.needs and not policy.wants_progress
    assert policy.plan(snapshot([{}], [{}]), 0.0) is Plan.IDENTITY
