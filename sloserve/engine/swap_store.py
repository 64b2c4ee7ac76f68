"""The scheduler's side of the host pool: which host blocks keep the KV of which preempted request.

State of one request is *kept* from :meth:`SwapStore.store` on. With :meth:`SwapStore.load` it is *loading*, and ends
with :meth:`SwapStore.loaded`, whatever became of the load: not before may another request's state be written to its
blocks. What is given up while it loads is *void*: its blocks come back at the same time, its KV counts for nothing.

No copy is made here. The engine orders its copies so that a store into host blocks comes after every load and store
that was asked for them before.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from sloserve.lso.blocks import blocks_of

Refusal = Literal["empty", "too_large", "full", "loading"]
"""Why nothing is kept: no tokens; more than the whole pool; all that is kept is worth more; an older load of the same
request still runs."""


@dataclass(slots=True)
class _State:
    tokens: int
    blocks: list[int]
    worth_s: float
    loading: bool = False
    void: bool = False
    stays: bool = False

    @property
    def worth_per_block(self) -> float:
        return self.worth_s / len(self.blocks)


class SwapStore:
    """Host blocks of a pool, and whose KV they hold.

    epoch: number of the weights that computed what is kept. peak_blocks: most blocks that were ever in use.

    Args:
        host_blocks: blocks that the pool has, numbered from 0.
        block_size: tokens in a block.
        counters: counts are added here: ``swap_stores``, ``swap_loads``, ``swap_failures``, ``swapped_out_tokens``,
            ``swapped_in_tokens``, ``swap_refused_<refusal>`` and ``swap_dropped_<reason>``.
    """

    def __init__(self, host_blocks: int, block_size: int, counters: Counter[str] | None = None) -> None:
        self.host_blocks, self.block_size = host_blocks, block_size
        self.counters: Counter[str] = Counter() if counters is None else counters
        self.epoch = 0
        self.peak_blocks = 0
        self._free = list(range(host_blocks - 1, -1, -1))
        self._states: dict[str, _State] = {}

    @property
    def free_blocks(self) -> int:
        return len(self._free)

    @property
    def used_blocks(self) -> int:
        return self.host_blocks - len(self._free)

    @property
    def loads(self) -> list[str]:
        """Ids of the requests whose loads run, void or not, in order of :meth:`store`."""
        return [request_id for request_id, state in self._states.items() if state.loading]

    def is_loading(self, request_id: str) -> bool:
        """Whether a load of the request runs, void or not."""
        state = self._states.get(request_id)
        return state is not None and state.loading

    def tokens_of(self, request_id: str) -> int:
        """Tokens whose KV is kept or loading for a request; 0 where there are none."""
        state = self._states.get(request_id)
        return 0 if state is None or state.void else state.tokens

    def store(self, request_id: str, tokens: int, worth_s: float) -> list[int] | None:
        """Keeps the KV of a request's first ``tokens`` tokens: the host blocks for it, or ``None`` if it is refused.

        What was kept for the request before is given up. A full pool gives up kept state that is worth less a block,
        the least worthy first, if that makes enough room; else nothing.

        Args:
            worth_s: engine seconds that it saves not to compute these tokens again.
        """
        self.drop(request_id, "preempted_again")
        count = blocks_of(tokens, self.block_size)
        refusal: Refusal | None = None
        if count <= 0:
            refusal = "empty"
        elif count > self.host_blocks:
            refusal = "too_large"
        elif request_id in self._states:
            refusal = "loading"
        elif not self._make_room(count, worth_s / count):
            refusal = "full"
        if refusal is not None:
            self.counters[f"swap_refused_{refusal}"] += 1
            return None
        blocks = self._free[: -count - 1 : -1]
        del self._free[-count:]
        self._states[request_id] = _State(tokens, blocks, worth_s)
        self.peak_blocks = max(self.peak_blocks, self.used_blocks)
        self.counters["swap_stores"] += 1
        self.counters["swapped_out_tokens"] += tokens
        return list(blocks)

    def _make_room(self, count: int, worth_per_block: float) -> bool:
        missing = count - len(self._free)
        if missing <= 0:
            return True
        less = [(s.worth_per_block, i) for i, s in self._states.items() if not s.loading]
        less = sorted(one for one in less if one[0] < worth_per_block)
        chosen: list[str] = []
        for _, request_id in less:
            chosen.append(request_id)
            missing -= len(self._states[request_id].blocks)
            if missing <= 0:
                break
        else:
            return False
        for request_id in chosen:
            self.drop(request_id, "worth_less")
        return True

    def frontier(self, request_id: str, num_tokens: int) -> int:
        """Tokens that need not be computed again: those kept, but for the last of all that are known.

        0 where nothing is kept, and while it loads.

        Args:
            num_tokens: tokens of the request that are known, prompt and output. (More may have been computed: drafts
                that were rejected since.)
        """
        state = self._states.get(request_id)
        return 0 if state is None or state.loading else max(min(state.tokens, num_tokens - 1), 0)

    def load(self, request_id: str, first_token: int, frontier: int) -> list[int]:
        """Begins to load tokens ``[first_token, frontier)``: the host blocks that hold them, in order.

        Blocks are whole: the first holds ``first_token``, the last ``frontier - 1``.

        Raises: ValueError where these tokens are not kept.
        """
        state = self._states.get(request_id)
        if state is None or state.loading or not 0 <= first_token < frontier <= state.tokens:
            kept = 0 if state is None or state.loading else state.tokens
            raise ValueError(f"tokens {first_token} to {frontier} of {request_id} are to be loaded, {kept} are kept")
        state.loading = True
        self.counters["swap_loads"] += 1
        self.counters["swapped_in_tokens"] += frontier - first_token
        return state.blocks[first_token // self.block_size : blocks_of(frontier, self.block_size)]

    def loaded(self, request_id: str, *, failed: bool = False) -> bool:
        """A load ended and no copy reads its host blocks any more. Returns: whether the KV that it brought may be used.

        False for a load that is unknown, has failed, or was given up or abandoned while it ran.
        """
        state = self._states.get(request_id)
        if state is None or not state.loading:
            return False
        if failed:
            self.counters["swap_failures"] += 1
        if state.stays and not state.void and not failed:
            state.loading = state.stays = False
            return False
        self._release(request_id)
        return not failed and not state.void

    def keep_loading(self, request_id: str) -> None:
        """What a load brings will not be used: when it has ended well, the state is kept as before it."""
        state = self._states.get(request_id)
        if state is not None and state.loading:
            state.stays = True

    def store_failed(self, request_id: str) -> None:
        """A copy to the host failed: what is kept for the request is not its KV."""
        self.counters["swap_failures"] += 1
        self.drop(request_id, "failed")

    def drop(self, request_id: str, reason: str) -> None:
        """Gives up what is kept for a request, if anything; state that loads is void.

        reason: an identifier, for the counters. Callers use few.
        """
        state = self._states.get(request_id)
        if state is None or state.void:
            return
        self.counters[f"swap_dropped_{reason}"] += 1
        if state.loading:
            state.void = True
        else:
            self._release(request_id)

    def hand_over(self, request_id: str, to: str) -> None:
        """What is kept for a request is kept for ``to`` from now on, for which nothing may be kept. Nothing happens
        where nothing is kept, or it loads.
        """
        state = self._states.get(request_id)
        if state is not None and not state.loading and to not in self._states:
            self._states[to] = self._states.pop(request_id)

    def new_epoch(self) -> None:
        """The weights changed: all that is kept is given up, and all that loads is void."""
        self.epoch += 1
        for request_id in list(self._states):
            self.drop(request_id, "epoch")

    def _release(self, request_id: str) -> None:
        self._free.extend(reversed(self._states.pop(request_id).blocks))
