"""Decodes before unfinished prompts, the next victims last; the policy's order holds within each part."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.core.rows import COLUMNS, Rows, State
from sloserve.lso.decode_first import decode_first, service_order, uncomputed_tokens, unfinished
from sloserve.scheduler.policy import Snapshot
from tests.snapshots import make_snapshot

PROMPT = 100
BLOCK = 16


def running(*rows: dict[str, int]) -> Rows:
    table = Rows(frozenset(COLUMNS))
    for row in rows:
        table.add(**{"state": State.RUNNING, "prompt_tokens": PROMPT} | row)
    return table


@pytest.mark.parametrize(
    ("computed", "output", "left"),
    [
        (0, 0, 100),
        (99, 0, 1),
        # All of the prompt is in flight; the reply's first token follows in the next step.
        (100, 0, 0),
        # The reply's last token is computed next, or is in flight.
        (109, 10, 0),
        (110, 10, 0),
        # Drafts in flight count as computed.
        (115, 10, 0),
        # Resumed: prompt and output so far are computed again.
        (0, 10, 110),
        (100, 10, 10),
        (108, 10, 2),
    ],
)
def test_prefill_that_is_left(computed: int, output: int, left: int) -> None:
    rows = running({"computed_tokens": computed, "output_tokens": output})
    assert uncomputed_tokens(rows, np.array([0])).tolist() == [left]
    assert unfinished(rows, np.array([0])).tolist() == [left > 0]


def test_of_what_the_host_pool_keeps_only_what_the_prefix_cache_lacks_is_loaded() -> None:
    rows = running({"swapped_tokens": 64}, {"hit_tokens": 48}, {"swapped_tokens": 64, "hit_tokens": 80})
    assert uncomputed_tokens(rows, np.arange(3)).tolist() == [36, 52, 20]


def test_an_unfinished_prompt_does_not_stand_before_decodes() -> None:
    rows = running({"computed_tokens": 64}, {"computed_tokens": 100}, {"computed_tokens": 104, "output_tokens": 5})
    assert decode_first(rows, np.array([0, 2, 1])).tolist() == [2, 1, 0]


def test_nobody_runs() -> None:
    assert decode_first(running(), np.empty(0, np.int64)).size == 0


PROGRESS = st.lists(st.tuples(st.integers(0, 120), st.integers(0, 20)), max_size=20)


@given(PROGRESS.flatmap(lambda progress: st.tuples(st.just(progress), st.permutations(range(len(progress))))))
def test_each_part_is_in_the_policys_order(case: tuple[list[tuple[int, int]], list[int]]) -> None:
    progress, order = case
    rows = running(*({"computed_tokens": computed, "output_tokens": output} for computed, output in progress))
    is_prompt = unfinished(rows, np.arange(len(progress)))
    decodes, prompts = [s for s in order if not is_prompt[s]], [s for s in order if is_prompt[s]]
    assert decode_first(rows, np.array(order, np.int64)).tolist() == decodes + prompts


def decode(context: int, **row: int) -> dict[str, int]:
    """A decoding request of ``context`` tokens with KV, the output's 5 but the last included."""
    return {"prompt_tokens": context - 4, "output_tokens": 5, "computed_tokens": context} | row


def prompt(computed: int, of: int = PROMPT, **row: int) -> dict[str, int]:
    return {"prompt_tokens": of, "computed_tokens": computed} | row


def served(running: list[dict[str, int]], order: list[int], free_blocks: int) -> list[int]:
    """Slots as they come out."""
    at = make_snapshot(running=running, free_blocks=free_blocks)
    return service_order(at.rows, np.array(order), at.engine).tolist()


def test_nobody_is_named_a_victim_while_blocks_suffice() -> None:
    # One decode fills its block; the prompt's next chunk is 68 tokens, of which 64 need blocks.
    running = [prompt(32), decode(3 * BLOCK), decode(40)]
    assert served(running, [0, 1, 2], free_blocks=6) == [1, 2, 0]
    assert served(running, [0, 1, 2], free_blocks=5) == [1, 0, 2]


def test_as_many_victims_are_last_as_hold_the_missing_blocks() -> None:
    running = [prompt(32), decode(3 * BLOCK), decode(40), decode(40), decode(40)]
    # Six are needed; each decode of 40 tokens holds three.
    assert served(running, [0, 1, 2, 3, 4], free_blocks=3) == [1, 2, 3, 0, 4]
    assert served(running, [0, 1, 2, 3, 4], free_blocks=2) == [1, 2, 0, 3, 4]
    assert served(running, [4, 3, 0, 2, 1], free_blocks=1) == [4, 3, 0, 2, 1]


def test_the_policys_last_may_be_a_prompt() -> None:
    running = [prompt(32), prompt(64), decode(3 * BLOCK), decode(40)]
    assert served(running, [3, 1, 2, 0], free_blocks=8) == [3, 2, 1, 0]
    # It holds two blocks, one fewer than are missing.
    assert served(running, [3, 1, 2, 0], free_blocks=5) == [3, 1, 2, 0]


def test_what_no_plan_may_preempt_is_not_among_the_victims() -> None:
    running = [prompt(32), decode(40), decode(40, preemptable=0), prompt(0, preemptable=0)]
    assert served(running, [3, 0, 1, 2], free_blocks=0) == [2, 3, 0, 1]
    # Where nobody may be preempted, nobody is named.
    assert served([row | {"preemptable": 0} for row in running], [3, 0, 1, 2], free_blocks=0) == [1, 2, 3, 0]


def test_a_prompt_needs_blocks_for_what_a_step_can_compute_of_it() -> None:
    # The step has 2,048 tokens, and one is the decode's: the second prompt gets none.
    running = [decode(40), prompt(0, of=4000), prompt(0, of=4000)]
    assert served(running, [2, 1, 0], free_blocks=128) == [0, 2, 1]
    assert served(running, [2, 1, 0], free_blocks=127) == [2, 1, 0]


@st.composite
def engines(draw: st.DrawFn) -> tuple[Snapshot, list[int]]:
    progress = draw(st.lists(st.tuples(st.integers(0, 120), st.integers(0, 20), st.booleans()), max_size=12))
    running = [
        prompt(min(computed, PROMPT + output), output_tokens=output, preemptable=may)
        for computed, output, may in progress
    ]
    snapshot = make_snapshot(running=running, free_blocks=draw(st.integers(0, 60)), max_num_seqs=12)
    engine = replace(snapshot.engine, token_budget=draw(st.sampled_from([12, 100, 2048])))
    return replace(snapshot, engine=engine), draw(st.permutations(range(len(progress))))


@given(engines())
def test_three_parts_each_in_the_policys_order(case: tuple[Snapshot, list[int]]) -> None:
    at, order = case
    rows = at.rows
    found = service_order(rows, np.array(order, np.int64), at.engine).tolist()
    assert sorted(found) == sorted(order)
    # vLLM's own sum: whom the step serves, and the blocks that this takes.
    room, blocks = at.engine.token_budget, 0
    left = dict(zip(order, uncomputed_tokens(rows, np.array(order, np.int64)).tolist(), strict=True))
    for slot in decode_first(rows, np.array(order, np.int64)).tolist():
        tokens = min(left[slot] or 1, room)
        room -= tokens
        computed = int(rows.computed_tokens[slot])
        blocks += -(-(computed + tokens) // BLOCK) - -(-computed // BLOCK)
    victims: list[int] = []
    missing = blocks - at.engine.free_blocks
    for slot in reversed(order):
        if missing > 0 and rows.preemptable[slot]:
            victims.insert(0, slot)
            missing -= -(-int(rows.computed_tokens[slot]) // BLOCK)
    others = [slot for slot in order if slot not in victims]
    expected = [s for s in others if not left[s]] + [s for s in others if left[s]] + victims
    assert found == (expected if any(left.values()) else order)
