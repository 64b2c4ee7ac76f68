"""KV blocks of a model engine without prefix caching: no requests share a block, so numbers of blocks say it all."""

from collections.abc import Sequence

from sloserve.lso.blocks import blocks_of
from sloserve.lso.preemption import Holding
from sloserve.sim.model.model_requests import ModelRequests


class KVBlocks:
    """How many blocks are free, and how many each request holds.

    free: how many are free. caches: whether blocks outlive their request in a prefix cache.
    """

    caches = False

    def __init__(self, requests: ModelRequests, num_blocks: int, block_size: int) -> None:
        self.free = num_blocks
        self._requests = requests
        self._block_size = block_size

    def lookup(self, index: int) -> Sequence[int]:
        """The cached blocks that the request's tokens begin with, all but its last token."""
        return ()

    def hits(self, index: int, before: int) -> int:
        """How many blocks :meth:`lookup` would find, of which it found ``before`` last time."""
        return 0

    def fits(self, tokens: int, hits: Sequence[int], reserved: int = 0) -> bool:
        """Whether a request of that many tokens can be held, of which ``hits`` are there already, beside ``reserved``
        blocks that stay free.
        """
        return blocks_of(tokens, self._block_size) <= self.free - reserved

    def admit(self, index: int, hits: Sequence[int]) -> None:
        """The request holds the blocks that it found in the cache."""

    def take(self, index: int, count: int) -> None:
        """The request gets so many more of the free blocks."""
        self.free -= count
        self._requests.blocks[index] += count

    def cache(self, index: int, full_blocks: int) -> None:
        """The request's first so many blocks are full from now on, so that others may find them."""

    def release(self, index: int) -> None:
        """The request gives its blocks back."""
        self.free += int(self._requests.blocks[index])
        self._requests.blocks[index] = 0

    def empty_cache(self) -> None:
        """What is cached is gone. No request holds a block."""

    def ended(self, index: int) -> None:
        """The request will not come back."""

    def holding(self, index: int) -> Holding:
        """The blocks of a request: its own, and those that it shares."""
        return Holding(int(self._requests.blocks[index]))
