"""Prompts in progress let others pass: whom, when, at what price, and for how long."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.core.kernels.kv_layout import KVGroups, KVLayout
from sloserve.estimator.length.choice import ORACLE
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.lso.lengths import Lengths
from sloserve.lso.prompt_turns import MOST_IN_PROGRESS, Passing, let_pass
from sloserve.lso.prompts_beside_decodes import LEAST_SHARE
from sloserve.lso.standing import Standing
from sloserve.lso.step_budget import StepBudget
from sloserve.scheduler.policy import Snapshot
from tests.snapshots import make_snapshot

NOW_S = 1000.0
TOKEN_S = 0.0001
"""A step takes 0.1 ms a prompt token, so that a prompt of 10,000 tokens takes a second."""


class PerToken:
    """0.1 ms a prompt token, and 10 ms for decodes alone."""

    def step_s(self, load: StepLoad) -> float:
        return max(TOKEN_S * load.prefill_tokens, 0.01 if load.decode_seqs else 0.0)

    def prefill_within(self, seconds: float, base: StepLoad, prefix_tokens: int) -> int:
        return int(seconds / TOKEN_S)


def prompt(tokens: int, ttft_s: float = math.nan, **values: Any) -> dict[str, Any]:
    """A request of the second class."""
    fresh = {"prompt_tokens": tokens, "ttft_s": ttft_s, "arrival_s": NOW_S, "max_tokens": 10, "class_rank": 1}
    return fresh | values


def turns(
    at: Snapshot,
    *,
    budget: StepBudget | None = None,
    now_s: float = NOW_S,
    stays: tuple[int, ...] = (),
    standing: Standing | None = None,
    admits: int = 64,
    begins: bool = True,
    **facts: Any,
) -> Passing | None:
    engine = replace(at.engine, **{"step_latency": PerToken(), "token_budget": 2000, "free_blocks": 10_000} | facts)
    asked = budget or StepBudget(Lengths(ORACLE, seed=0))
    named = np.array(stays, np.int64)
    found = asked.turns(at.rows, at.running, at.waiting, named, engine, now_s, lambda: standing, admits=admits)
    if found is not None and begins:
        asked.prompt_turns.begins(found)
    return found


def waits(at: Snapshot, **options: Any) -> list[int]:
    """Slots of the prompts that are held back."""
    found = turns(at, **options)
    return [] if found is None else found.held_back.tolist()


LONG = prompt(20_000, 5.0)
CHAT = prompt(500, 1.0)


def test_a_prompt_in_progress_waits_for_one_that_would_be_late_behind_it() -> None:
    at = make_snapshot([CHAT], [LONG])
    found = turns(at)
    assert found is not None and found.held_back.tolist() == [0] and found.tokens == 500


@pytest.mark.parametrize(
    ("chat", "long", "facts"),
    [
        (prompt(500, 2.06), LONG, {}),  # it is in time behind the other
        (prompt(500, 0.04), LONG, {}),  # it is late even in front
        (prompt(500), LONG, {}),  # it has no target
        (CHAT, prompt(20_000, 2.04), {}),  # the prompt in progress would be late behind it
        (CHAT, prompt(20_000, 2.1), {}),  # or might be, since step times are predictions
        (CHAT, LONG, {"free_slots": 0}),
        (CHAT, LONG, {"free_blocks": 1250}),  # all of them for the prompt in progress
        (CHAT, LONG, {"admits": 0}),
        (CHAT, LONG, {"stays": (0,)}),  # it has aged
        (CHAT, LONG | {"pausable": False}, {}),
        (CHAT, LONG | {"first_from_s": NOW_S + 1.0}, {}),  # it was promised its targets
        (CHAT, LONG, {"chunked_prefill": False}),
        (CHAT, LONG, {"chunk_tokens": 1000}),  # the chat has half of each step
    ],
)
def test_nobody_passes(chat: dict[str, Any], long: dict[str, Any], facts: dict[str, Any]) -> None:
    assert turns(make_snapshot([chat], [long]), **facts) is None


@pytest.mark.parametrize("late", [prompt(20_000), prompt(20_000, 1.9), prompt(20_000, 5.0, arrival_s=NOW_S - 9.0)])
@pytest.mark.parametrize(("rank", "passes"), [(0, True), (1, True), (2, False)])
def test_a_prompt_without_a_target_or_a_chance_waits_for_no_less_urgent_class(
    late: dict[str, Any], rank: int, passes: bool
) -> None:
    assert waits(make_snapshot([CHAT | {"class_rank": rank}], [late])) == ([0] if passes else [])


def test_a_less_urgent_class_may_pass_a_prompt_that_is_in_time_behind_it() -> None:
    assert waits(make_snapshot([CHAT | {"class_rank": 9}], [LONG])) == [0]


def test_a_deadline_leaves_time_for_the_output() -> None:
    """A token of the output takes 10 ms: of the 3 s the output needs 2, and the prompt 0.05 of the rest."""
    due = prompt(500, e2e_s=3.0, oracle_output_tokens=200, max_tokens=500)
    assert waits(make_snapshot([due], [LONG])) == [0]
    assert waits(make_snapshot([due | {"own_e2e_s": math.nan}], [LONG])) == []
    for output, expected in ((200, [0]), (290, [0]), (300, [])):  # with 300 tokens it is late in any case
        at = make_snapshot([due | {"oracle_output_tokens": output}], [LONG])
        assert waits(at) == expected
    # The prompt in progress is due at 4.2 s, and has 2 s of tokens to compute and as many to put out.
    long = prompt(20_000, e2e_s=4.2, oracle_output_tokens=200, max_tokens=500)
    assert waits(make_snapshot([CHAT], [long])) == [0]
    assert waits(make_snapshot([CHAT], [long | {"own_e2e_s": 4.04}])) == []


def test_only_as_many_wait_as_have_to() -> None:
    """Of two prompts of 0.8 s, the last makes the chat late; behind the first alone it is in time."""
    at = make_snapshot([CHAT], [prompt(8000, 5.0), prompt(8000, 5.0)])
    assert waits(at) == [1]
    assert waits(make_snapshot([prompt(500, 0.5)], [prompt(8000, 5.0), prompt(8000, 5.0)])) == [0, 1]
    # The last may not wait, so the first does.
    assert waits(at, stays=(1,)) == [0]


def test_a_prompt_in_progress_passes_another() -> None:
    """The step has room for its tokens alone: a prompt behind the one that waits begins no earlier than that."""
    at = make_snapshot([prompt(700)], [LONG, prompt(1000, 0.5)])
    found = turns(at)
    assert found is not None and found.held_back.tolist() == [0] and found.tokens == 1000


def test_the_pairs_that_a_long_prompt_still_attends_to_count() -> None:
    """Half of its tokens take more than half of its time."""

    class Pairs(PerToken):
        def step_s(self, load: StepLoad) -> float:
            return super().step_s(load) + 1e-9 * load.prefill_attention_tokens2

    long = prompt(20_000, 2.55)
    assert waits(make_snapshot([CHAT], [long])) == [0]
    # With 0.4 s for its pairs it is in time in its place, and late behind the chat.
    assert waits(make_snapshot([CHAT], [long]), step_latency=Pairs()) == []


def test_a_step_with_room_for_no_chunk_lets_nobody_pass() -> None:
    """A chunk has to end at a multiple of the block, and the step has fewer tokens left."""
    layout = KVLayout((KVGroups(1, 528), KVGroups(3, 528, states=2)))
    decodes = [prompt(10, computed_tokens=10, output_tokens=1) for _ in range(128)]
    at = make_snapshot([prompt(1600, 1.0)], [*decodes, LONG | {"computed_tokens": 1056}], max_num_seqs=512)
    assert turns(at, layout=layout, token_budget=640) is None


def test_among_many_prompts_in_progress_nobody_passes() -> None:
    few, many = (
        make_snapshot([CHAT], [prompt(20_000)] * num, max_num_seqs=64)
        for num in (MOST_IN_PROGRESS, MOST_IN_PROGRESS + 1)
    )
    facts = {"free_blocks": 100_000}
    assert waits(few, **facts) and not waits(many, **facts)


def test_no_tenant_beyond_its_share_passes_one_within_its_own() -> None:
    """Unless that one is in time nevertheless: the time that it can spare is left by its tenant."""
    at, spare = (
        make_snapshot([CHAT | {"account": 1}], [long | {"account": 0}]) for long in (LONG | {"ttft_s": math.nan}, LONG)
    )
    beyond = Standing(np.array([0, 1]), np.zeros(2), np.zeros(2))
    within = Standing(np.array([1, 0]), np.zeros(2), np.zeros(2))
    assert waits(at, standing=beyond) == []
    assert waits(at, standing=within) == [0]
    assert waits(spare, standing=beyond) == [0]


@pytest.mark.parametrize("begun", [False, True])
def test_prompts_that_wait_get_their_least_share_of_the_time(begun: bool) -> None:
    """Chats arrive for ever, and each would be late behind the prompt that has begun."""
    budget, now_s, computed_s = StepBudget(Lengths(ORACLE, seed=0)), NOW_S, 0.0
    decode = prompt(10, computed_tokens=10, output_tokens=1)
    for number in range(2000):
        chat = CHAT | {"arrival_s": now_s}
        at = make_snapshot([] if begun else [chat], [decode, prompt(20_000), *([chat] if begun else [])])
        at.rows.seq[2] = 10 + number
        step_s = 0.05
        if not waits(at, budget=budget, now_s=now_s):
            step_s = 0.2
            computed_s += step_s
        now_s += step_s
    assert computed_s / (now_s - NOW_S) == pytest.approx(LEAST_SHARE, rel=0.15)


def test_a_request_that_is_not_admitted_is_waited_for_once() -> None:
    decode = prompt(10, computed_tokens=10, output_tokens=1)
    for running in ([LONG], [decode, LONG]):  # without a decode the step may be empty
        budget, at = StepBudget(Lengths(ORACLE, seed=0)), make_snapshot([CHAT, CHAT], running)
        first, second = at.waiting.tolist()
        # In steps that have no token for a prompt, it could not begin.
        assert [len(waits(at, budget=budget, begins=False)) for _ in range(3)] == [1, 1, 1]
        assert [len(waits(at, budget=budget)) for _ in range(3)] == [1, 0, 0]
        # Nor for a request behind it, which would begin after it.
        at.rows.seq[second] = 8
        assert waits(at, budget=budget) == []
        at.rows.seq[first] = 7
        assert waits(at, budget=budget) == at.running[-1:].tolist()


def late_of(order: list[int], need: list[float], slack: list[float]) -> set[int]:
    """Prompts with a target that are late in this order."""
    ends = dict(zip(order, np.cumsum([need[one] for one in order]), strict=True))
    return {one for one in order if ends[one] > slack[one] + 1e-9}


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 200), st.booleans(), st.booleans()), min_size=2, max_size=9),
    st.integers(1, 8),
)
def test_nobody_becomes_late_who_was_in_time(drawn: list[tuple[int, int, bool, bool]], begun: int) -> None:
    """Some are in time who were late; prompts that have not begun, and those that stay, keep their order."""
    need = [float(one[0]) for one in drawn]
    slack = [float(one[1]) if one[2] else math.nan for one in drawn]
    may_wait = [one[3] and place < begun for place, one in enumerate(drawn)]
    before = list(range(len(drawn)))
    ends = np.cumsum(need)
    endangered = np.flatnonzero((np.array(slack) >= need) & (np.array(slack) < ends))
    zeros = np.zeros(len(drawn), np.int64)
    found = let_pass(np.array(need), np.array(slack), endangered, np.array(may_wait), zeros, zeros)
    if found is None:
        return
    after = found[0].tolist()
    assert 0 < found[1].size <= begun and all(may_wait[one] for one in found[1].tolist())
    assert sorted(after) == before
    assert late_of(after, need, slack) < late_of(before, need, slack)
    fixed = [one for one in after if not may_wait[one]]
    assert fixed == sorted(fixed)


def test_nothing_changes_where_no_prompt_has_begun() -> None:
    assert turns(make_snapshot([CHAT, LONG], [])) is None
    assert turns(make_snapshot([], [LONG])) is None
