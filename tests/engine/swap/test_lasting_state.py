"""State that lasts: requests that continue one another are preempted, draft, load and end, and no wrong KV is loaded.

The KV of a token is known by all tokens up to it. So each load is checked against the tokens of the request that loads.
"""

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sloserve.core.kernels.kv_layout import KVGroups
from sloserve.engine.swap import retained
from sloserve.engine.swap.retained import Ending, RetainedKV
from sloserve.engine.swap.store import SwapStore

BLOCK = 4
GROUPS = (KVGroups(1, BLOCK),)


@dataclass
class Request:
    """A request: its tokens, drafts that may yet be rejected, ``None`` if none is in flight, and whether it runs."""

    tokens: list[int]
    prompt_tokens: int
    drafts: list[int] | None = None
    runs: bool = False


class Conversations(RuleBasedStateMachine):
    """Beside the store: the tokens of each request, and for which tokens each host block has the KV."""

    @initialize(blocks=st.integers(4, 60))
    def start(self, blocks: int) -> None:
        self.patched = pytest.MonkeyPatch()
        self.patched.setattr(retained, "LEAST_TOKENS", BLOCK)
        self.patched.setattr(retained, "STRETCH_TOKENS", BLOCK)
        self.patched.setattr(retained, "MOST_ENDED", 3)
        self.store = SwapStore(blocks, GROUPS, Counter())
        self.retained = RetainedKV(self.store)
        self.kv: list[list[int]] = [[0] * BLOCK for _ in range(blocks)]
        self.requests: dict[str, Request] = {}
        self.loading: dict[str, tuple[list[int], int]] = {}
        self.ended: list[list[int]] = [[1] * 9]
        self.number = 0

    def waiting(self) -> list[str]:
        return [name for name, r in self.requests.items() if not r.runs and name not in self.loading]

    def running(self) -> list[str]:
        return [name for name, r in self.requests.items() if r.runs]

    def contents(self, tokens: list[int], count: int) -> list[tuple[int, ...]]:
        return [tuple(tokens[:end]) for end in range(BLOCK, count + 1, BLOCK)]

    def copy(self, name: str, kept: tuple[list[range], list[int]] | None) -> None:
        """Make the copies of a store, of whole blocks."""
        if kept is None:
            return
        request = self.requests[name]
        tokens = [*request.tokens, *(request.drafts or ())]
        for place, block in zip(kept[0][0], kept[1], strict=True):
            self.kv[block] = [hash(tuple(tokens[: place * BLOCK + i + 1])) for i in range(BLOCK)]

    @rule(data=st.data(), cut=st.integers(0, 6), more=st.lists(st.integers(0, 1), min_size=1, max_size=12))
    def arrive(self, data: st.DataObject, cut: int, more: list[int]) -> None:
        before = data.draw(st.sampled_from(self.ended))
        tokens = [*before[: len(before) - cut], *more]
        self.number += 1
        name = f"r{self.number}"
        self.requests[name] = Request(tokens, len(tokens))
        self.retained.arrived(name, self.contents(tokens, len(tokens)), BLOCK, 0)

    @precondition(lambda self: self.waiting())
    @rule(data=st.data(), hit_blocks=st.integers(0, 8))
    def resume(self, data: st.DataObject, hit_blocks: int) -> None:
        name = data.draw(st.sampled_from(self.waiting()))
        request = self.requests[name]
        if request.drafts is not None:  # the step in flight has ended
            accepted = data.draw(st.integers(0, len(request.drafts)))
            request.tokens, request.drafts = [*request.tokens, *request.drafts[:accepted], 1], None
        frontier, hit = self.store.frontier(name, len(request.tokens)), hit_blocks * BLOCK
        assert frontier < len(request.tokens)
        if frontier <= hit:
            self.store.unused(name, len(request.tokens), "found_elsewhere")
            request.runs = True
            return
        places, blocks = self.store.load(name, hit, frontier)
        for place, block in zip(places[0], blocks, strict=True):
            known = range(place * BLOCK, min((place + 1) * BLOCK, frontier))
            assert self.kv[block][: len(known)] == [hash(tuple(request.tokens[: at + 1])) for at in known]
        self.loading[name] = blocks, frontier

    @precondition(lambda self: self.loading)
    @rule(data=st.data(), failed=st.booleans(), is_wanted=st.booleans())
    def load_ends(self, data: st.DataObject, failed: bool, is_wanted: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.loading)))
        del self.loading[name]
        if not is_wanted:
            self.store.keep_loading(name)
        usable = self.store.loaded(name, failed=failed)
        if name in self.requests:
            self.requests[name].runs = usable

    @precondition(lambda self: self.running())
    @rule(data=st.data(), more=st.lists(st.integers(0, 1), min_size=1, max_size=9))
    def grow(self, data: st.DataObject, more: list[int]) -> None:
        self.requests[data.draw(st.sampled_from(self.running()))].tokens.extend(more)

    @precondition(lambda self: self.running())
    @rule(
        data=st.data(),
        drafts=st.lists(st.integers(0, 1), max_size=5),
        worth_s=st.sampled_from([None, 0.0, 1.0, float("inf")]),
        computes_nothing=st.booleans(),
    )
    def preempt(self, data: st.DataObject, drafts: list[int], worth_s: float | None, computes_nothing: bool) -> None:
        name = data.draw(st.sampled_from(self.running()))
        request = self.requests[name]
        request.runs, request.drafts = False, drafts
        known = len(request.tokens) - 1
        # It computes its last known token and all drafts but the last.
        computed = 0 if computes_nothing else known + len(drafts)
        if worth_s is not None:
            self.copy(name, self.store.store(name, computed, worth_s, known))

    @precondition(lambda self: self.running())
    @rule(data=st.data(), is_kept=st.booleans())
    def end(self, data: st.DataObject, is_kept: bool) -> None:
        name = data.draw(st.sampled_from(self.running()))
        request = self.requests[name]
        known = len(request.tokens) - 1
        ending = Ending(self.contents(request.tokens, known), BLOCK, min(request.prompt_tokens, known))
        if is_kept and ending.tokens:
            worth_s = self.retained.worth_s(ending.tokens)
            self.copy(name, self.store.store(name, ending.tokens, worth_s, known))
        self.retained.ended(name, ending)
        self.store.drop(name, "ended")
        del self.requests[name]
        self.ended.append(request.tokens[:80])

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.requests)))
        self.store.drop(name, "ended")
        del self.requests[name]

    @invariant()
    def every_block_has_one_holder(self) -> None:
        states = self.store._states
        held = [block for state in states.values() for block in state.blocks]
        assert sorted(held + self.store._free) == list(range(self.store.host_blocks))
        assert all(state.blocks and len(state.blocks) == sum(map(len, state.places)) for state in states.values())
        assert set(self.store.loads) == set(self.loading)

    @invariant()
    def only_kv_that_somebody_waits_for_is_worth_much(self) -> None:
        for name, state in self.store._states.items():
            if name not in self.requests or self.requests[name].runs:
                assert state.loading or (state.worth_s < 1e-6 and state.yields)
        yielding = [state for state in self.store._states.values() if state.worth_s < 1e-6 and not state.loading]
        assert self.store.yielding_blocks == sum(len(state.blocks) for state in yielding if state.yields)

    def teardown(self) -> None:
        if hasattr(self, "patched"):
            self.patched.undo()


TestConversations = pytest.mark.slow(Conversations.TestCase)


def lasting(host_blocks: int = 12) -> SwapStore:
    """Return a store with the KV of 8 tokens, which lasts, of a request "r" that runs."""
    store = SwapStore(host_blocks, GROUPS)
    assert store.store("r", 2 * BLOCK, 1.0, 2 * BLOCK) is not None
    store.let_last("r", 1e-9)
    store.load("r", 0, 2 * BLOCK)
    assert store.loaded("r")
    return store


@pytest.mark.parametrize("is_cached", [False, True])
def test_kv_of_rejected_drafts_counts_for_no_later_token(is_cached: bool) -> None:
    store = lasting()
    assert store.store("r", 22, worth_s=5.0, least=18) is not None  # with four drafts, of which one is accepted
    if is_cached:
        store.unused("r", 20, "found_elsewhere")
    else:
        store.load("r", 0, store.frontier("r", 20))
        assert store.loaded("r")
    # It goes on, and its next preemption copies nothing.
    assert store.frontier("r", 40) == 19


def test_kv_of_a_request_that_runs_is_worth_what_kv_is_that_nobody_waits_for() -> None:
    store = lasting()
    store.store("r", 4 * BLOCK, worth_s=float("inf"), least=4 * BLOCK)
    assert store.store("preempted", 9 * BLOCK, worth_s=1.0) is None
    store.load("r", 0, 4 * BLOCK)
    assert store.loaded("r")
    assert store.store("preempted", 9 * BLOCK, worth_s=1.0) is not None


def test_a_request_without_computed_tokens_keeps_what_lasts() -> None:
    store = lasting()
    assert store.store("r", 0, worth_s=float("inf"), least=-1) is None
    assert (store.tokens_of("r"), store.counters["swap_refused_empty"]) == (2 * BLOCK, 1)
