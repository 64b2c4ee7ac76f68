"""auto: known rules where they are optimal, and room where the gain exceeds the loss."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sloserve.estimator.step_time.latency import StepLoad
from sloserve.lso.plan import SwapFacts
from sloserve.lso.preemption import Holding
from sloserve.scheduler.auto.policy import Auto
from sloserve.scheduler.policy import Plan, Snapshot, check_plan
from sloserve.scheduler.registry import make_policy
from tests.snapshots import SteadySteps, make_snapshot

Make = Callable[..., Snapshot]
NOW_S = 1000.0
CHAT = {"arrival_s": NOW_S - 0.5, "ttft_s": 1.0, "tds": 5.0, "prompt_tokens": 200}
JOB = {"arrival_s": NOW_S - 5.0, "e2e_s": 60.0, "prompt_tokens": 200}


def planned(at: Snapshot, **settings: Any) -> Plan:
    made = Auto(Auto.Settings(**settings)).plan(at, NOW_S)
    check_plan(made, at)
    return made


def order(plan: Plan) -> list[int]:
    assert plan.waiting is not None
    return plan.waiting.tolist()


@given(st.lists(st.integers(2, 400), min_size=2, max_size=8, unique=True))
def test_with_first_token_targets_alone_the_least_slack_goes_first(tenths: list[int]) -> None:
    at = make_snapshot([{"arrival_s": NOW_S, "ttft_s": tenth / 10.0, "prompt_tokens": 20} for tenth in tenths])
    assert order(planned(at)) == np.argsort(tenths).tolist()


@given(st.lists(st.integers(1, 3000), min_size=2, max_size=8, unique=True))
def test_without_targets_the_least_work_goes_first(prompts: list[int]) -> None:
    at = make_snapshot([{"arrival_s": NOW_S, "prompt_tokens": tokens} for tokens in prompts])
    assert order(planned(at)) == np.argsort(prompts).tolist()


def boosted(requests: list[tuple[float, int]], tail: float = 1.5, **facts: Any) -> list[int]:
    """Return the order of waiting requests without targets, given by age in seconds and prompt tokens."""
    at = make_snapshot(
        [{"arrival_s": NOW_S - age_s, "prompt_tokens": tokens, **facts} for age_s, tokens in requests],
        total_blocks=100_000,
        free_blocks=100_000,
        max_num_seqs=64,
    )
    return order(planned(at, tail=tail))


def by_age(requests: list[tuple[float, int]]) -> list[int]:
    return np.argsort([-age_s for age_s, _ in requests], kind="stable").tolist()


AGED = st.lists(
    st.tuples(st.integers(0, 1000).map(lambda tenths: tenths / 10.0), st.integers(1, 3000)),
    min_size=2,
    max_size=8,
    unique_by=(lambda one: one[0], lambda one: one[1]),
)


@given(AGED)
def test_without_targets_ages_far_apart_decide_alone(requests: list[tuple[float, int]]) -> None:
    assert boosted([(1e6 * age_s, tokens) for age_s, tokens in requests]) == by_age(requests)


@given(AGED)
def test_tail_leads_from_least_work_to_order_of_arrival(requests: list[tuple[float, int]]) -> None:
    assert boosted(requests, tail=0.0) == np.argsort([tokens for _, tokens in requests]).tolist()
    assert boosted(requests, tail=1e6) == by_age(requests)


@given(AGED, st.floats(0.0, 1e4))
def test_without_targets_the_order_depends_neither_on_class_nor_on_the_clock(
    requests: list[tuple[float, int]], later_s: float
) -> None:
    """Boosted arrivals decide: as long as the queue stays the same, time changes nothing."""
    now = boosted(requests)
    assert boosted(requests, class_rank=3) == now
    assert boosted([(age_s + round(later_s, 1), tokens) for age_s, tokens in requests]) == now


def test_the_least_work_goes_first_where_much_of_the_cache_will_be_found_again() -> None:
    """As between the calls of agents, of which those in progress find their KV: a long request came long before."""
    at = make_snapshot(
        [{"arrival_s": NOW_S - 900.0, "prompt_tokens": 3000}, {"arrival_s": NOW_S, "prompt_tokens": 100}],
        total_blocks=1000,
        free_blocks=1000,
    )
    assert order(planned(at)) == [0, 1]
    assert order(planned(replace(at, awaited_blocks=10.0))) == [0, 1]
    assert order(planned(replace(at, awaited_blocks=100.0))) == [1, 0]


def test_the_order_among_requests_without_targets_leaves_all_others_their_places() -> None:
    """A long request that has time keeps its place among them, whatever their order is."""
    lax = {"arrival_s": NOW_S - 0.1, "prompt_tokens": 16_000, "e2e_s": 600.0}
    without = [{"arrival_s": NOW_S - 0.1 - i, "prompt_tokens": 1000 + i} for i in range(30)]
    at = make_snapshot([lax, *without], total_blocks=100_000, free_blocks=100_000, max_num_seqs=64)
    places = {order(planned(at, tail=tail)).index(0) for tail in (0.0, 1.5, 100.0, 1e300)}
    assert len(places) == 1 and 0 < places.pop() < 30


def test_only_the_requests_that_came_soon_after_a_long_one_overtake_it() -> None:
    """The last of 40 short requests came so late that their boost no longer moves them ahead of it."""
    requests = [(2.0, 30_000), *((at / 20.0, 200) for at in range(39, -1, -1))]
    place = boosted(requests).index(0)
    assert 0 < place < 40 and boosted(requests, tail=0.0).index(0) == 40


@pytest.mark.slow
@settings(max_examples=10)
@given(st.lists(st.integers(1, 3000), min_size=2, max_size=8, unique=True))
def test_readers_that_came_together_and_read_alike_go_as_andes_has_them(prompts: list[int]) -> None:
    """Where the KV cache is short, who takes least of it goes first: gains are alike, and so gain per KV decides."""
    reader = {"arrival_s": NOW_S - 0.1, "tds": 4.8, "oracle_output_tokens": 300, "max_tokens": 300}
    at = make_snapshot([{**reader, "prompt_tokens": tokens} for tokens in prompts], free_blocks=2, max_num_seqs=256)
    andes = make_policy("andes", {"length": "oracle"})
    for slot in at.waiting.tolist():
        andes.arrived(at.rows, slot, NOW_S)
    theirs = andes.plan(at, NOW_S).waiting
    assert theirs is not None and order(planned(at, length="oracle")) == theirs.tolist() == np.argsort(prompts).tolist()


def test_what_can_be_in_time_goes_before_what_is_late_and_that_is_not_dropped(snapshot: Make) -> None:
    late = {**CHAT, "arrival_s": NOW_S - 20.0}
    assert order(planned(snapshot([late, CHAT, {**JOB, "e2e_s": 1.0}, JOB])))[0] == 1
    assert sorted(order(planned(snapshot([late, CHAT, JOB])))) == [0, 1, 2]


def test_a_prompt_that_the_next_steps_end_too_late_for_is_late(snapshot: Make) -> None:
    """A step of 0.2 s is in flight: a prompt begins at its end, and has its token a step later at the earliest."""
    hopeful = {**CHAT, "ttft_s": 0.95}
    too_late = {**CHAT, "ttft_s": 0.85}
    at = snapshot([too_late, hopeful])
    assert order(planned(at)) == [0, 1]
    assert order(planned(replace(at, engine=replace(at.engine, busy_s=0.2, step_latency=Linear())))) == [1, 0]


class Linear(SteadySteps):
    def step_s(self, load: StepLoad) -> float:
        return super().step_s(load) + 1e-4 * load.prefill_tokens


def test_kv_that_was_kept_brings_nobody_back_sooner() -> None:
    """Nor later: one that gave way is ranked as if its KV had to be computed again, as it is where it was dropped."""
    gave_way = {**JOB, "arrival_s": NOW_S - 0.5, "prompt_tokens": 1000, "output_tokens": 20, "num_preemptions": 1}
    new = {**JOB, "arrival_s": NOW_S, "prompt_tokens": 1100}
    swap = SwapFacts(block_bytes=2**21, total_blocks=4000, free_blocks=4000, bytes_per_s=50e9)

    def ranked(kept_tokens: int, pool: SwapFacts | None) -> list[int]:
        at = make_snapshot([{**gave_way, "swapped_tokens": kept_tokens}, new])
        return order(planned(replace(at, engine=replace(at.engine, swap=pool, step_latency=Linear()))))

    assert ranked(1019, swap) == ranked(0, swap) == ranked(0, None) == [1, 0]
    assert ranked(1019, None) == [0, 1], "without the rule it is the cheaper one"


def test_a_reply_that_may_not_be_long_can_be_in_time(snapshot: Make) -> None:
    """The chance to end in time counts ``max_tokens``: where these fit it is 1."""
    tight = {**JOB, "arrival_s": NOW_S, "e2e_s": 1.0}
    assert order(planned(snapshot([{**tight, "max_tokens": 100_000}, {**tight, "max_tokens": 4}])))[0] == 1


def test_the_weight_of_a_class_counts_where_targets_decide(snapshot: Make) -> None:
    assert order(planned(snapshot([{**CHAT, "class_rank": 1}, CHAT, {**CHAT, "class_rank": 2}]))) == [1, 0, 2]


@pytest.mark.parametrize("full", [{"max_num_seqs": 2}, {"free_blocks": 1, "total_blocks": 64}])
def test_a_reader_far_ahead_gives_way_and_one_without_lead_does_not(full: dict[str, Any], snapshot: Make) -> None:
    ahead = {"arrival_s": NOW_S - 30.0, "first_token_s": NOW_S - 29.0, "ttft_s": 2.0, "tds": 5.0, "prompt_tokens": 200}
    ahead |= {"computed_tokens": 800, "kv_blocks": 50, "output_tokens": 600, "max_tokens": 700}
    spent = {**ahead, "output_tokens": 146, "max_tokens": 150}
    made = planned(snapshot([CHAT], running=[spent, ahead], **full))
    assert made.preempt.tolist() == [1]
    assert not planned(snapshot([CHAT], running=[spent, spent], **full)).preempt.size
    assert not planned(snapshot([CHAT], running=[spent, ahead], **full), preempt=False).preempt.size


def test_free_blocks_are_promised_to_one_request_of_a_plan(snapshot: Make) -> None:
    """The first takes 13 of the 18 free blocks, so the second, which is not forecast to fit, needs those of another."""
    ahead = {"arrival_s": NOW_S - 30.0, "first_token_s": NOW_S - 29.0, "ttft_s": 2.0, "tds": 5.0, "prompt_tokens": 200}
    ahead |= {"computed_tokens": 800, "kv_blocks": 50, "output_tokens": 600, "max_tokens": 700}
    brief, long = {**CHAT, "max_tokens": 4}, {**CHAT, "arrival_s": NOW_S - 0.4, "max_tokens": 1500}
    at = snapshot([brief, long], running=[ahead], free_blocks=18, total_blocks=70)
    made = planned(at)
    assert made.max_running == 2
    assert order(made) == [1, 2] and made.preempt.tolist() == [0]
    assert not planned(snapshot([long], running=[ahead], free_blocks=18, total_blocks=70)).preempt.size


def test_equal_requests_go_as_they_came_and_plans_repeat(snapshot: Make) -> None:
    at = snapshot([CHAT, JOB] * 6)
    first = order(planned(at))
    assert [slot for slot in first if slot % 2 == 0] == [0, 2, 4, 6, 8, 10]
    assert first == order(planned(at))


AHEAD_OF_ITS_READER = {
    **{"arrival_s": NOW_S - 30.0, "first_token_s": NOW_S - 29.0, "ttft_s": 2.0, "tds": 5.0, "prompt_tokens": 200},
    **{"computed_tokens": 800, "kv_blocks": 50, "output_tokens": 600, "max_tokens": 700},
}


@pytest.mark.parametrize(("so_far", "gives_way"), [(1, True), (2, False), (3, False)])
def test_no_request_is_preempted_more_often_than_allowed(so_far: int, gives_way: bool, snapshot: Make) -> None:
    at = snapshot([CHAT], running=[{**AHEAD_OF_ITS_READER, "num_preemptions": so_far}] * 2, max_num_seqs=2)
    assert bool(planned(at, max_preemptions=2).preempt.size) == gives_way
    assert not planned(at, max_preemptions=0).preempt.size


def test_what_must_not_be_preempted_is_passed_over(snapshot: Make) -> None:
    """The guards would drop it from the plan, and nothing would give way in its place."""
    running = [{**AHEAD_OF_ITS_READER, "preemptable": may} for may in (False, True, False)]
    assert planned(snapshot([CHAT], running=running, max_num_seqs=3)).preempt.tolist() == [1]
    assert not planned(snapshot([CHAT], running=running[:1], max_num_seqs=1)).preempt.size


def test_the_reserve_of_blocks_is_not_promised_to_whoever_preempts(snapshot: Make) -> None:
    """Of 64 blocks 10 are free, which is less than a reserve of 20: one that needs 2 has to have them freed."""
    urgent, running = {"arrival_s": NOW_S - 0.5, "ttft_s": 1.0, "tds": 5.0, "prompt_tokens": 20}, AHEAD_OF_ITS_READER
    at = snapshot([urgent], running=[running], max_num_seqs=2, free_blocks=10, total_blocks=64)
    with_reserve, without = planned(at, reserve=0.3), planned(at, reserve=0.0)
    assert (with_reserve.preempt.tolist(), with_reserve.max_running) == ([0], 1)
    assert (without.preempt.tolist(), without.max_running) == ([], 2)


def test_no_more_are_promised_a_place_than_there_are(snapshot: Make) -> None:
    """The first one's victim frees blocks for two. The second has no victim of its own: the other that runs would lose
    more than it gains, although it seems to lose least for its blocks, all of which it shares.
    """
    first = {"arrival_s": NOW_S - 5.0, "prompt_tokens": 600, "e2e_s": 10.0}
    second = {"arrival_s": NOW_S - 0.5, "prompt_tokens": 30, "ttft_s": 2.0, "tds": 5.0, "class_rank": 1}
    common = {"arrival_s": NOW_S - 5.0, "prompt_tokens": 20, "class_rank": 2}
    shares = common | {"e2e_s": 10.0, "first_token_s": NOW_S - 1.0, "output_tokens": 5, "max_tokens": 105}
    shares |= {"computed_tokens": 24, "kv_blocks": 1000}
    gives = common | {"ttft_s": 1.0, "tds": 5.0, "first_token_s": NOW_S - 29.0, "output_tokens": 150, "max_tokens": 250}
    gives |= {"computed_tokens": 169, "kv_blocks": 11}
    at = snapshot([first, second], running=[shares, gives], max_num_seqs=2, free_blocks=0)
    holding = {0: Holding(0, {1: 2}), 1: Holding(60)}
    made = planned(replace(at, holding_of=holding.__getitem__), reserve=0.0, hysteresis=0.05)
    assert (made.preempt.tolist(), made.max_running) == ([1], 2)


@pytest.mark.parametrize("policy", ["auto", "econo"])
@pytest.mark.parametrize(
    ("shared", "awaited", "most"), [(0, 0.0, 4), (270, 0.0, 5), (270, 300.0, 4)], ids=["alone", "shared", "awaited"]
)
def test_shared_kv_counts_once_and_awaited_kv_stays(
    policy: str, shared: int, awaited: float, most: int, snapshot: Make
) -> None:
    """Four requests of 100 blocks hold 130 of 500 together. One of 150 fits beside them, unless 300 are left free."""
    running = [
        {"prompt_tokens": 1600, "computed_tokens": 1600, "kv_blocks": 100, "max_tokens": 20, "arrival_s": NOW_S}
        for _ in range(4)
    ]
    asked = {"prompt_tokens": 2400, "max_tokens": 20, "arrival_s": NOW_S}
    at = snapshot([asked], running=running, max_num_seqs=8, free_blocks=370, total_blocks=501)
    at = replace(at, shared_blocks=shared, awaited_blocks=awaited)
    assert make_policy(policy, {}, seed=0).plan(at, NOW_S).max_running == most
