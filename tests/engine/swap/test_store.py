"""The bookkeeping of the host pool: no block is lost or held twice, whatever happens in whichever state."""

from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sloserve.core.kernels.kv_layout import STATE_WINDOW, KVGroups
from sloserve.engine.swap.store import SwapStore
from sloserve.lso.blocks import blocks_of

BLOCK = 4
GROUPS = (KVGroups(1, BLOCK),)
IDS = st.sampled_from([f"r{i}" for i in range(6)])
KINDS: list[dict[str, int]] = [
    {},
    {"window_tokens": 6},
    {"window_tokens": 11},
    {"chunk_tokens": 8},
    {"window_tokens": STATE_WINDOW},
    {"states": 2},
]


@st.composite
def layouts(draw: st.DrawFn) -> tuple[KVGroups, ...]:
    """One to three kinds of layers, each in one or two groups; full attention alone more often than not."""
    if draw(st.booleans()):
        return GROUPS
    sizes = st.sampled_from([BLOCK // 2, BLOCK])
    return tuple(
        KVGroups(draw(st.integers(1, 2)), draw(sizes), **draw(st.sampled_from(KINDS)))
        for _ in range(draw(st.integers(1, 3)))
    )


def first_read(one: KVGroups, tokens: int) -> int:
    """The first token that the one after ``tokens`` computed tokens reads, as vLLM's managers say."""
    if one.states or one.window_tokens == STATE_WINDOW:
        return tokens - 1
    if one.window_tokens:
        return max(tokens - one.window_tokens + 1, 0)
    return tokens // one.chunk_tokens * one.chunk_tokens if one.chunk_tokens else 0


def read_after(groups: tuple[KVGroups, ...], tokens: int, hit: int = 0) -> list[tuple[int, int]]:
    """Group and place of each block that is read after ``tokens`` computed tokens, behind ``hit``."""
    each = [one for one in groups for _ in range(one.num_groups)]
    return [
        (group, place)
        for group, one in enumerate(each)
        for place in range(blocks_of(tokens, one.block_size))
        if (place + 1) * one.block_size > first_read(one, tokens) and place >= hit // one.block_size
    ]


class Pool(RuleBasedStateMachine):
    """Beside the store: what an engine that copies bytes would know, block by block."""

    @initialize(blocks=st.integers(1, 48), groups=layouts())
    def start(self, blocks: int, groups: tuple[KVGroups, ...]) -> None:
        self.counters: Counter[str] = Counter()
        self.store, self.groups = SwapStore(blocks, groups, self.counters), groups
        self.states = any(one.states or one.window_tokens == STATE_WINDOW for one in groups)
        self.whole = all(one.keeps_all for one in groups)
        # Of each host block: request, number of the store, group and place.
        self.bytes: list[tuple[str, int, tuple[int, int]] | None] = [None] * blocks
        self.least: dict[str, int] = {}
        self.number = 0
        self.kept: dict[str, tuple[int, int, int]] = {}  # tokens, number of the store, epoch
        self.loading: dict[str, tuple[list[int], int, int]] = {}  # host blocks, number of the store, epoch
        self.tokens: dict[str, int] = {}  # of what loads
        self.void: set[str] = set()
        self.staying: set[str] = set()

    @rule(request=IDS, tokens=st.integers(0, 60), worth_s=st.floats(0, 10), drafts=st.integers(-1, 3))
    def preempt(self, request: str, tokens: int, worth_s: float, drafts: int) -> None:
        before = {i for i in self.kept if self.store.tokens_of(i)}
        least = min(max(tokens - drafts, 0), tokens)
        stored = self.store.store(request, tokens, worth_s, tokens - drafts)
        places, blocks = ([], None) if stored is None else stored
        if request in self.loading:
            assert blocks is None
            self.void.add(request)
            return
        self.kept.pop(request, None)
        if blocks is None:
            assert {i for i in self.kept if self.store.tokens_of(i)} == before - {request}
            return
        self.kept = {i: kept for i, kept in self.kept.items() if self.store.tokens_of(i)}
        held = [(group, place) for group, of_group in enumerate(places) for place in of_group]
        assert set(held) >= set(read_after(self.groups, tokens)) and len(held) == len(blocks) > 0
        # No block that neither the fewest tokens nor the most read.
        reaches = set(read_after(self.groups, tokens)) if self.states else set(read_after(self.groups, least))
        assert set(held) - reaches <= set(read_after(self.groups, tokens))
        assert not {b for ids, _, _ in self.loading.values() for b in ids} & set(blocks)
        self.number += 1
        self.kept[request] = (tokens, self.number, self.store.epoch)
        self.least[request] = 0 if self.whole else tokens if self.states else least
        for where, block in zip(held, blocks, strict=True):
            self.bytes[block] = (request, self.number, where)

    @rule(request=IDS, more=st.integers(-3, 5), hit=st.integers(0, 5))
    def resume(self, request: str, more: int, hit: int) -> None:
        tokens, number, epoch = self.kept.get(request, (0, 0, 0))
        frontier = self.store.frontier(request, max(tokens + more, 1))
        wanted = max(min(tokens, tokens + more - 1), 0)
        assert frontier == (wanted if wanted >= self.least.get(request, 0) else 0)
        wanted_blocks = read_after(self.groups, frontier, hit * BLOCK)
        assert self.store.blocks_to_load(hit * BLOCK, frontier) == len(wanted_blocks) or hit * BLOCK >= frontier
        if hit * BLOCK >= frontier:
            self.store.drop(request, "hit")
            self.kept.pop(request, None)
            if request in self.loading:
                self.void.add(request)
            return
        places, blocks = self.store.load(request, hit * BLOCK, frontier)
        assert [(group, place) for group, of_group in enumerate(places) for place in of_group] == wanted_blocks
        assert [self.bytes[b] for b in blocks] == [(request, number, where) for where in wanted_blocks]
        assert epoch == self.store.epoch
        self.loading[request] = (blocks, number, epoch)
        self.tokens[request] = tokens
        del self.kept[request]

    @precondition(lambda self: self.loading)
    @rule(data=st.data(), failed=st.booleans())
    def load_ends(self, data: st.DataObject, failed: bool) -> None:
        request = data.draw(st.sampled_from(sorted(self.loading)))
        blocks, number, epoch = self.loading.pop(request)
        assert {self.bytes[b] and self.bytes[b][:2] for b in blocks} <= {(request, number)}, "overwritten while it ran"
        usable = self.store.loaded(request, failed=failed)
        good = not failed and epoch == self.store.epoch and request not in self.void
        assert usable == (good and request not in self.staying)
        if good and request in self.staying:
            self.kept[request] = (self.tokens[request], number, epoch)
        self.void.discard(request)
        self.staying.discard(request)

    @precondition(lambda self: self.loading)
    @rule(data=st.data())
    def nobody_waits_for_the_load(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(sorted(self.loading)))
        self.store.keep_loading(request)
        self.staying.add(request)

    @rule(request=IDS, reason=st.sampled_from(["aborted", "finished"]))
    def abort(self, request: str, reason: str) -> None:
        self.store.drop(request, reason)
        assert self.store.tokens_of(request) == 0
        self.kept.pop(request, None)
        if request in self.loading:
            self.void.add(request)

    @rule(request=IDS)
    def store_fails(self, request: str) -> None:
        self.store.store_failed(request)
        self.kept.pop(request, None)
        if request in self.loading:
            self.void.add(request)

    @rule()
    def weights_change(self) -> None:
        self.store.new_epoch()
        self.kept.clear()

    @invariant()
    def every_block_has_one_holder(self) -> None:
        store = self.store
        held = [b for state in store._states.values() for b in state.blocks]
        assert sorted(held + store._free) == list(range(store.host_blocks))
        assert store.used_blocks == len(held) <= store.peak_blocks
        assert set(store.loads) == set(self.loading)
        assert {i: store.tokens_of(i) for i in self.kept} == {i: tokens for i, (tokens, _, _) in self.kept.items()}

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        for request in list(self.loading):
            self.store.loaded(request)
        for i in range(6):
            self.store.drop(f"r{i}", "finished")
        assert self.store.free_blocks == self.store.host_blocks


TestPool = pytest.mark.slow(Pool.TestCase)


def test_a_full_pool_gives_up_what_is_worth_less_a_block_and_no_more() -> None:
    store = SwapStore(10, GROUPS)
    store.store("small", 2 * BLOCK, worth_s=1.0)  # 0.5 s a block
    store.store("dear", 4 * BLOCK, worth_s=8.0)  # 2 s
    store.store("cheap", 4 * BLOCK, worth_s=0.4)  # 0.1 s
    assert store.store("new", 3 * BLOCK, worth_s=3.0) is not None
    assert [store.tokens_of(i) for i in ("small", "dear", "cheap", "new")] == [2 * BLOCK, 4 * BLOCK, 0, 3 * BLOCK]
    assert store.counters["swap_dropped_worth_less"] == 1


def test_nothing_is_given_up_where_it_would_not_be_enough() -> None:
    store = SwapStore(6, GROUPS)
    store.store("cheap", 2 * BLOCK, worth_s=0.1)
    store.store("dear", 4 * BLOCK, worth_s=40.0)
    assert store.store("new", 3 * BLOCK, worth_s=3.0) is None
    assert store.tokens_of("cheap") == 2 * BLOCK
    assert store.counters["swap_refused_full"] == 1


def test_equal_worth_does_not_displace() -> None:
    store = SwapStore(2, GROUPS)
    store.store("first", 2 * BLOCK, worth_s=1.0)
    assert store.store("second", 2 * BLOCK, worth_s=1.0) is None


def test_state_that_loads_is_not_given_up_for_another() -> None:
    store = SwapStore(2, GROUPS)
    store.store("loads", 2 * BLOCK, worth_s=0.1)
    store.load("loads", 0, 2 * BLOCK)
    assert store.store("new", BLOCK, worth_s=9.0) is None
    assert store.loaded("loads")
    assert store.store("new", BLOCK, worth_s=9.0) is not None


def test_an_id_that_comes_back_while_its_old_load_runs_is_refused_until_then() -> None:
    store = SwapStore(4, GROUPS)
    store.store("r", 5, worth_s=1.0)
    store.load("r", 0, 5)
    store.drop("r", "aborted")
    assert store.store("r", 3, worth_s=1.0) is None
    assert store.counters["swap_refused_loading"] == 1
    assert not store.loaded("r")
    assert store.store("r", 3, worth_s=1.0) is not None


@pytest.mark.parametrize(("first", "frontier"), [(0, 9), (4, 4), (-1, 3)])
def test_only_what_is_kept_can_be_loaded(first: int, frontier: int) -> None:
    store = SwapStore(4, GROUPS)
    store.store("r", 8, worth_s=1.0)
    with pytest.raises(ValueError, match="of r: 8 are kept"):
        store.load("r", first, frontier)


def test_the_counters_say_what_became_of_it() -> None:
    store = SwapStore(4, GROUPS)
    store.store("r", 6, worth_s=1.0)
    store.load("r", 4, 5)
    store.loaded("r", failed=True)
    store.store("r", 0, worth_s=1.0)
    store.store("r", 100, worth_s=1.0)
    assert store.counters == {
        "swap_stores": 1, "swapped_out_tokens": 6, "swap_loads": 1, "swapped_in_tokens": 1, "swap_failures": 1,
        "swap_refused_empty": 1, "swap_refused_too_large": 1,
    }  # fmt: skip


def kept(*, loads: bool = True) -> SwapStore:
    """State of "r" in 2 of 4 blocks, loading or not."""
    store = SwapStore(4, GROUPS)
    assert store.store("r", 2 * BLOCK, worth_s=1.0) is not None
    if loads:
        store.load("r", 0, 2 * BLOCK)
    return store


def test_what_is_kept_does_not_load_until_it_is_asked_for() -> None:
    store = kept(loads=False)
    assert (store.is_loading("r"), store.is_loading("unknown"), store.loads) == (False, False, [])
    store.load("r", 0, 2 * BLOCK)
    assert (store.is_loading("r"), store.loads) == (True, ["r"])


@pytest.mark.parametrize("failed", [False, True])
def test_a_load_that_was_not_wanted_leaves_what_is_kept_unless_it_failed(failed: bool) -> None:
    store = kept()
    store.keep_loading("r")
    assert not store.loaded("r", failed=failed)
    assert (store.tokens_of("r"), store.free_blocks) == ((0, 4) if failed else (2 * BLOCK, 2))
    assert store.counters["swap_failures"] == failed
    if not failed:  # as before it, and for one load only
        store.load("r", 0, 2 * BLOCK)
        assert store.loaded("r") and store.free_blocks == 4


def test_only_a_load_can_be_kept_from_use() -> None:
    store = kept(loads=False)
    store.keep_loading("r")
    store.keep_loading("unknown")
    store.load("r", 0, 2 * BLOCK)
    assert store.loaded("r")


def test_a_store_that_failed_is_not_kept() -> None:
    store = kept(loads=False)
    store.store_failed("r")
    assert (store.tokens_of("r"), store.free_blocks) == (0, 4)
    assert (store.counters["swap_failures"], store.counters["swap_dropped_failed"]) == (1, 1)


def test_what_is_kept_is_handed_over_to_a_request_that_has_nothing() -> None:
    store = kept(loads=False)
    store.hand_over("r", to="s")
    store.hand_over("unknown", to="t")
    assert (store.tokens_of("r"), store.tokens_of("s"), store.tokens_of("t")) == (0, 2 * BLOCK, 0)
    store.store("t", BLOCK, worth_s=1.0)
    store.hand_over("s", to="t")
    assert (store.tokens_of("s"), store.tokens_of("t")) == (2 * BLOCK, BLOCK)
    store.load("s", 0, 2 * BLOCK)
    store.hand_over("s", to="u")
    assert (store.tokens_of("s"), store.tokens_of("u")) == (2 * BLOCK, 0)
