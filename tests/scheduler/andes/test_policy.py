"""Andes: when it plans at all, whom it admits first, who is urgent, its settings, and what holds of every plan."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.core.rows import State
from sloserve.scheduler.papers.andes_parts import AndesParts
from sloserve.scheduler.policy import Plan, Snapshot
from tests.scheduler.andes.readers import (
    NOW_S,
    TTFT_S,
    Make,
    Request,
    Steps,
    ahead,
    engine,
    gain_of_new,
    lists,
    new,
    order,
    plan,
    preempts_for,
)
from tests.snapshots import STEP_S, make_snapshot

# When it plans.

IDLE = {
    "nobody is there": ([], [], {}),
    "a slot and tokens for all that wait": ([new(9.0)] * 3, [ahead(9.0)] * 5, {}),
    "prompts that fill a step": ([new(prompt_tokens=1024)] * 2, [], {}),
    "KV just below the watermark": ([new()], [ahead(9.0)], {"free_blocks": 101}),
    "nobody waits": ([], [ahead(9.0)] * 8, {"free_blocks": 500}),
}
SHORT = {
    "more wait than there are slots": ([new()] * 4, [ahead(9.0)] * 5, {}),
    "prompts beyond a step's tokens": ([new(prompt_tokens=1024), new(prompt_tokens=1025)], [], {}),
    "preempted ones, whose output is computed again too": ([new(prompt_tokens=1024, output_tokens=1)] * 2, [], {}),
    "KV at the watermark": ([new()], [ahead(9.0)], {"free_blocks": 100}),
    "KV at the watermark and nobody waits": ([], [ahead(9.0)], {"free_blocks": 0}),
}


@pytest.mark.parametrize(("waiting", "running", "facts"), IDLE.values(), ids=IDLE)
def test_leaves_the_engine_alone_while_nothing_is_short(
    waiting: list[Request], running: list[Request], facts: dict[str, int], snapshot: Make
) -> None:
    assert plan(snapshot(waiting, running, **facts)) is Plan.IDENTITY


@pytest.mark.parametrize(("waiting", "running", "facts"), SHORT.values(), ids=SHORT)
def test_plans_when_memory_is_short(
    waiting: list[Request], running: list[Request], facts: dict[str, int], snapshot: Make
) -> None:
    made = plan(snapshot(waiting, running, **facts))
    assert made.running is not None and made.waiting is not None


def test_watermark_says_when_kv_is_short(snapshot: Make) -> None:
    at = snapshot([new()], [ahead(9.0)], free_blocks=500)
    assert plan(at, watermark=0.51) is Plan.IDENTITY
    assert plan(at, watermark=0.5) is not Plan.IDENTITY
    at = snapshot([new()], free_blocks=1000)
    assert plan(at, watermark=0.01) is Plan.IDENTITY
    assert plan(at, watermark=0.0) is not Plan.IDENTITY


# Who is admitted first.


def test_the_urgent_first_then_by_gain_per_token_of_context(snapshot: Make) -> None:
    waiting = [
        new(prompt_tokens=100, ttft_s=20.0),  # expects nothing within the horizon: gains nothing, arrived first
        new(prompt_tokens=450),  # 1 / 450
        new(5.0, prompt_tokens=205),  # too late to be urgent, 0.44 / 205
        new(5.0, prompt_tokens=150),  # 0.44 / 150
        new(0.8, prompt_tokens=1000),  # urgent, 1 / 1000
        {"arrival_s": NOW_S - 50.0, "prompt_tokens": 1},  # without any target
        new(0.8, prompt_tokens=900),  # urgent, 1 / 900
    ]
    assert gain_of_new(5.0, 205) / 205 < 1 / 450 < gain_of_new(5.0, 150) / 150
    assert order(plan(snapshot(waiting), urgent_s=0.5).waiting) == [6, 4, 3, 1, 2, 0, 5]


def test_a_preempted_request_weighs_prompt_and_output(snapshot: Make) -> None:
    """Its reader got 100 tokens after 1 s and is dry for 2 s; in the next 8 s serving adds a ramp of that length."""
    gain = (8.0 - STEP_S) ** 2 / (61 - TTFT_S) ** 2
    assert 1 / 10_000 < gain / (50 + 100) < 1 / 4000 < gain / 50
    preempted = new(53.0, prompt_tokens=50, output_tokens=100, first_token_s=NOW_S - 52.0, state=State.PREEMPTED)
    at = snapshot([preempted, new(prompt_tokens=10_000), new(prompt_tokens=4000)])
    assert order(plan(at, urgent_s=0.5).waiting) == [2, 0, 1]


@given(
    st.lists(st.tuples(st.floats(0.0, 6.0), st.integers(1, 600)), min_size=1, max_size=12), st.sampled_from([0.25, 0.9])
)
def test_the_order_is_that_of_gains_by_hand(requests: list[tuple[float, int]], urgent_s: float) -> None:
    at = make_snapshot([new(waited_s, prompt_tokens=tokens) for waited_s, tokens in requests], max_num_seqs=12)

    def key(slot: int) -> tuple[bool, float]:
        waited_s, tokens = requests[slot]
        gain = gain_of_new(waited_s, tokens)
        urgent = TTFT_S - waited_s < urgent_s and gain >= 0.5
        # Equal gains differ in the last bit.
        return not urgent, round(-gain / tokens, 12)

    made = plan(at, watermark=0.0, urgent_s=urgent_s)
    assert [key(slot) for slot in order(made.waiting)] == sorted(map(key, range(len(requests))))


def test_ties_end_in_seq_not_in_the_slot(snapshot: Make) -> None:
    at = snapshot([new()] * 3, [ahead(9.0)] * 3)
    at.rows.seq[:6] = [7, 5, 6, 12, 10, 11]
    made = plan(at, watermark=0.0)
    assert (order(made.running), order(made.waiting)) == ([1, 2, 0], [4, 5, 3])


def test_names_no_more_than_a_step_can_admit(snapshot: Make) -> None:
    at = snapshot([new(prompt_tokens=100 - i) for i in range(20)], max_num_seqs=3)
    assert order(plan(at).waiting) == [19, 18, 17]


def test_a_shortage_of_kv_takes_whoever_is_furthest_ahead(snapshot: Make) -> None:
    at = snapshot(running=[ahead(9.0), ahead(-3.0), {"arrival_s": NOW_S}, ahead(30.0), ahead(2.0)], free_blocks=50)
    assert order(plan(at).running) == [1, 4, 0, 3, 2]


# Who is urgent: for whom the one that runs, far ahead, is preempted.


@pytest.mark.parametrize(
    ("waiting", "settings", "urgent"),
    [
        # Two seconds before its reader has nothing to read; a first token is due in one second at most.
        (new(), {}, True),
        (new(1.01, ttft_s=3.0), {}, True),
        (new(1.0, ttft_s=3.0), {}, False),
        (new(0.51), {"urgent_s": 0.5}, True),
        (new(0.5), {"urgent_s": 0.5}, False),
        (new(0.5), {"urgent_s": 0.6}, True),
        (new(0.9), {"urgent_s": 0.0}, False),
        (new(1.1), {"urgent_s": 0.0}, True),
        # Late, and still half of it can be saved; or not, unless one looks further ahead.
        (new(4.0), {}, True),
        (new(5.0), {}, False),
        (new(5.0), {"horizon_s": 30.0}, True),
        # Deadlines: 1000 tokens at 0.03 s, and the horizon.
        ({"arrival_s": NOW_S - 5.0, "e2e_s": 36.0, "oracle_output_tokens": 1000}, {"urgent_s": 32.0}, True),
        ({"arrival_s": NOW_S - 5.0, "e2e_s": 36.0, "oracle_output_tokens": 1000}, {}, False),
        ({"arrival_s": NOW_S - 5.0, "e2e_s": 34.0, "oracle_output_tokens": 1000}, {"urgent_s": 32.0}, False),
        ({"arrival_s": NOW_S - 5.0, "e2e_s": 36.0, "oracle_output_tokens": 100}, {"urgent_s": 32.0}, False),
        ({"arrival_s": NOW_S - 500.0}, {"urgent_s": 32.0}, False),
        # By a TPOT alone, and by a TTFT alone.
        ({"arrival_s": NOW_S - 0.8, "tpot_s": 0.5, "oracle_output_tokens": 1000}, {}, True),
        ({"arrival_s": NOW_S - 0.8, "ttft_s": 1.0, "oracle_output_tokens": 1000}, {}, True),
        ({"arrival_s": NOW_S - 0.8, "ttft_s": 2.0, "oracle_output_tokens": 1000}, {"urgent_s": 0.5}, False),
        ({"arrival_s": NOW_S - 0.8, "ttft_s": 2.9, "oracle_output_tokens": 1000}, {}, False),
        # A first token late by 3.1 s counts for 0.9 ** 3.1 = 0.72, or 0.5 ** 3.1 = 0.11.
        (new(4.0), {"alpha": 0.99}, True),
        (new(4.0), {"alpha": 0.5}, False),
        (new(0.8), {"alpha": 0.0}, True),
    ],
)
def test_who_is_urgent(waiting: Request, settings: dict[str, Any], urgent: bool) -> None:
    assert preempts_for(waiting, **settings) == urgent


def test_nobody_is_urgent_who_gains_next_to_nothing() -> None:
    """With 200 tokens read in 100 s, dry since 0.1 s: 1 s of waiting is 1 % of what is expected by then, squared."""
    long_ago = {"state": State.PREEMPTED, "output_tokens": 200, "first_token_s": NOW_S - 100.1}
    waits = new(101.1, oracle_output_tokens=5000, **long_ago)
    for horizon_s, urgent in ((1.0, False), (30.0, True)):
        lost = (horizon_s / (100.1 + horizon_s)) ** 2
        assert (lost >= 0.02) == urgent
        assert preempts_for(waits, horizon_s=horizon_s) == urgent


@pytest.mark.parametrize(
    ("running", "prompt_tokens", "urgent"), [(1, 16, True), (1, 4096, False), (2, 16, True), (3, 16, False)]
)
def test_steps_are_of_as_many_as_run_and_prompts_take_a_share_of_them(
    running: int, prompt_tokens: int, urgent: bool, snapshot: Make
) -> None:
    """Half of what is expected can be saved of a reply that begins within 0.93 s; 4096 tokens take two steps more."""
    waits = new(3.0, prompt_tokens=prompt_tokens, tds=0.5)
    at = engine(snapshot([waits], [ahead(100.0)] * running, max_num_seqs=running), step_latency=Steps(0.4))
    assert bool(plan(at).preempt.size) == urgent


def test_perfect_gives_up_on_who_is_late(snapshot: Make) -> None:
    waiting = [new(2.0), new(0.8, prompt_tokens=200)]
    at = snapshot(waiting)
    assert gain_of_new(2.0, 16) / 16 > 1 / 200
    assert order(plan(at, watermark=0.0).waiting) == [0, 1]
    assert order(plan(at, watermark=0.0, objective="perfect").waiting) == [1, 0]
    assert preempts_for(new(2.0)) and not preempts_for(new(2.0), objective="perfect")
    assert preempts_for(new(0.8), objective="perfect")


def test_min_lifts_those_who_would_be_the_worst(snapshot: Make) -> None:
    """Of two preempted readers the first is content for now, and has less to gain than the second, which is dry."""
    read = {"state": State.PREEMPTED, "first_token_s": NOW_S - 29.0, "prompt_tokens": 10}
    content = new(30.0, output_tokens=58, **read)  # 29 s at 2 a second
    dry = new(30.0, output_tokens=50, **read)  # 25 s
    worst = (25**2 + 50 * 4) / 29**2
    wait = {"content": (29**2 + 58 * 8) / 37**2, "dry": (25**2 + 50 * 12) / 37**2}
    assert wait["content"] < worst
    at = snapshot([content, dry])
    # Both gain, per token of context, (up to what is worst now - what it would be) / context.
    expected = {0: (worst - wait["content"]) / 68, 1: (worst - wait["dry"]) / 60}
    assert expected[1] > expected[0] > 0.0
    assert order(plan(at, watermark=0.0, objective="min", urgent_s=0.0, horizon_s=8.0).waiting) == [1, 0]
    # One who has had nothing for 3 s has QoE 0, and nobody can fall below.
    at = snapshot([content, dry, new(3.0)])
    assert order(plan(at, watermark=0.0, objective="min").waiting) == [0, 1, 2]


# Settings.

REFUSED = [
    ({"objective": "median"}, "objective: 'median' is not one of mean, min, perfect"),
    ({"victims": "random"}, "victims: 'random' is not one of lead, gain"),
    ({"length": "guess"}, "length: 'guess' is not one of predicted, predicted-gaussian, empirical, gaussian, oracle"),
    ({"alpha": 1.1}, r"alpha: 1\.1 is not within 0\.\.1"),
    ({"alpha": -0.1}, r"alpha: -0\.1 is not within 0\.\.1"),
    ({"alpha": np.nan}, r"alpha: nan is not within 0\.\.1"),
    ({"headroom": 0.6}, r"headroom: 0\.6 is not within 0\.\.0\.5"),
    ({"watermark": 1.01}, r"watermark: 1\.01 is not within 0\.\.1"),
    ({"horizon_s": -1.0}, r"horizon_s: -1\.0 is not 0 or more, and finite"),
    ({"horizon_s": np.inf}, "horizon_s: inf is not 0 or more, and finite"),
    ({"lead_s": -0.5}, r"lead_s: -0\.5 is not 0 or more, and finite"),
    ({"urgent_s": -0.5}, r"urgent_s: -0\.5 is not 0 or more, and finite"),
    ({"preemption_cap": -1.0}, r"preemption_cap: -1\.0 is not 0 or more, and finite"),
    ({"max_preemptions": -1}, "max_preemptions: -1 is not 0 or more, and finite"),
    ({"length_error": -0.1}, r"length_error: -0\.1 is not 0 or more, and finite"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED, ids=[next(iter(one)) for one, _ in REFUSED])
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        AndesParts.Settings(**settings)


def test_settings_at_their_limits_are_accepted() -> None:
    AndesParts.Settings(alpha=0.0, headroom=0.0, watermark=0.0, lead_s=0.0, urgent_s=0.0, preemption_cap=0.0)
    AndesParts.Settings(alpha=1.0, headroom=0.5, watermark=1.0, max_preemptions=0, horizon_s=0.0, length_error=0.0)


# Whatever comes.

TARGETS = st.sampled_from(
    [{"ttft_s": 1.0, "tds": 2.0}, {"ttft_s": 0.5}, {"tpot_s": 0.1}, {"e2e_s": 30.0}, {"ttft_s": 2.0, "e2e_s": 9.0}, {}]
)
WAITING = st.builds(
    lambda waited_s, targets, prompt: {"arrival_s": NOW_S - waited_s, "prompt_tokens": prompt} | targets,
    st.floats(0.0, 9.0),
    TARGETS,
    st.integers(1, 900),
)
RUNNING = st.builds(
    lambda lead_s, prompt, some, other: ahead(lead_s, prompt_tokens=prompt, computed_tokens=prompt + 16) | some | other,
    st.integers(-4, 99),
    st.sampled_from([16, 20, 320]),
    st.sampled_from([{}, {"preemptable": False}, {"pausable": False}, {"num_preemptions": 1}]),
    st.sampled_from([{}, {"kv_blocks": 30}, {"tds": np.nan, "ttft_s": np.nan, "e2e_s": 90.0}]),
)
SNAPSHOTS = st.builds(
    lambda waiting, running, spare, free, budget, each_s: engine(
        make_snapshot(waiting, running, max_num_seqs=max(len(running) + spare, 1), free_blocks=free, total_blocks=200),
        token_budget=budget,
        step_latency=Steps(each_s),
    ),
    st.lists(WAITING, max_size=9),
    st.lists(RUNNING, max_size=9),
    st.sampled_from([0, 0, 1, 3]),
    st.integers(0, 60),
    st.sampled_from([256, 2048]),
    st.sampled_from([0.001, 0.01, 0.3]),
)
SETTINGS = st.fixed_dictionaries(
    {
        "objective": st.sampled_from(["mean", "min", "perfect"]),
        "victims": st.sampled_from(["lead", "gain"]),
        "lead_s": st.sampled_from([0.0, 20.0, 40.0]),
        "urgent_s": st.sampled_from([0.5, 5.0]),
        "headroom": st.sampled_from([0.0, 0.02, 0.2]),
        "watermark": st.sampled_from([0.0, 0.9]),
        "preemption_cap": st.sampled_from([0.2, 1.0]),
        "length": st.sampled_from(["predicted", "oracle"]),
        "length_error": st.sampled_from([0.0, 0.3]),
    }
)


@given(at=SNAPSHOTS, settings=SETTINGS)
def test_every_plan_can_be_carried_out_and_preempts_only_whom_it_may_for_whom_it_must(
    at: Snapshot, settings: dict[str, Any]
) -> None:
    made = plan(at, **settings)
    assert lists(made) == lists(plan(at, **settings))
    if made is Plan.IDENTITY:
        return
    waiting, running, preempt, pause = lists(made)[:4]
    assert set(waiting) <= set(order(at.waiting)) and len(waiting) == min(at.waiting.size, at.engine.max_num_seqs)
    assert sorted(running + preempt) == order(at.running)
    assert set(pause) <= set(running)
    assert made.max_running is None or made.max_running >= 1

    rows, facts = at.rows, at.engine
    assert rows.preemptable[preempt].all() and not rows.num_preemptions[preempt].any()
    assert len(preempt) <= settings["preemption_cap"] * (at.waiting.size + at.running.size)
    kept = -(-facts.total_blocks * round(settings["headroom"] * 100) // 100)
    free_blocks = facts.free_blocks - kept
    if preempt:
        # Not all that wait had room, and now the first has.
        needed = [-(-(int(rows.prompt_tokens[s]) + 1) // facts.layout.block_size) for s in waiting]
        assert len(waiting) > facts.free_slots or sum(needed) > free_blocks
        assert needed[0] <= free_blocks + int(rows.kv_blocks[preempt].sum())
    else:
        assert made.max_running is None or made.max_running <= max(len(running) + facts.free_slots, 1)
    assert not (pause and preempt)
    assert rows.pausable[pause].all()
    assert not pause or facts.free_blocks < len(running)
