"""KV blocks of a model engine, block by block, of any layout and with a prefix cache: vLLM's KVCacheCoordinator."""

from collections.abc import Callable, Hashable, Sequence

import numpy as np

from sloserve.core.arrays import BoolArray, IntArray
from sloserve.core.errors import ConfigError
from sloserve.core.kernels.kv_layout import KVLayout
from sloserve.engine.prefix_hit import is_unchanged
from sloserve.lso.blocks import blocks_of
from sloserve.lso.preemption import Holding
from sloserve.sim.model.block_pool import NULL, BlockPool
from sloserve.sim.model.blocks import Hit, KVBlocks
from sloserve.sim.model.kept import Found, States, Table, kept_by
from sloserve.sim.model.model_requests import ModelRequests
from sloserve.sim.model.prompt_nodes import PromptNodes


class GroupedBlocks(KVBlocks):
    """The blocks of an engine of any layout, block by block; see :class:`~sloserve.sim.model.blocks.KVBlocks`.

    The attribute ``caches`` says whether there is a prefix cache. With ``drops`` the last block of a prefix that is
    found there is computed again, since the layers of a draft head read the tokens after it.

    Raises: ConfigError where prefixes may end inside a block, which is not modelled.
    """

    def __init__(
        self, requests: ModelRequests, num_blocks: int, layout: KVLayout, *, caches: bool, drops: bool = False
    ) -> None:
        # Full attention decides first how long a prefix is, as in vLLM.
        kinds = [kept_by(groups, layout) for groups in layout.groups]
        self._order = sorted(range(len(kinds)), key=lambda i: not layout.groups[i].keeps_all)
        sizes = sorted({kind.block_size for kind in kinds})
        if caches and len(sizes) > 1:
            raise ConfigError(
                f"block_size: groups of layers with blocks of {' and '.join(map(str, sizes))} tokens share a prefix "
                "cache, which the engine model does not know; have vLLM's scheduler decide (--engine vllm)"
            )
        super().__init__(requests, num_blocks, layout)
        self.caches, self._drops = caches, drops
        self._layout, self._kinds = layout, kinds
        self._kind_of = [kind for kind in kinds for _ in range(kind.num_groups)]
        self._group_of = np.cumsum([0, *(kind.num_groups for kind in kinds)]).tolist()  # the first of each kind
        self._releases = any(not groups.keeps_all for groups in layout.groups)
        self._keeps_states = any(kind.keeps_states for kind in kinds)
        self._aligned = any(isinstance(kind, States) for kind in kinds)
        self._pool, self._nodes = BlockPool(num_blocks), PromptNodes(requests, sizes[0])
        self._tables: dict[int, list[Table]] = {}
        self._this_step: set[Hashable] = set()  # states cached in this step, which are first found in the next one

    def step_begins(self) -> None:
        self._this_step.clear()

    # These methods concern a waiting request.

    def lookup(self, index: int) -> Hit:
        if not self.caches:
            return Hit(0, [[] for _ in self._kinds])
        length, longest = int(self._requests.tokens[index]) - 1, 0
        found: list[Found | None] = [None] * len(self._kinds)
        first = self._layout.groups[self._order[0]]
        once = len(self._kinds) == 1 or (len(self._kinds) == 2 and first.keeps_all)
        dropped: set[int] = set()  # kinds that have dropped a block of the present length
        while True:
            current = length
            for k in self._order:
                blocks = found[k]
                if blocks is None or not self._layout.groups[k].keeps_all:
                    drops = self._drops and k not in dropped
                    most = self._proof_tokens(index, k, current) if drops else current
                    blocks = found[k] = self._kinds[k].find(self._cached(index, k), most, drops=drops)
                    longest = max(longest, len(blocks) * self.block_size)
                    if drops:
                        dropped.add(k)
                    elif len(blocks) * self.block_size < current:
                        dropped.clear()
                current = min(current, len(blocks) * self.block_size)
            if current >= length:
                break
            length = current
            if once:
                break
        places = blocks_of(length, self.block_size)
        kept = [(blocks or [])[:places] for blocks in found]
        return Hit(length, kept, longest if longest > length else 0)

    def _proof_tokens(self, index: int, k: int, tokens: int) -> int:
        """Return how many tokens may be looked up of a kind that drops a block of a prefix of ``tokens`` tokens.

        Where there are several groups vLLM looks one block further, so that the rest may be as long as was asked for.
        """
        if len(self._kind_of) == 1 or self._kinds[k].keeps_states:
            return tokens
        full = int(self._requests.tokens[index]) // self.block_size * self.block_size
        return min(tokens + self.block_size, full)

    def _cached(self, index: int, k: int) -> Callable[[int], tuple[int, ...] | None]:
        """Return a function from a place of the request to its cached blocks, one block per group of a kind."""
        first, end = self._group_of[k], self._group_of[k + 1]
        node, found = self._nodes.node, self._pool.found

        def cached(i: int) -> tuple[int, ...] | None:
            content = node(index, i)
            blocks: list[int] = []
            for group in range(first, end):
                block = found((group, content))
                if block is None:
                    return None
                blocks.append(block)
            return tuple(blocks)

        return cached

    def hit_tokens(self, index: int, before: int) -> int:
        if before and self.caches:
            tokens, held = int(self._requests.tokens[index]), before // self.block_size
            most = (tokens - (len(self._kind_of) == 1 or not self._drops)) // self.block_size
            cached = [self._cached(index, kind) for kind in range(len(self._kinds))]
            whole = [place for place, one in enumerate(self._layout.groups) if one.keeps_all]
            dropping = [place for place, one in enumerate(self._kinds) if self._drops and not one.keeps_states]
            if is_unchanged(
                lambda kind, block: cached[kind](block) is not None, len(cached), whole, most, held, dropping
            ):
                return before
        return self.lookup(index).tokens

    def prompt_contents(self, index: int, stretch_tokens: int) -> Sequence[Hashable]:
        if not self.caches:
            return ()
        stretch = max(stretch_tokens // self.block_size, 1)
        return self._nodes.of_prompt(index)[stretch - 1 :: stretch]

    def contents(self, index: int, tokens: int) -> Sequence[Hashable]:
        return self._nodes.first(index, tokens // self.block_size) if self.caches else ()

    def watched(self, index: int, places: Sequence[range]) -> Callable[[], bool]:
        changes_of = self._pool.changes_of
        tables = zip(self._tables[index], places, strict=True)
        blocks = [block for table, of_group in tables for block in table[of_group.start : of_group.stop]]
        changes = list(map(changes_of, blocks))
        if any(self._pool.node_of(block) is None for block in blocks):
            return lambda: False
        return lambda: list(map(changes_of, blocks)) == changes

    def fits(self, hit: Hit, tokens: int, first: int, reserved: int = 0, *, loaded: int = 0) -> bool:
        if self._keeps_states and self._waits_for_state(hit):
            return False
        computed = loaded or hit.tokens
        if self._lacks(hit, tokens, computed, whole=True) > self.free:
            return False
        return self._lacks(hit, first, computed, ahead=not loaded) <= self.free - reserved

    def _waits_for_state(self, hit: Hit) -> bool:
        """Return whether a state that was found is still being computed in this very step."""
        if not self._this_step:
            return False
        last = [
            blocks[-1] for kind, blocks in zip(self._kinds, hit.blocks, strict=True) if kind.keeps_states and blocks
        ]
        nodes = (self._pool.node_of(block) for places in last if places for block in places)
        return any(node in self._this_step for node in nodes)

    def _lacks(self, hit: Hit, tokens: int, computed: int, *, whole: bool = False, ahead: bool = False) -> int:
        """Return how many blocks must be free for ``tokens`` tokens, or the whole request.

        A found block that no request holds is counted as well, since holding it takes it from the free blocks.

        Args:
            hit: The part of the request that the prefix cache has.
            tokens: Tokens of the request.
            computed: Tokens with KV once the request runs, found or loaded.
            whole: Whether ``tokens`` is the whole request, see ``Whole.to_admit``.
            ahead: Whether slots for drafts are needed besides.
        """
        lacks, holders = 0, self._pool.holders
        for kind, blocks in zip(self._kinds, hit.blocks, strict=True):
            slots = kind.slots(tokens) if ahead else tokens
            lacks += kind.num_groups * kind.to_admit(slots, computed, len(blocks), whole=whole)
            for places in blocks[kind.counted_of(hit.tokens, computed) :]:
                if places is not None:
                    lacks += sum(not holders[block] for block in places)
        return lacks

    def admit(self, index: int, hit: Hit) -> None:
        self._hold(index, hit, hit.tokens)

    def load(self, index: int, hit: Hit, tokens: int) -> None:
        self._hold(index, hit, tokens)
        before = self.free
        for kind, table in zip(self._kind_of, self._tables[index], strict=True):
            kind.fill(table, tokens, self._pool.take)
        self.free = self._pool.free
        self._requests.blocks[index] += before - self.free

    def _hold(self, index: int, hit: Hit, computed: int) -> None:
        """Let the request hold the found blocks that the token after ``computed`` tokens reads."""
        tables, held = [], 0
        for kind, blocks in zip(self._kinds, hit.blocks, strict=True):
            skipped = kind.held_of(computed)
            for group in range(kind.num_groups):
                own = [NULL if places is None else places[group] for places in blocks[skipped:]]
                touched = [block for block in own if block != NULL]
                self._pool.touch(touched)
                held += len(touched)
                tables.append(Table([NULL] * skipped + own))
        self._tables[index] = tables
        counts = self._requests
        counts.blocks[index], counts.cached[index] = held, hit.tokens // self.block_size
        counts.settled[index] = computed
        self.free = self._pool.free

    # These methods concern a running request.

    def grow_all(self, members: IntArray, after: IntArray) -> bool:
        return False

    def changed(self, members: IntArray, after: IntArray, new: IntArray) -> IntArray:
        counts = self._requests
        computed = counts.computed[members]
        rows: BoolArray = np.zeros(members.size, np.bool_)
        # With drafts these are more than take blocks: some have blocks of drafts that were rejected.
        for size in {kind.block_size for kind in self._kinds}:
            rows |= blocks_of(after + self._lookahead, size) > blocks_of(computed, size)
        settled = computed - counts.in_flight[members]
        if self._releases:
            before = counts.settled[members]
            for kind in self._kinds:
                rows |= kind.skipped(settled) != kind.skipped(before)
        if self.caches:
            full = np.minimum(after, counts.tokens[members]) // self.block_size
            rows |= full > counts.cached[members]
            if self._aligned:  # the state at the end of a prompt is cached again while it is held
                ends = (counts.prompt[members] - 1) // self.block_size
                rows |= (full == ends) & (full > 0) & (settled <= full * self.block_size)
        rows &= new > 0
        return rows.nonzero()[0]

    def need(self, index: int, tokens: int) -> int:
        self.settle(index)
        return sum(kind.growth(table, tokens) for kind, table in zip(self._kind_of, self._tables[index], strict=True))

    def settle(self, index: int) -> None:
        if not self._releases:
            return
        counts = self._requests
        settled = int(counts.computed[index] - counts.in_flight[index])
        counts.settled[index] = settled
        for kind, table in zip(self._kind_of, self._tables.get(index, ()), strict=False):
            for blocks in kind.give_back(table, settled):
                self._pool.give_back(blocks)
                counts.blocks[index] -= len(blocks)
        self.free = self._pool.free

    def lacking(self, members: IntArray, tokens: IntArray, ahead: int = 0) -> int:
        return sum(
            kind.lacking(table, most, ahead)
            for index, most in zip(members.tolist(), tokens.tolist(), strict=True)
            for kind, table in zip(self._kind_of, self._tables[index], strict=True)
        )

    def step_blocks(self, tokens: int) -> int:
        of_tokens = [kind for kind in self._kind_of if not kind.keeps_states]
        return sum(blocks_of(tokens, kind.block_size) for kind in of_tokens)

    def grow(self, index: int, tokens: int) -> None:
        before = self.free
        for kind, table in zip(self._kind_of, self._tables[index], strict=True):
            kind.extend(table, tokens, self._pool.take)
        self.free = self._pool.free
        self._requests.blocks[index] += before - self.free

    def cache(self, index: int, tokens: int) -> None:
        if not self.caches:
            return
        counts, full = self._requests, tokens // self.block_size
        cached = int(counts.cached[index])
        for group, (kind, table) in enumerate(zip(self._kind_of, self._tables[index], strict=True)):
            for i in range(cached, full):
                if table[i] == NULL:
                    continue
                node = (group, self._nodes.node(index, i))
                self._pool.remember(table[i], node)
                if kind.keeps_states:
                    self._this_step.add(node)
            if isinstance(kind, States) and 0 < full == (int(counts.prompt[index]) - 1) // self.block_size:
                if table[full - 1] != NULL:
                    self._this_step.add((group, self._nodes.node(index, full - 1)))
        counts.cached[index] = max(full, cached)

    def release(self, index: int) -> None:
        for table in self._tables.pop(index, ()):
            self._pool.give_back([block for block in reversed(table) if block != NULL])
        self._requests.blocks[index] = self._requests.cached[index] = 0
        self.free = self._pool.free

    def ended(self, index: int) -> None:
        self._nodes.ended(index)

    def empty_cache(self) -> None:
        self._pool.forget_all()

    def holding(self, index: int) -> Holding:
        held = [block for table in self._tables[index] for block in table if block != NULL]
        holders = self._pool.holders
        shared = {block: holders[block] for block in held if holders[block] > 1}
        return Holding(len(held) - len(shared), shared)
