"""KV blocks with a prefix cache for one group of full attention: the general rules, but faster."""

from collections.abc import Callable

import numpy as np

from sloserve.core.arrays import BoolArray, IntArray
from sloserve.core.kernels.kv_layout import KVLayout
from sloserve.engine.prefix_hit import blocks_hit
from sloserve.sim.model.grouped_blocks import GroupedBlocks
from sloserve.sim.model.model_requests import ModelRequests


class PrefixCache(GroupedBlocks):
    """The blocks of an engine with one group of full attention; see :class:`~sloserve.sim.model.blocks.KVBlocks`.

    A request of n tokens holds n / block size blocks.
    """

    def __init__(self, requests: ModelRequests, num_blocks: int, layout: KVLayout, *, drops: bool = False) -> None:
        super().__init__(requests, num_blocks, layout, caches=True, drops=drops)

    def hit_tokens(self, index: int, before: int) -> int:
        cached, size, dropped = self._cached(index, 0), self.block_size, int(self._drops)
        found = blocks_hit(cached, (int(self._requests.tokens[index]) - 1) // size, before // size + dropped)
        return max(found - dropped, 0) * size

    def _cached(self, index: int, k: int) -> Callable[[int], tuple[int, ...] | None]:
        node, found = self._nodes.node, self._pool.found

        def cached(i: int) -> tuple[int, ...] | None:
            block = found(node(index, i))
            return None if block is None else (block,)

        return cached

    def changed(self, members: IntArray, after: IntArray, new: IntArray) -> IntArray:
        counts = self._requests
        full = np.minimum(after, counts.tokens[members]) // self.block_size
        full[new == 0] = 0
        rows: BoolArray = (self._wanted(after) > counts.blocks[members]) | (full > counts.cached[members])
        return rows.nonzero()[0]

    def need(self, index: int, tokens: int) -> int:
        return self._kinds[0].growth(self._tables[index][0], tokens)

    def grow(self, index: int, tokens: int) -> None:
        table, count = self._tables[index][0], self.need(index, tokens)
        if count:
            table += self._pool.take(count)
            self._requests.blocks[index] += count
            self.free -= count

    def cache(self, index: int, tokens: int) -> None:
        counts, full = self._requests, tokens // self.block_size
        cached = int(counts.cached[index])
        if full > cached:
            table = self._tables[index][0]
            for i in range(cached, full):
                self._pool.remember(table[i], self._nodes.node(index, i))
            counts.cached[index] = full
