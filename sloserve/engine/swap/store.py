"""The scheduler's side of the host pool: which host blocks keep the KV of which preempted request.

State that *lasts* stays kept when its request has KV again, so that the request's end, or its next preemption, copies
only what is new. It belongs to a request that continues an ended one, see :mod:`sloserve.engine.swap.retained`.

State of one request is *kept* from :meth:`SwapStore.store` on. With :meth:`SwapStore.load` it is *loading*, and ends
with :meth:`SwapStore.loaded`, whatever became of the load: not before may another request's state be written to its
blocks. What is given up while it loads is *void*: its blocks come back at the same time, its KV counts for nothing.

No copy is made here. The engine orders its copies so that a store into host blocks comes after every load and store
that was asked for them before.

A host block keeps one block of one KV cache group, and of each group only the blocks that will be read again are kept
(:mod:`sloserve.lso.needed_blocks`).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from sloserve.core.kernels.kv_layout import KVGroups
from sloserve.lso.needed_blocks import NeededBlocks, count

Refusal = Literal["empty", "too_large", "full", "loading"]
"""Why nothing is kept: no block that will be read again; more than the whole pool; all that is kept is worth more; an
older load of the same request still runs."""


@dataclass(slots=True)
class _State:
    """What is kept for one request.

    Args:
        least: The fewest tokens that what is kept can serve.
        settled: Tokens that are kept and will not be taken back.
        places: Places of its blocks in each group; ``blocks``, the host blocks, belong to them in this order.
        lasting_worth_s: What each of its blocks is worth while its request has KV; ``None`` if it does not last.
        yields: Whether it gives way to any preempted request.
    """

    tokens: int
    least: int
    settled: int
    places: list[range]
    blocks: list[int]
    worth_s: float
    loading: bool = False
    void: bool = False
    stays: bool = False
    lasting_worth_s: float | None = None
    yields: bool = False

    @property
    def lasts(self) -> bool:
        return self.lasting_worth_s is not None

    @property
    def worth_per_block(self) -> float:
        return self.worth_s / len(self.blocks)


class SwapStore:
    """Host blocks of a pool, and the requests with the KV that they hold.

    ``epoch`` is the number of the weights that computed what is kept, ``peak_blocks`` the most blocks that were ever in
    use, ``needed`` says which blocks are kept.

    Args:
        host_blocks: Blocks that the pool has, numbered from 0.
        groups: The KV cache groups, in the order in which a request's blocks are listed.
        counters: Counters to which counts are added: ``swap_stores``, ``swap_stores_of_ended``, ``swap_loads``,
            ``swap_failures``, ``swapped_out_tokens``, ``swapped_in_tokens``, ``swap_refused_<refusal>`` and
            ``swap_dropped_<reason>``.
    """

    def __init__(self, host_blocks: int, groups: Sequence[KVGroups], counters: Counter[str] | None = None) -> None:
        self.host_blocks, self.needed = host_blocks, NeededBlocks(groups)
        self.counters: Counter[str] = Counter() if counters is None else counters
        self.epoch = 0
        self.peak_blocks = 0
        self._free = list(range(host_blocks - 1, -1, -1))
        self._states: dict[str, _State] = {}
        self._yielding: int | None = 0

    @property
    def free_blocks(self) -> int:
        return len(self._free)

    @property
    def yielding_blocks(self) -> int:
        """Blocks of state that gives way to any preempted request, since no request waits for it."""
        if self._yielding is None:
            self._yielding = sum(len(one.blocks) for one in self._states.values() if one.yields and not one.loading)
        return self._yielding

    @property
    def used_blocks(self) -> int:
        return self.host_blocks - len(self._free)

    @property
    def loads(self) -> list[str]:
        """Ids of the requests with a load that runs, void or not, in order of :meth:`store`."""
        return [request_id for request_id, state in self._states.items() if state.loading]

    def is_loading(self, request_id: str) -> bool:
        """Return whether a load of the request runs, void or not."""
        state = self._states.get(request_id)
        return state is not None and state.loading

    def tokens_of(self, request_id: str) -> int:
        """Return the tokens of a request with KV that is kept or loading; 0 if there are none."""
        state = self._states.get(request_id)
        return 0 if state is None or state.void else state.tokens

    def store(
        self, request_id: str, tokens: int, worth_s: float, least: int | None = None, *, ends: bool = False
    ) -> tuple[list[range], list[int]] | None:
        """Keep the KV with which a request goes on after its first ``tokens`` tokens.

        What was kept for the request before is given up. A full pool gives up kept state that is worth less a block,
        the least worthy first, if that makes enough room; else nothing.

        Args:
            request_id: Id of the request.
            tokens: Tokens of the request that have KV.
            worth_s: Engine seconds that it saves not to compute these tokens again.
            least: The fewest tokens with which it may go on, where the last computed ones may not count; ``None`` where
                all do.
            ends: Whether the request ends, so that it counts as no preemption, kept or refused.

        Returns: the places of the blocks to copy in each group, and the host blocks for them in the same order;
        ``None`` if nothing is kept. Of state that lasts, blocks that are kept already are not among them.
        """
        known = tokens if least is None else min(least, tokens)
        least = self.needed.least(tokens, known)
        places = self.needed.places(least, tokens)
        state = self._states.get(request_id)
        if state is not None and state.lasts and not state.loading and self.needed.keeps_all:
            kept = self._extend(request_id, state, tokens, known, places, worth_s)
        else:
            kept = self._begin(request_id, tokens, least, known, places, worth_s)
        if isinstance(kept, str):
            if not ends:
                self.counters[f"swap_refused_{kept}"] += 1
            return None
        self._states[request_id].yields, self._yielding = ends, None
        self.counters["swap_stores_of_ended" if ends else "swap_stores"] += 1
        self.peak_blocks = max(self.peak_blocks, self.used_blocks)
        return kept

    def _begin(
        self, request_id: str, tokens: int, least: int, known: int, places: list[range], worth_s: float
    ) -> tuple[list[range], list[int]] | Refusal:
        """Keep ``tokens`` tokens of a request in the place of all that was kept; return what :meth:`store` does."""
        self.drop(request_id, "preempted_again")
        needed = count(places)
        refusal: Refusal | None = None
        if needed <= 0:  # local chunks alone read nothing before a multiple of the chunk
            refusal = "empty"
        elif needed > self.host_blocks:
            refusal = "too_large"
        elif request_id in self._states:
            refusal = "loading"
        elif not self._make_room(needed, worth_s / needed, request_id):
            refusal = "full"
        if refusal is not None:
            return refusal
        blocks = self._take(needed)
        self._states[request_id] = _State(tokens, least, known, places, blocks, worth_s)
        self.counters["swapped_out_tokens"] += tokens
        return places, list(blocks)

    def _extend(
        self, request_id: str, state: _State, tokens: int, known: int, places: list[range], worth_s: float
    ) -> tuple[list[range], list[int]] | Refusal:
        """Keep ``tokens`` tokens of a request with first ones that are kept already; return what :meth:`store` does."""
        if not count(places):
            return "empty"
        settled_tokens = min(state.settled, tokens)
        settled = self.needed.full_blocks(settled_tokens)
        needed = sum(max(len(new) - len(old), 0) for new, old in zip(places, state.places, strict=True))
        if not self._make_room(needed, worth_s / count(places), request_id):
            return "full"
        blocks: list[int] = []
        ids: list[int] = []
        start = 0
        for new, old, full in zip(places, state.places, settled, strict=True):
            held = state.blocks[start : start + len(old)]
            start += len(old)
            self._free.extend(reversed(held[len(new) :]))
            held = held[: len(new)] + self._take(max(len(new) - len(old), 0))
            blocks += held
            ids += held[full:]
        copied = [range(full, new.stop) for new, full in zip(places, settled, strict=True)]
        state.tokens, state.settled, state.places, state.blocks, state.worth_s = tokens, known, places, blocks, worth_s
        self.counters["swapped_out_tokens"] += tokens - settled_tokens
        return copied, ids

    def _take(self, count: int) -> list[int]:
        """Return ``count`` free blocks, which are there."""
        taken = self._free[: -count - 1 : -1]
        del self._free[len(self._free) - count :]
        return taken

    def _make_room(self, needed: int, worth_per_block: float, request_id: str) -> bool:
        """Free ``needed`` blocks of state that is worth less a block than this; return whether that was possible.

        State of ``request_id`` stays.
        """
        missing = needed - len(self._free)
        if missing <= 0:
            return True
        less = [(s.worth_per_block, i) for i, s in self._states.items() if not s.loading and i != request_id]
        less = sorted(one for one in less if one[0] < worth_per_block)
        chosen: list[str] = []
        for _, other in less:
            chosen.append(other)
            missing -= len(self._states[other].blocks)
            if missing <= 0:
                break
        else:
            return False
        for other in chosen:
            self.drop(other, "worth_less")
        return True

    def frontier(self, request_id: str, num_tokens: int) -> int:
        """Return the tokens that need not be computed again: the kept tokens, except for the last known one.

        The result is 0 if nothing is kept, while it loads, and if the request goes on after fewer tokens than what is
        kept can serve: a Mamba state, for instance, is of no use after a rejected draft.

        Args:
            request_id: Id of the request.
            num_tokens: Tokens of the request that are known, prompt and output. (More may have been computed: drafts
                that were rejected since.)
        """
        state = self._states.get(request_id)
        if state is None or state.loading:
            return 0
        frontier = min(state.tokens, num_tokens - 1)
        return frontier if frontier >= state.least else 0

    def blocks_to_load(self, first_token: int, frontier: int) -> int:
        """Return how many blocks :meth:`load` of these tokens brings back, over all groups."""
        return count(self.needed.places(frontier, frontier, first_token))

    def load(self, request_id: str, first_token: int, frontier: int) -> tuple[list[range], list[int]]:
        """Begin to load what the token after ``frontier`` tokens reads, without the first ``first_token`` tokens.

        Blocks are whole: in full attention the first holds ``first_token``, the last ``frontier - 1``.

        Returns: the places of the blocks in each group, and the host blocks that hold them, in the same order.
        Raises: ValueError if these tokens are not kept.
        """
        state = self._states.get(request_id)
        least = 0 if state is None else state.least
        if state is None or state.loading or not 0 <= first_token < frontier or not least <= frontier <= state.tokens:
            kept = 0 if state is None or state.loading else state.tokens
            raise ValueError(f"cannot load tokens {first_token} to {frontier} of {request_id}: {kept} are kept")
        self._settle(request_id, state, frontier)
        places = self.needed.places(frontier, frontier, first_token)
        starts = accumulate(map(len, state.places), initial=0)
        blocks = [
            block
            for one, kept_at, start in zip(places, state.places, starts, strict=False)
            for block in state.blocks[start + one.start - kept_at.start : start + one.stop - kept_at.start]
        ]
        state.loading, self._yielding = True, None
        self.counters["swap_loads"] += 1
        self.counters["swapped_in_tokens"] += frontier - first_token
        return places, blocks

    def loaded(self, request_id: str, *, failed: bool = False) -> bool:
        """Record that a load ended and no copy reads its host blocks any more; return whether its KV may be used.

        The result is ``False`` for a load that is unknown, has failed, or was given up or abandoned while it ran.
        """
        state = self._states.get(request_id)
        if state is None or not state.loading:
            return False
        if failed:
            self.counters["swap_failures"] += 1
        if (state.stays or state.lasts) and not state.void and not failed:
            usable = not state.stays
            state.loading, state.stays, self._yielding = False, False, None
            if usable:
                self._has_kv(state)
            return usable
        self._release(request_id)
        return not failed and not state.void

    def keep_loading(self, request_id: str) -> None:
        """Record that what a load brings will not be used: when it has ended well, the state is kept as before it."""
        state = self._states.get(request_id)
        if state is not None and state.loading:
            state.stays = True

    def store_failed(self, request_id: str) -> None:
        """Record that a copy to the host failed: what is kept for the request is not its KV."""
        self.counters["swap_failures"] += 1
        self.drop(request_id, "failed")

    def drop(self, request_id: str, reason: str) -> None:
        """Give up what is kept for a request, if anything; state that loads is void.

        Args:
            request_id: Id of the request.
            reason: An identifier, for the counters. Callers use few.
        """
        state = self._states.get(request_id)
        if state is None or state.void:
            return
        self.counters[f"swap_dropped_{reason}"] += 1
        if state.loading:
            state.void = True
        else:
            self._release(request_id)

    def unused(self, request_id: str, num_tokens: int, reason: str) -> None:
        """Record that a request has KV without what is kept for it, which is given up unless it lasts.

        Args:
            request_id: Id of the request.
            num_tokens: Tokens of the request that are known, prompt and output.
            reason: An identifier, as for :meth:`drop`.
        """
        state = self._states.get(request_id)
        if state is None or not state.lasts:
            self.drop(request_id, reason)
        elif not state.loading and num_tokens > 1:
            self._settle(request_id, state, num_tokens - 1)
            self._has_kv(state)

    def let_last(self, request_id: str, worth_s: float, *, awaited_worth_s: float | None = None) -> None:
        """Let what is kept for a request last while the request has KV, and be worth ``worth_s`` then and now.

        Args:
            request_id: Id of the request.
            worth_s: Engine seconds that it is worth.
            awaited_worth_s: Engine seconds that it is worth until the request has KV; ``None`` for the same.
        """
        state = self._states.get(request_id)
        if state is not None:
            state.worth_s = worth_s if awaited_worth_s is None else awaited_worth_s
            state.lasting_worth_s = worth_s / len(state.blocks)
            state.yields, self._yielding = True, None

    def _settle(self, request_id: str, state: _State, tokens: int) -> None:
        """Cut state that lasts to the tokens with which its request goes on, and never takes back.

        What is behind them may be the KV of rejected drafts, in the place of tokens that the request has later.
        """
        if state.lasts:
            self.trim(request_id, tokens)
            state.settled = state.tokens

    def _has_kv(self, state: _State) -> None:
        """Let state that lasts be worth no more than KV for which no request waits, since its request has its own."""
        if state.lasting_worth_s is not None:
            state.worth_s = state.lasting_worth_s * len(state.blocks)
            state.yields, self._yielding = True, None

    def trim(self, request_id: str, tokens: int) -> None:
        """Keep the first ``tokens`` tokens only of what is kept; needs a layout in which a request reads all blocks."""
        state = self._states.get(request_id)
        if state is None or state.loading or tokens >= state.tokens:
            return
        places, blocks, start = self.needed.places(0, tokens), [], 0
        for new, old in zip(places, state.places, strict=True):
            blocks += state.blocks[start : start + len(new)]
            self._free.extend(reversed(state.blocks[start + len(new) : start + len(old)]))
            start += len(old)
        state.tokens, state.settled, state.places, state.blocks = tokens, min(state.settled, tokens), places, blocks
        self._yielding = None

    def hand_over(self, request_id: str, to: str) -> None:
        """Keep what is kept for a request for ``to`` instead, for which nothing may be kept yet.

        Nothing happens if nothing is kept for the request, or if it loads.
        """
        state = self._states.get(request_id)
        if state is not None and not state.loading and to not in self._states:
            self._states[to] = self._states.pop(request_id)

    def new_epoch(self) -> None:
        """Give up all that is kept, and make all that loads void, because the weights changed."""
        self.epoch += 1
        for request_id in list(self._states):
            self.drop(request_id, "epoch")

    def _release(self, request_id: str) -> None:
        self._free.extend(reversed(self._states.pop(request_id).blocks))
        self._yielding = None
