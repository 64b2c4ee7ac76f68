"""Blocks that tokens take: the compiled counts against a KV cache that is kept block by block."""

import pickle
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.core.kernels.kv_layout import KVGroups, KVLayout

FULL = KVLayout.full(16)


def of(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int64)


@st.composite
def groups(draw: st.DrawFn) -> KVGroups:
    size, spare = draw(st.sampled_from([1, 4, 16, 60])), draw(st.integers(0, 2))
    rule = draw(st.sampled_from(["all", "window", "chunk"]))
    window = draw(st.integers(2, 70)) if rule == "window" else 0
    chunk = draw(st.integers(1, 5)) * size if rule == "chunk" else 0
    return KVGroups(draw(st.integers(1, 3)), size, window, chunk, spare_blocks=spare)


@given(st.lists(groups(), min_size=1, max_size=3), st.integers(0, 3), st.lists(st.integers(1, 40), max_size=20))
def test_held_and_growth_are_those_of_a_cache_kept_block_by_block(
    kinds: list[KVGroups], lookahead: int, steps: list[int]
) -> None:
    """Each step settles the one before, as asynchronous scheduling does."""
    layout = KVLayout(tuple(kinds), lookahead)
    tables: list[list[bool]] = [[] for kind in kinds for _ in range(kind.num_groups)]
    each = [kind for kind in kinds for _ in range(kind.num_groups)]
    computed = settled = 0
    for tokens in steps:
        before = sum(map(sum, tables))
        for kind, table in zip(each, tables, strict=True):
            for block in _out_of_reach(kind, settled):
                if block < len(table):
                    table[block] = False
        given_back = before - sum(map(sum, tables))
        taken = 0
        for kind, table in zip(each, tables, strict=True):
            wanted = -(-(computed + tokens + lookahead) // kind.block_size) + kind.spare_blocks
            taken += max(wanted - len(table), 0)
            table += [True] * (wanted - len(table))
        assert layout.growth(of(computed), tokens).tolist() == [taken]
        assert taken <= layout.most_growth(tokens, 1)
        held = sum(map(sum, tables))
        in_flight = computed + tokens - settled
        assert layout.held(of(computed + tokens), of(in_flight)).tolist() == [held] == [before - given_back + taken]
        computed, settled = computed + tokens, computed


def _out_of_reach(kind: KVGroups, settled: int) -> Iterator[int]:
    """Blocks none of whose tokens a next token sees."""
    for block in range(settled // kind.block_size + 1):
        last = (block + 1) * kind.block_size - 1
        if kind.window_tokens and last <= settled - kind.window_tokens:
            yield block
        if kind.chunk_tokens and last < settled // kind.chunk_tokens * kind.chunk_tokens:
            yield block


def test_one_group_of_full_attention_is_tokens_by_block_size() -> None:
    tokens = np.arange(200)
    zero = np.zeros_like(tokens)
    assert (FULL.held(tokens, zero) == -(-tokens // 16)).all() and (FULL.to_admit(tokens) == -(-tokens // 16)).all()
    assert (FULL.growth(tokens, 1) == (tokens % 16 == 0)).all() and FULL.most_growth(1, 9) == 9
    assert (FULL.filled(tokens / 1.0) == tokens / 16).all() and (FULL.mean(tokens / 1.0) == tokens / 16 + 0.5).all()
    assert FULL.capacity_tokens(10, 77.0) == 160 and FULL.block_size == 16 and FULL.chunk_multiple == 1


def test_states_at_chunk_ends_take_a_block_for_each_chunk_in_flight() -> None:
    """Mamba ``align``: chunks of 1,000 tokens in blocks of 500, two steps at once."""
    layout = KVLayout((KVGroups(1, 500, states=2, spare_blocks=1),))
    assert layout.growth(of(0, 1000, 1200), 1000).tolist() == [2, 1, 1]
    assert layout.growth(of(1200), 100).tolist() == [0]  # in the block that is there
    assert layout.held(of(1000, 2000, 3000), of(1000, 2000, 1000)).tolist() == [3, 3, 4]
    assert layout.to_admit(of(1, 90_000)).tolist() == [2, 2] and layout.chunk_multiple == 500


def test_a_chunk_in_flight_may_keep_a_state_inside_it_besides() -> None:
    layout = KVLayout((KVGroups(1, 500, states=2, checkpoints=1),))
    assert layout.held(of(2000, 2000, 3000, 2001), of(2000, 1000, 1000, 1)).tolist() == [4, 3, 3, 2]
    assert layout.growth(of(0), 1).tolist() == [2] and layout.most_growth(1, 1) == 2


def test_a_request_on_average() -> None:
    long = np.array([10_000.0])
    both = KVLayout((KVGroups(1, 16), KVGroups(5, 16, window_tokens=129)))
    assert both.filled(long).tolist() == [10_000 / 16 + 5 * 8.5] and both.mean(long) == both.filled(long) + 3.0
    state = KVLayout((KVGroups(3, 4096, window_tokens=2),))
    assert state.mean(long).tolist() == [3.0] == state.mean(np.array([1.0])).tolist()
    chunks = KVLayout((KVGroups(1, 16, chunk_tokens=512),))
    assert chunks.filled(np.array([[8.0, 1e5]])).tolist() == [[0.5, 16.0]]
    assert both.capacity_tokens(1000, 10_000.0) == pytest.approx(1000 * 10_000 / 667.5)


def test_what_is_wanted_free_follows_the_limit_of_the_group() -> None:
    layout = KVLayout((KVGroups(1, 16, copied_blocks=1), KVGroups(2, 16, window_tokens=64, most_blocks=10)))
    assert layout.to_admit(of(0, 100, 1600)).tolist() == [1, 7 + 1 + 2 * 7, 100 + 1 + 2 * 10]


def test_slots_end_at_the_longest_context() -> None:
    layout = KVLayout((KVGroups(1, 16),), lookahead_tokens=4, max_model_len=100)
    assert layout.held(of(94, 97, 100), of(0, 0, 0)).tolist() == [7, 7, 7] and layout.growth(of(92), 8).tolist() == [1]


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda: KVLayout(()), "at least"),
        (lambda: KVLayout.full(0), "block_size: 0"),
        (lambda: KVLayout((KVGroups(1, 16, window_tokens=4, states=1),)), "exclude one another"),
        (lambda: KVLayout((KVGroups(0, 16),)), "num_groups: 0"),
        (lambda: KVLayout((KVGroups(1, 16, spare_blocks=-1),)), "spare_blocks: -1"),
        (lambda: KVLayout((KVGroups(1, 16),), max_model_len=0), "max_model_len: 0"),
        (lambda: FULL.held(of(-1), of(0)), "computed: -1"),
        (lambda: FULL.held(of(1), of(0, 0)), "in_flight: 2 elements"),
        (lambda: KVLayout((KVGroups(2, 16),)).block_size, "no single block size"),
    ],
)
def test_what_makes_no_sense_is_refused(made: object, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        made()  # type: ignore[operator]


def test_a_layout_is_a_value() -> None:
    layout = KVLayout((KVGroups(1, 16), KVGroups(2, 16, 64)), 3, 4096)
    again = pickle.loads(pickle.dumps(layout))
    assert again == layout and hash(again) == hash(layout) and again != FULL
    assert again.held(of(500), of(0)) == layout.held(of(500), of(0))
