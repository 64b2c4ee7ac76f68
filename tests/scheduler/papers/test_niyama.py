"""Niyama: between deadline and work, and what will be late goes last."""

from collections.abc import Callable
from typing import Any

import pytest

from sloserve.scheduler.policy import Snapshot
from sloserve.scheduler.registry import make_policy

NOW_S = 1000.0
Make = Callable[..., Snapshot]


def order(at: Snapshot, **options: Any) -> list[int]:
    waiting = make_policy("niyama", options).plan(at, NOW_S).waiting
    assert waiting is not None
    return [int(slot) for slot in waiting]


def test_alpha_lies_between_the_earliest_deadline_and_the_least_work(snapshot: Make) -> None:
    long = {"arrival_s": NOW_S, "ttft_s": 5.0, "prompt_tokens": 1000}
    short = {"arrival_s": NOW_S, "ttft_s": 6.0, "prompt_tokens": 100}
    at = snapshot([long, short])
    assert order(at, alpha_ms=0.0) == [0, 1]
    assert order(at, alpha_ms=1.0) == [0, 1]
    assert order(at, alpha_ms=2.0) == [1, 0]


def test_a_whole_reply_counts_with_its_tokens(snapshot: Make) -> None:
    long = {"arrival_s": NOW_S, "e2e_s": 500.0, "prompt_tokens": 10, "oracle_output_tokens": 900}
    short = {"arrival_s": NOW_S, "e2e_s": 501.0, "prompt_tokens": 10, "oracle_output_tokens": 10}
    assert order(snapshot([long, short]), alpha_ms=2.0, length="oracle") == [1, 0]


def test_who_will_be_late_goes_last_and_holds_up_nobody(snapshot: Make) -> None:
    late = {"arrival_s": NOW_S - 9.0, "ttft_s": 8.0, "prompt_tokens": 1000}
    hopeless = {"arrival_s": NOW_S, "ttft_s": 0.01, "prompt_tokens": 100_000}
    in_time = {"arrival_s": NOW_S, "ttft_s": 9.0, "prompt_tokens": 100}
    at = snapshot([late, hopeless, in_time])
    assert order(at, alpha_ms=0.0) == [2, 0, 1]
    assert order(at, alpha_ms=0.0, relegate=False) == [0, 1, 2]


@pytest.mark.parametrize("relegate", [True, False])
def test_none_is_preempted(snapshot: Make, relegate: bool) -> None:
    urgent = {"arrival_s": NOW_S, "ttft_s": 0.5, "prompt_tokens": 10}
    plan = make_policy("niyama", {"relegate": relegate}).plan(snapshot([urgent], [urgent] * 2, max_num_seqs=2), NOW_S)
    assert not plan.preempt.size
