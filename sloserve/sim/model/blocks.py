"""KV blocks of a model engine where block counts are enough: full attention, and no requests share a block."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from sloserve.core.arrays import IntArray
from sloserve.core.kernels.kv_layout import KVLayout
from sloserve.lso.blocks import blocks_of
from sloserve.lso.preemption import Holding
from sloserve.sim.model.model_requests import ModelRequests


class Hit(NamedTuple):
    """What the prefix cache has of a waiting request.

    Args:
        tokens: Number of leading tokens with cached KV.
        blocks: The cached blocks of each kind of layer by place, see ``kept.Found``.
        junction: Number of leading tokens that one kind of layer has cached and another has not; 0 where all kinds
            agree.
    """

    tokens: int = 0
    blocks: Sequence[Sequence[tuple[int, ...] | None]] = ()
    junction: int = 0


NO_HIT = Hit()


class KVBlocks:
    """The number of free blocks, and of the blocks that each request holds.

    Args:
        free: Number of free blocks.
        block_size: Tokens of a block that is cached.
        caches: Whether blocks outlive their request in a prefix cache.
    """

    caches = False

    def __init__(self, requests: ModelRequests, num_blocks: int, layout: KVLayout) -> None:
        self.free = num_blocks
        self._lookahead, self._max_tokens = layout.lookahead_tokens, layout.max_model_len
        self._requests = requests
        self.block_size = min(groups.block_size for groups in layout.groups)

    def _wanted(self, tokens: Any) -> Any:
        """Return the number of blocks for a request of ``tokens`` tokens (a count, or an array of counts)."""
        if self._lookahead:
            tokens = np.minimum(tokens + self._lookahead, self._max_tokens)
        return blocks_of(tokens, self.block_size)

    def step_begins(self) -> None:
        """Begin a step: blocks cached after this call belong to the new step."""

    # These methods concern a waiting request.

    def lookup(self, index: int) -> Hit:
        """Return what the cache has of all the request's tokens but its last."""
        return NO_HIT

    def hit_tokens(self, index: int, before: int) -> int:
        """Return the number of tokens that :meth:`lookup` would find now, given that it found ``before`` last time."""
        return 0

    def prompt_contents(self, index: int, stretch_tokens: int) -> Sequence[Hashable]:
        """Return the content of each whole stretch of the request's prompt; empty without a prefix cache."""
        return ()

    def contents(self, index: int, tokens: int) -> Sequence[Hashable]:
        """Return the content of each full block of the request's first ``tokens`` tokens; none without a prefix cache.

        Two requests have an equal entry at a place if all their tokens up to the end of that block are equal.
        """
        return ()

    def watched(self, index: int, places: Sequence[range]) -> Callable[[], bool]:
        """Return a function that says whether blocks of the request still have the content that they have now.

        Args:
            index: The request.
            places: Places of the blocks in each KV cache group.
        """
        return lambda: False

    def fits(self, hit: Hit, tokens: int, first: int, reserved: int = 0, *, loaded: int = 0) -> bool:
        """Return whether a waiting request can be held to its end and its first chunk fits now.

        Args:
            hit: The part of the request that the prefix cache has.
            tokens: Tokens of the whole request, the tokens of ``hit`` included.
            first: Tokens that must fit at once, beside the reserved blocks.
            reserved: Number of blocks that must stay free.
            loaded: Number of tokens with KV to load, the tokens of ``hit`` included; 0 for a request that loads none.
        """
        whole = blocks_of(tokens, self.block_size)
        wanted = blocks_of(loaded, self.block_size) if loaded else self._wanted(first)
        return whole <= self.free and bool(wanted <= self.free - reserved)

    def admit(self, index: int, hit: Hit) -> None:
        """Let the request hold the blocks that it found in the cache."""

    def load(self, index: int, hit: Hit, tokens: int) -> None:
        """Let the request hold what it found in the cache and the blocks for its loaded KV.

        The KV of the request's first ``tokens`` tokens is loaded into these blocks.
        """
        self.admit(index, hit)
        self._take(index, blocks_of(tokens, self.block_size))

    def lacking(self, members: IntArray, tokens: IntArray, ahead: int = 0) -> int:
        """Return how many blocks requests with KV lack for ``tokens`` tokens each, ``[n]``, before any go back.

        Args:
            members: Indices of the requests, ``[n]``.
            tokens: Tokens of each whole request, ``[n]``.
            ahead: Slots beyond these tokens for drafts.
        """
        return int(np.maximum(blocks_of(tokens + ahead, self.block_size) - self._requests.blocks[members], 0).sum())

    def step_blocks(self, tokens: int) -> int:
        """Return the blocks, over all groups with blocks of tokens, that a step of ``tokens`` tokens may take."""
        return blocks_of(tokens, self.block_size)

    # These methods concern a running request.

    def grow_all(self, members: IntArray, after: IntArray) -> bool:
        """Give requests blocks for ``after`` tokens each, ``[n]``, if all fit and nothing else is to be done.

        Returns ``False``, and gives no blocks, where each request must be looked at separately.
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
        """Return the places of the requests that take or give back blocks, or have blocks to be cached.

        Args:
            members: Indices of the requests, ``[n]``.
            after: Tokens of each request after the step, ``[n]``.
            new: Tokens of each request that the step computes, ``[n]``.
        """
        rows: IntArray = (self._wanted(after) > self._requests.blocks[members]).nonzero()[0]
        return rows

    def need(self, index: int, tokens: int) -> int:
        """Give back the blocks that the request no longer needs, and return how many it lacks for ``tokens`` tokens."""
        return max(int(self._wanted(tokens)) - int(self._requests.blocks[index]), 0)

    def settle(self, index: int) -> None:
        """Give back the blocks that the request no longer needs."""

    def has_room(self, index: int, full: int, tokens: int) -> bool:
        """Return whether a request with KV can be held with all its ``full`` tokens, and now with ``tokens``."""
        whole = self.lacking(np.array([index]), np.array([full]))
        return whole <= self.free and self.need(index, tokens) <= self.free

    def grow(self, index: int, tokens: int) -> None:
        """Give the request the blocks that it lacks for ``tokens`` tokens; they must be free."""
        self._take(index, self.need(index, tokens))

    def _take(self, index: int, count: int) -> None:
        self.free -= count
        self._requests.blocks[index] += count

    def cache(self, index: int, tokens: int) -> None:
        """Record the request's first ``tokens`` tokens as cached, so that other requests can find them."""

    def release(self, index: int) -> None:
        """Give back all blocks of the request."""
        self.free += int(self._requests.blocks[index])
        self._requests.blocks[index] = 0

    def ended(self, index: int) -> None:
        """Forget the request, which will not come back."""

    def empty_cache(self) -> None:
        """Drop everything that is cached; requires that no request holds a block."""

    def holding(self, index: int) -> Holding:
        """Return the blocks that a request holds: the blocks of its own and the blocks that it shares."""
        return Holding(int(self._requests.blocks[index]))
