"""SJF: least work left first, by prediction or by what is stated; preempts only when asked to."""

from collections.abc import Callable
from typing import Any

import pytest

from sloserve.scheduler.policy import Plan, Snapshot, check_plan
from sloserve.scheduler.sjf import SJF

Make = Callable[..., Snapshot]


def plan(at: Snapshot, policy: SJF) -> Plan:
    made = policy.plan(at, 0.0)
    check_plan(made, at)
    return made


def order(slots: Any) -> list[int]:
    return [int(s) for s in slots]


ORACLE = SJF.Settings(length="oracle", prompt_weight=0.5)


def test_orders_by_stated_length_and_weighted_prompt(snapshot: Make) -> None:
    waiting = [
        {"oracle_output_tokens": 100, "prompt_tokens": 10},  # 105
        {"oracle_output_tokens": 10, "prompt_tokens": 300},  # 160
        {"oracle_output_tokens": 90, "prompt_tokens": 10},  # 95
        {"oracle_output_tokens": 95, "prompt_tokens": 20},  # 105, arrived later
    ]
    assert order(plan(snapshot(waiting), SJF(ORACLE)).waiting) == [2, 0, 3, 1]


def test_counts_only_what_is_left(snapshot: Make) -> None:
    running = [
        {"oracle_output_tokens": 100, "output_tokens": 95, "prompt_tokens": 50, "computed_tokens": 145},  # 5
        {"oracle_output_tokens": 30, "output_tokens": 1, "prompt_tokens": 50, "computed_tokens": 51},  # 29
        # Overdue: it said 10 and is at 40; still one to come.
        {"oracle_output_tokens": 10, "output_tokens": 40, "prompt_tokens": 50, "computed_tokens": 90},  # 1
        # Half of the prompt is computed: 3 + 0.5 * 20. Unfinished prompts are served after those that decode.
        {"oracle_output_tokens": 3, "output_tokens": 0, "prompt_tokens": 40, "computed_tokens": 20},  # 13
        {"oracle_output_tokens": 10, "output_tokens": 0, "prompt_tokens": 40, "computed_tokens": 38},  # 11
    ]
    assert order(plan(snapshot(running=running), SJF(ORACLE)).running) == [2, 0, 1, 4, 3]


def test_a_preempted_request_has_prompt_and_output_to_compute_again(snapshot: Make) -> None:
    waiting = [
        {"oracle_output_tokens": 50, "output_tokens": 40, "prompt_tokens": 60},  # 10 + 0.5 * 100
        {"oracle_output_tokens": 40, "prompt_tokens": 20},  # 40 + 0.5 * 20
    ]
    assert order(plan(snapshot(waiting), SJF(ORACLE)).waiting) == [1, 0]


def test_predicts_per_class_from_what_ended(snapshot: Make) -> None:
    at = snapshot([{"class_id": 0}, {"class_id": 1}])
    policy = SJF()
    done = at.rows.add(class_id=0, output_tokens=900, max_tokens=1000)
    for _ in range(50):
        policy.finished(at.rows, done, 0.0)
    assert order(plan(at, policy).waiting) == [1, 0]
    at.rows.class_id[done], at.rows.output_tokens[done] = 1, 990
    for _ in range(50):
        policy.finished(at.rows, done, 0.0)
    assert order(plan(at, policy).waiting) == [0, 1]


def test_a_request_that_ended_without_a_token_teaches_nothing(snapshot: Make) -> None:
    at = snapshot([{"class_id": 0}, {"class_id": 1}])
    policy = SJF()
    policy.finished(at.rows, at.rows.add(class_id=1, output_tokens=0), 0.0)
    assert order(plan(at, policy).waiting) == [0, 1]


def test_max_tokens_caps_the_prediction(snapshot: Make) -> None:
    assert order(plan(snapshot([{"max_tokens": 900}, {"max_tokens": 10}]), SJF()).waiting) == [1, 0]


def test_unstated_lengths_are_predicted_under_oracle_too(snapshot: Make) -> None:
    waiting = [{"oracle_output_tokens": 900}, {"oracle_output_tokens": -1}, {"oracle_output_tokens": 5}]
    assert order(plan(snapshot(waiting), SJF(ORACLE)).waiting) == [2, 1, 0]


@pytest.mark.parametrize(("preempt", "victims"), [(False, []), (True, [0])])
def test_preempts_the_longest_only_when_asked_to(preempt: bool, victims: list[int], snapshot: Make) -> None:
    running = [{"oracle_output_tokens": n, "computed_tokens": 16} for n in (900, 400)]
    at = snapshot([{"oracle_output_tokens": 5}], running, max_num_seqs=2)
    assert order(plan(at, SJF(SJF.Settings(length="oracle", preempt=preempt))).preempt) == victims


@pytest.mark.parametrize("settings", [{"length": "guess"}, {"prompt_weight": -0.1}, {"prompt_weight": 1.1}])
def test_settings_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        SJF.Settings(**settings)
