"""Whose turn it is: how turns are woven into an order, and that every policy plans for the order that is admitted."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.lso.aged_turns import AgedTurns
from sloserve.scheduler.policy import Snapshot, check_plan
from sloserve.scheduler.registry import make_policy, parse_policy

Make = Callable[..., Snapshot]


def turns(aged: list[int], period: int = 4, before_next: int = 3) -> AgedTurns:
    return AgedTurns(np.array(aged, np.int64), period, before_next)


@pytest.mark.parametrize(
    ("period", "before_next", "order", "aged", "expected"),
    [
        (4, 3, [0, 1, 2, 3, 4, 5, 6, 7], [8, 9], [0, 1, 2, 8, 3, 4, 5, 9, 6, 7]),
        (4, 1, [0, 1, 2, 3, 4, 5, 6, 7], [8, 9], [0, 8, 1, 2, 3, 9, 4, 5, 6, 7]),
        (4, 0, [0, 1, 2, 3], [8], [8, 0, 1, 2, 3]),
        # What the policy ranks first anyway stays there; if it is not the oldest, the oldest is still due.
        (2, 1, [8, 0, 1, 2], [8], [8, 0, 1, 2]),
        (2, 1, [8, 9, 0, 1, 2], [8, 9], [8, 9, 0, 1, 2]),
        (4, 3, [9, 0, 1, 2, 3, 4, 5], [8, 9], [9, 0, 1, 8, 2, 3, 4, 5]),
        (4, 3, [0], [8, 9], [0, 8, 9]),
        (1, 0, [0, 1], [8, 9], [8, 9, 0, 1]),
        (4, 3, [0, 1], [], [0, 1]),
    ],
)
def test_weave(period: int, before_next: int, order: list[int], aged: list[int], expected: list[int]) -> None:
    assert turns(aged, period, before_next).weave(np.array(order)).tolist() == expected


@given(st.permutations(range(9)), st.integers(0, 9), st.permutations(range(9)), st.integers(0, 9), st.integers(1, 5))
def test_what_is_woven_stays_so_and_no_aged_one_is_put_back(
    order: list[int], named: int, aged: list[int], old: int, period: int
) -> None:
    of, given_order = turns(aged[:old], period, before_next=named % period), np.array(order[:named], np.int64)
    woven = of.weave(given_order).tolist()
    assert of.weave(np.array(woven, np.int64)).tolist() == woven
    # Cut to the length of the order, as in a plan, too.
    assert of.weave(np.array(woven[:named], np.int64))[:named].tolist() == woven[:named]
    assert sorted(woven) == sorted({*order[:named], *aged[:old]})
    others = set(range(9)) - set(aged[:old])
    for place, slot in enumerate(order[:named]):
        if slot not in others:
            assert len(others & set(woven[: woven.index(slot)])) <= len(others & set(order[:place]))


POLICIES = [
    "priority", "edf", "sjf:length=oracle", "rr", "sa:length=oracle", "sa-batches:length=oracle",
    "andes-parts:watermark=0", "econo:length=oracle", "econo-parts:order=fcfs:length=oracle",
    "econo-paper:length=oracle", "econo-paper:length=oracle:parts=sd", "orca:batch=0", "srtf:length=oracle",
    "fastserve:batch=0", "multires:length=oracle", "sync-coupled:length=oracle",
]  # fmt: skip


FORECAST = ("andes", "econo:", "orca", "srtf", "multires", "sync-coupled", "econo-paper")
"""These say how many may run by what those who are admitted need."""


@pytest.mark.parametrize("name", POLICIES)
def test_plans_are_made_for_the_order_that_is_admitted(name: str, snapshot: Make) -> None:
    """One that would come last has the turn and needs more than is free, so that nobody can be admitted before it."""
    short = {"prompt_tokens": 16, "oracle_output_tokens": 4, "max_tokens": 4, "e2e_s": 1.0, "arrival_s": 90.0}
    large = {"prompt_tokens": 800, "oracle_output_tokens": 90, "max_tokens": 90, "e2e_s": 900.0, "class_rank": 3}
    runs = {"prompt_tokens": 480, "oracle_output_tokens": 90, "max_tokens": 90, "output_tokens": 5, "kv_blocks": 31}
    runs |= {"computed_tokens": 484, "arrival_s": 0.0, "first_token_s": 1.0, "e2e_s": 2.0, "num_preemptions": 9}
    at = snapshot(
        [*[short | {"priority": -1}] * 3, large | {"arrival_s": 95.0, "priority": 5}], [runs | {"priority": -2}],
        free_blocks=40, total_blocks=72,
    )  # fmt: skip
    large_slot = 4
    policy = make_policy(*parse_policy(name), seed=1)
    for slot in range(5):
        policy.arrived(at.rows, slot, 96.0)
    plan = policy.plan(replace(at, turns=turns([large_slot], period=10, before_next=0)), 100.0)
    check_plan(plan, at)
    nobody_is_admitted = plan.max_running is not None and plan.max_running <= at.running.size
    assert plan.waiting is not None
    assert plan.waiting[:1].tolist() == [large_slot] or (nobody_is_admitted and not plan.waiting.size)
    if name.startswith(FORECAST):
        assert nobody_is_admitted


def test_preemptions_make_room_for_whoever_has_the_turn(snapshot: Make) -> None:
    """The urgent one preempts for its blocks; in its place the aged one comes first, and needs as many as two hold."""
    urgent, old = {"priority": -9, "prompt_tokens": 15}, {"priority": 9, "prompt_tokens": 63}
    at = snapshot([urgent, old], [{"priority": p, "kv_blocks": 2} for p in (1, 2, 3)], free_blocks=0, total_blocks=7)
    alone = make_policy("priority", {}, seed=0).plan(at, 0.0)
    assert (alone.waiting.tolist(), alone.preempt.tolist()) == ([3, 4], [2])  # type: ignore[union-attr]
    turned = make_policy("priority", {}, seed=0).plan(replace(at, turns=turns([4], 10, 0)), 0.0)
    assert turned.waiting is not None and turned.waiting.tolist() == [4, 3]
    assert turned.preempt.tolist() == [2, 1, 0]
