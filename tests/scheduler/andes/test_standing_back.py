"""Andes: who is preempted, who must wait, and who is paused when blocks are short."""

from typing import Any

import pytest

from sloserve.scheduler.policy import Plan
from tests.scheduler.andes.readers import (
    NOW_S,
    URGENT,
    Make,
    Request,
    ahead,
    engine,
    new,
    order,
    plan,
    preempts_for,
    told,
)

# Whom it preempts.


def test_preempts_the_longest_leads_for_the_urgent_and_admits_those(snapshot: Make) -> None:
    at = snapshot([new(), URGENT, URGENT], [ahead(50.0), ahead(3.0), ahead(90.0), ahead(70.0)], max_num_seqs=4)
    made = plan(at, urgent_s=0.5)
    assert order(made.waiting) == [5, 6, 4]
    assert order(made.preempt) == [2, 3]
    assert order(made.running) == [1, 0]
    assert not made.pause.size
    assert made.max_running == 4


NOBODY = {
    "there is a slot": ([URGENT], [ahead(90.0)], {"max_num_seqs": 2}, {"watermark": 0.0}),
    "nobody is urgent": ([new(ttft_s=3.0)], [ahead(90.0)], {}, {}),
    "nobody waits": ([], [ahead(90.0)], {}, {"watermark": 0.0}),
    "all are read soon": ([URGENT], [ahead(39.0)], {}, {}),
    "the guards forbid it": ([URGENT], [ahead(90.0, preemptable=False)], {}, {}),
    "it was preempted before": ([URGENT], [ahead(90.0, num_preemptions=1)], {}, {}),
    "nobody may be": ([URGENT], [ahead(90.0)], {}, {"max_preemptions": 0}),
    "the cap forbids it": ([URGENT], [ahead(90.0)], {}, {"preemption_cap": 0.0}),
    "their blocks do not suffice": ([new(0.8, prompt_tokens=400)], [ahead(90.0)], {"free_blocks": 40}, {}),
    "nobody is ahead by so much": ([URGENT], [ahead(90.0)], {}, {"lead_s": 90.0}),
    "the one that runs is worth more": ([new(0.8, prompt_tokens=300)], [ahead(-2.0)], {}, {"victims": "gain"}),
}


@pytest.mark.parametrize(("waiting", "running", "facts", "settings"), NOBODY.values(), ids=NOBODY)
def test_preempts_nobody_when(
    waiting: list[Request], running: list[Request], facts: dict[str, int], settings: dict[str, Any], snapshot: Make
) -> None:
    made = plan(snapshot(waiting, running, **({"max_num_seqs": 1} | facts)), **settings)
    assert made is not Plan.IDENTITY and not made.preempt.size
    assert order(made.running) == [0]


@pytest.mark.parametrize(
    ("running", "settings"),
    [
        (ahead(41.0), {}),
        (ahead(91.0), {"lead_s": 90.0}),
        (ahead(1.0), {"lead_s": 0.0}),
        ({"arrival_s": NOW_S - 10.0}, {}),
        ({"arrival_s": NOW_S - 10.0, "e2e_s": 60.0}, {}),
        (ahead(90.0, num_preemptions=1), {"max_preemptions": 2}),
        (ahead(90.0, pausable=False), {}),
        (ahead(1.0), {"victims": "gain"}),
    ],
)
def test_preempts_one_when(running: Request, settings: dict[str, Any]) -> None:
    assert preempts_for(URGENT, running, **settings)


@pytest.mark.parametrize(("free_blocks", "victims"), [(18, [2, 1]), (19, [2]), (22, [2]), (23, [])])
def test_preempts_for_blocks_beside_those_kept_for_growth(free_blocks: int, victims: list[int], snapshot: Make) -> None:
    # 97 tokens take 7 blocks of 16, each victim brings 4, and 16 of 800 stay free.
    running = [ahead(90.0 + i) for i in range(3)]
    at = snapshot([new(0.8, prompt_tokens=96)], running, free_blocks=free_blocks, total_blocks=800)
    made = plan(at)
    assert order(made.preempt) == victims
    # What they leave behind is room for the one that waits.
    assert made.max_running is None


@pytest.mark.parametrize(("token_budget", "preempted"), [(59, 1), (60, 1), (61, 2), (120, 2), (121, 3), (2048, 5)])
def test_preempts_for_no_more_than_a_step_can_begin_with(token_budget: int, preempted: int, snapshot: Make) -> None:
    at = snapshot([new(0.8, prompt_tokens=60)] * 5, [ahead(90.0)] * 8, max_num_seqs=8)
    assert plan(engine(at, token_budget=token_budget)).preempt.size == preempted


def test_preempts_no_more_than_the_cap_times_the_arrivals(snapshot: Make) -> None:
    at = snapshot([URGENT] * 4, [ahead(90.0)] * 4, max_num_seqs=4)
    policy = told(at, preemption_cap=0.25)
    assert order(plan(at, policy).preempt) == [3, 2]
    assert not plan(at, policy).preempt.size
    for arrivals, preempted in ((3, 0), (1, 1), (8, 2)):
        for _ in range(arrivals):
            policy.arrived(at.rows, at.rows.add(**URGENT), NOW_S)
        assert plan(at, policy).preempt.size == preempted


def test_preemptions_saved_up_are_no_more_than_there_are_slots(snapshot: Make) -> None:
    at = snapshot([URGENT] * 2, [ahead(90.0)] * 2, max_num_seqs=2)
    policy = told(at, preemption_cap=5.0)
    assert plan(at, policy).preempt.size == 2
    assert plan(at, policy).preempt.size == 0


def test_the_papers_victims_are_worth_less_than_the_urgent(snapshot: Make) -> None:
    # Nobody gains within 8 s but the dry one, which serving for 8 s lifts by 0.4; the longest lead has no say.
    running = [ahead(9.0), ahead(-2.0), ahead(90.0)]
    at = snapshot([URGENT] * 3, running, max_num_seqs=3)
    made = plan(at, victims="gain")
    assert order(made.preempt) == [0, 2, 1]
    at = snapshot([new(0.8, prompt_tokens=200)] * 3, running, max_num_seqs=3)
    assert order(plan(at, victims="gain").preempt) == [0, 2]
    assert order(plan(at).preempt) == [2]


# How many may run.


@pytest.mark.parametrize(
    ("headroom", "free_blocks", "facts", "max_running"),
    [
        # Each that waits takes 2 blocks; 3 run.
        (0.02, 30, {}, 3 + 5),
        (0.02, 31, {}, 3 + 5),
        (0.0, 30, {}, 3 + 15),
        (0.025, 30, {}, 3 + 2),
        (0.0, 40, {}, None),
        (0.0, 39, {}, 3 + 19),
        (0.02, 60, {}, None),
        # 2.2 blocks of 110 are 3.
        (0.02, 8, {"total_blocks": 110}, 3 + 2),
        (0.02, 20, {}, 3),
        (0.5, 30, {}, 3),
        # Slots.
        (0.0, 1000, {"max_num_seqs": 10}, 3 + 7),
    ],
)
def test_headroom_is_left_by_admissions(
    headroom: float, free_blocks: int, facts: dict[str, int], max_running: int | None, snapshot: Make
) -> None:
    at = snapshot([new()] * 20, [ahead(9.0)] * 3, **({"max_num_seqs": 99, "free_blocks": free_blocks} | facts))
    assert plan(at, headroom=headroom, watermark=0.0).max_running == max_running


def test_the_first_that_does_not_fit_ends_admission(snapshot: Make) -> None:
    waiting = [new(0.8), new(0.8, prompt_tokens=700), new()]
    at = snapshot(waiting, [ahead(9.0)], free_blocks=40)
    made = plan(at, urgent_s=0.5)
    assert (order(made.waiting), made.max_running) == ([1, 2, 3], 2)


def test_one_may_always_run(snapshot: Make) -> None:
    assert plan(snapshot([new()], free_blocks=5, total_blocks=100), headroom=0.5).max_running == 1


# Pausing.


def at_block(lead_s: float, **more: Any) -> Request:
    """Its last block is full: the next token needs another one."""
    one = ahead(lead_s)
    prompt_tokens = 17 - one["output_tokens"] % 16
    return one | {"prompt_tokens": prompt_tokens, "computed_tokens": prompt_tokens + one["output_tokens"] - 1} | more


def test_pauses_who_needs_a_block_that_is_missing(snapshot: Make) -> None:
    running = [
        at_block(30.0),
        at_block(20.0),
        at_block(40.0, pausable=False),
        at_block(5.0),
        ahead(50.0),
    ]
    for free_blocks, paused in ((0, [0, 1]), (2, [0, 1]), (3, [0]), (4, [])):
        made = plan(snapshot(running=running, free_blocks=free_blocks))
        assert order(made.pause) == paused
        assert order(made.running) == [3, 1, 0, 2, 4] and made.max_running is None
        assert not plan(snapshot(running=running, free_blocks=free_blocks), pause=False).pause.size


def test_pauses_nobody_when_somebody_is_preempted(snapshot: Make) -> None:
    running = [at_block(30.0), at_block(90.0, kv_blocks=50)]
    made = plan(snapshot([URGENT], running, free_blocks=0))
    assert order(made.preempt) == [1] and not made.pause.size
    made = plan(snapshot([URGENT], running, free_blocks=0), lead_s=100.0)
    assert order(made.pause) == [1, 0] and not made.preempt.size
