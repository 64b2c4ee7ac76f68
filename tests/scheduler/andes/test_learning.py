"""Andes: what it knows of requests and of the engine from what happened, or from what is stated."""

from typing import Any

import numpy as np

from sloserve.scheduler.andes.policy import Andes
from sloserve.scheduler.papers.andes_parts import AndesParts
from sloserve.scheduler.policy import Snapshot
from tests.scheduler.andes.readers import (
    NOW_S,
    URGENT,
    Make,
    Request,
    Steps,
    ahead,
    engine,
    gain_of_new,
    new,
    order,
    plan,
    told,
)

# What it learns.


def test_takes_over_requests_that_are_being_served(snapshot: Make) -> None:
    """As if it had seen the tokens come; one told of an arrival before knows of none."""
    at = snapshot([URGENT], [ahead(60.0)], max_num_seqs=1)
    tokens = at.rows.output_tokens[[0]].copy()
    at.rows.output_tokens[0] = 0
    followed, ignorant = told(at), told(at)
    followed.progressed(at.rows, np.array([0]), tokens, NOW_S - 9.0)
    at.rows.output_tokens[0] = int(tokens[0])
    taken_over = told(at)
    assert [order(plan(at, policy).preempt) for policy in (followed, taken_over, ignorant)] == [[0], [0], []]


def test_leads_grow_by_what_is_delivered_and_begin_anew_with_the_slot(snapshot: Make) -> None:
    at = snapshot([URGENT], [ahead(30.0)], max_num_seqs=1)
    policy = told(at)
    assert not plan(at, policy).preempt.size
    policy.progressed(at.rows, np.array([0]), np.array([20]), NOW_S)
    assert not plan(at, policy).preempt.size
    policy.progressed(at.rows, np.array([0]), np.array([2]), NOW_S)
    assert order(plan(at, policy).preempt) == [0]
    at.rows.output_tokens[0] = 0
    policy.arrived(at.rows, 0, NOW_S)
    assert not plan(at, policy).preempt.size


def end(policy: Andes, at: Snapshot, times: int = 1, serving_s: float = 10.0, **row: Any) -> None:
    slot = at.rows.add(
        **({"arrival_s": 0.0, "output_tokens": 100, "max_tokens": 1000, "first_token_s": NOW_S - serving_s} | row)
    )
    for _ in range(times):
        policy.arrived(at.rows, slot, NOW_S)
        policy.finished(at.rows, slot, NOW_S)
    at.rows.free(slot)


def test_the_horizon_is_the_mean_time_of_serving(snapshot: Make) -> None:
    at = snapshot([new(5.0)], [ahead(100.0)], max_num_seqs=1)
    policy = told(at)
    # Half of the expected area, which who is urgent can still get, takes 9.8 s.
    assert gain_of_new(5.0, 16, 9.0) < 0.5 < gain_of_new(5.0, 16, 11.0)
    for serving_s, urgent in ((4.0, False), (14.0, False), (18.0, True)):
        end(policy, at, serving_s=serving_s)
        assert bool(plan(at, policy).preempt.size) == urgent
    # As stated, whatever is learnt.
    policy = told(at, horizon_s=4.0)
    end(policy, at, serving_s=100.0)
    assert not plan(at, policy).preempt.size


def test_a_request_that_ended_without_a_token_or_with_one_at_once_says_nothing_of_time(snapshot: Make) -> None:
    at = snapshot([new(5.0)], [ahead(100.0)], max_num_seqs=1)
    policy = told(at)
    end(policy, at, output_tokens=0, first_token_s=np.nan)
    end(policy, at, output_tokens=1, serving_s=0.0)
    end(policy, at, serving_s=16.0)
    assert order(plan(at, policy).preempt) == [0]


def test_the_pace_is_that_of_the_engines_steps(snapshot: Make) -> None:
    """At 4 s a step a reader of 2 tokens a second is served too little to be urgent."""
    at = snapshot([URGENT], [ahead(100.0)], max_num_seqs=1)
    assert not plan(engine(at, step_latency=Steps(4.0))).preempt.size
    assert order(plan(engine(at, step_latency=Steps(0.03))).preempt) == [0]


def test_time_without_requests_is_no_step(snapshot: Make) -> None:
    at = snapshot([URGENT], [ahead(100.0)], max_num_seqs=1)
    policy = AndesParts(AndesParts.Settings(length="oracle", horizon_s=8.0))
    one, token = np.array([at.rows.add(**new(600.0))]), np.array([1])
    policy.arrived(at.rows, int(one[0]), NOW_S - 600.0)
    policy.progressed(at.rows, one, token, NOW_S - 500.0)
    policy.finished(at.rows, int(one[0]), NOW_S - 500.0)
    for slot in (0, 1):
        policy.arrived(at.rows, slot, NOW_S)
    for time_s in (NOW_S - 0.1, NOW_S):
        policy.progressed(at.rows, np.array([0]), token, time_s)
    assert order(plan(at, policy).preempt) == [0]


# Output lengths: a deadline of 5 s is met by 10 tokens at 0.1 s, and not by 1000.

DUE: Request = {"arrival_s": NOW_S, "e2e_s": 5.0}


def in_order(at: Snapshot, policy: Andes | None = None, **settings: Any) -> list[int]:
    at = engine(at, step_latency=Steps(0.1))
    return order(plan(at, policy, **({"watermark": 0.0} | settings)).waiting)


def test_lengths_are_as_stated_or_predicted_from_those_that_ended(snapshot: Make) -> None:
    at = snapshot([{**DUE, "oracle_output_tokens": tokens, "class_id": tokens == 10} for tokens in (1000, 10)])
    assert in_order(at) == [1, 0]
    # What is stated is not looked at, and 256 tokens, expected of any class, take too long.
    assert in_order(at, length="predicted") == [0, 1]
    policy = told(at, length="predicted", watermark=0.0)
    end(policy, at, times=64, output_tokens=10, class_id=1)
    assert in_order(at, policy) == [1, 0]
    # Nothing can be learnt from who had no token.
    policy = told(at, length="predicted", watermark=0.0)
    end(policy, at, times=64, output_tokens=0, class_id=1)
    assert in_order(at, policy) == [0, 1]


def test_what_is_not_stated_is_predicted_and_nobody_exceeds_his_limit(snapshot: Make) -> None:
    unstated = {**DUE, "oracle_output_tokens": -1}
    assert in_order(snapshot([unstated, {**DUE, "oracle_output_tokens": 10}])) == [1, 0]
    assert in_order(snapshot([unstated, unstated | {"max_tokens": 10}]), length="predicted") == [1, 0]


def test_errors_of_lengths_are_drawn_by_request_and_seed(snapshot: Make) -> None:
    at = snapshot([{**DUE, "oracle_output_tokens": 40}] * 8)
    exact = list(range(8))
    assert in_order(at) == exact
    found = [in_order(at, length_error=0.9, seed=seed) for seed in (1, 2, 1)]
    assert exact != found[0] != found[1] != exact and found[0] == found[2]
    assert in_order(at, length_error=1e-4, seed=1) == exact
