"""KV blocks of a model engine where numbers of blocks say it all: full attention, and no requests share a block."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from sloserve.core.arrays import IntArray
from sloserve.core.kernels.kv_layout import KVLayout
from sloserve.lso.blocks import blocks_of
from sloserve.lso.preemption import Holding
from sloserve.sim.model.model_requests import ModelRequests


class Hit(NamedTuple):
    """What the prefix cache has of a waiting request.

    tokens: whose KV is there. blocks: for each kind of layer by place, see ``kept.Found``. junction: tokens that one
    kind of layer has of a prefix and another has not; 0 where all have the same.
    """

    tokens: int = 0
    blocks: Sequence[Sequence[tuple[int, ...] | None]] = ()
    junction: int = 0


NO_HIT = Hit()


class KVBlocks:
    """How many blocks are free, and how many each request holds.

    free: how many are free. block_size: tokens of one that is cached. caches: whether blocks outlive their request in a
    prefix cache.
    """

    caches = False

    def __init__(self, requests: ModelRequests, num_blocks: int, layout: KVLayout) -> None:
        self.free = num_blocks
        self._lookahead, self._max_tokens = layout.lookahead_tokens, layout.max_model_len
        self._requests = requests
        self.block_size = min(groups.block_size for groups in layout.groups)

    def _wanted(self, tokens: Any) -> Any:
        """Blocks of requests of so many tokens: a count, or an array of them."""
        if self._lookahead:
            tokens = np.minimum(tokens + self._lookahead, self._max_tokens)
        return blocks_of(tokens, self.block_size)

    def step_begins(self) -> None:
        """What was cached from here on is of the same step."""

    # Of a waiting request.

    def lookup(self, index: int) -> Hit:
        """What the cache has of the request's tokens, all but its last."""
        return NO_HIT

    def hit_tokens(self, index: int, before: int) -> int:
        """The tokens that :meth:`lookup` would find, where it found ``before`` last time."""
        return 0

    def fits(self, hit: Hit, tokens: int, first: int, reserved: int = 0, *, loaded: int = 0) -> bool:
        """Whether a request of so many tokens can be held, of which ``hit`` is there already, and its first ``first``
        tokens beside ``reserved`` blocks that stay free.

        loaded: tokens of which the KV will be loaded, those of ``hit`` included; 0 for a request that loads none.
        """
        whole = blocks_of(tokens, self.block_size)
        return whole <= self.free and bool(self._wanted(first) <= self.free - reserved)

    def admit(self, index: int, hit: Hit) -> None:
        """The request holds what it found in the cache."""

    def load(self, index: int, hit: Hit, tokens: int) -> None:
        """The request holds what it found in the cache, and the blocks into which the KV of its first so many tokens is
        loaded.
        """
        self.admit(index, hit)
        self.grow(index, tokens)

    def lacking(self, members: IntArray, tokens: IntArray) -> int:
        """Blocks that requests with KV still lack for so many tokens each, ``[n]``, before any is given back."""
        return int(np.maximum(blocks_of(tokens, self.block_size) - self._requests.blocks[members], 0).sum())

    # Of one that runs.

    def grow_all(self, members: IntArray, after: IntArray) -> bool:
        """Gives requests blocks for ``after`` tokens each, ``[n]``, if all fit and nothing else is to be done;
        ``False`` where each is to be looked at, and none has got any.
        """
        held = self._requests.blocks
        need = self._wanted(after) - held[members]
        short = need > 0
        if int(np.add.reduce(need, where=short)) > self.free:
            return False
        rows = short.nonzero()[0]
        if rows.size:
            taken = need[rows]
            held[members[rows]] += taken
            self.free -= int(np.add.reduce(taken))
        return True

    def changed(self, members: IntArray, after: IntArray, new: IntArray) -> IntArray:
        """Which of the requests, by place, take or give back blocks, or have some to be cached, so that each has
        ``after`` tokens, ``[n]``, of which ``new`` are this step's.
        """
        rows: IntArray = (self._wanted(after) > self._requests.blocks[members]).nonzero()[0]
        return rows

    def need(self, index: int, tokens: int) -> int:
        """Gives back what the request no longer needs; returns the blocks that it lacks for so many tokens."""
        return max(int(self._wanted(tokens)) - int(self._requests.blocks[index]), 0)

    def has_room(self, index: int, full: int, tokens: int) -> bool:
        """Whether a request with KV can be held with all its ``full`` tokens, and now with so many."""
        whole = self.lacking(np.array([index]), np.array([full]))
        return whole <= self.free and self.need(index, tokens) <= self.free

    def grow(self, index: int, tokens: int) -> None:
        """The request gets the blocks that it lacks, which are free."""
        count = self.need(index, tokens)
        self.free -= count
        self._requests.blocks[index] += count

    def cache(self, index: int, tokens: int) -> None:
        """The request's first so many tokens are there from now on, so that others may find them."""

    def release(self, index: int) -> None:
        """The request gives its blocks back."""
        self.free += int(self._requests.blocks[index])
        self._requests.blocks[index] = 0

    def ended(self, index: int) -> None:
        """The request will not come back."""

    def empty_cache(self) -> None:
        """What is cached is gone. No request holds a block."""

    def holding(self, index: int) -> Holding:
        """The blocks of a request: its own, and those that it shares."""
        return Holding(int(self._requests.blocks[index]))
