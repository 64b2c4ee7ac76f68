"""The blocks of a KV cache that are free, and what the prefix cache knows of them: vLLM's BlockPool.

Which block a request gets decides which prompt is forgotten, so the queue of free blocks is kept in vLLM's order: what
the prefix cache knows is appended when it is freed (the least recently used is taken first), what it does not know is
put in front.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence

NULL = 0
"""The number in place of a block that is not kept; vLLM's null block."""


class BlockPool:
    """The blocks of a KV cache by number, from 1.

    A node identifies what a block may hold, and for which KV cache group. ``holders`` is, by block, the number of
    requests that hold it.
    """

    def __init__(self, num_blocks: int) -> None:
        self._queue = OrderedDict.fromkeys(range(1, num_blocks + 1))  # free blocks, the next one to be used first
        self.holders = [0] * (num_blocks + 1)
        self._node_of: list[Hashable] = [None] * (num_blocks + 1)
        self._changes = [0] * (num_blocks + 1)
        self._blocks_with: dict[Hashable, dict[int, None]] = {}  # by node, in the order in which they were cached

    @property
    def free(self) -> int:
        """The number of blocks that no request holds."""
        return len(self._queue)

    def take(self, count: int) -> list[int]:
        """Return the next ``count`` free blocks, after forgetting what they cached."""
        taken = []
        for _ in range(count):
            block, _ = self._queue.popitem(last=False)
            if self._node_of[block] is not None:
                self._forget(block)
            self.holders[block] = 1
            taken.append(block)
        return taken

    def touch(self, blocks: Iterable[int]) -> None:
        """Count one more request as a holder of each block; the prefix cache knows all of these blocks."""
        for block in blocks:
            if not self.holders[block]:
                del self._queue[block]
            self.holders[block] += 1

    def give_back(self, blocks: Sequence[int]) -> None:
        """Count one request fewer as a holder of each block, and free the blocks without a holder.

        Freed blocks are used again in the given order, but blocks without cached content come first.
        """
        known: list[int] = []
        unknown: list[int] = []
        for block in blocks:
            self.holders[block] -= 1
            if not self.holders[block]:
                (unknown if self._node_of[block] is None else known).append(block)
        for block in reversed(unknown):
            self._queue[block] = None
            self._queue.move_to_end(block, last=False)
        for block in known:
            self._queue[block] = None

    def remember(self, block: int, node: Hashable) -> None:
        """Record that the block caches the content ``node``, so that other requests can find it."""
        self._node_of[block] = node
        self._changes[block] += 1
        self._blocks_with.setdefault(node, {})[block] = None

    def found(self, node: Hashable) -> int | None:
        """Return the first cached block with the content ``node``, or ``None`` if no block has it."""
        blocks = self._blocks_with.get(node)
        return None if blocks is None else next(iter(blocks))

    def node_of(self, block: int) -> Hashable:
        """Return the content that the block caches, or ``None`` if it caches nothing."""
        return self._node_of[block]

    def changes_of(self, block: int) -> int:
        """Return how often what the block caches has changed; an equal content counts too."""
        return self._changes[block]

    def _forget(self, block: int) -> None:
        node = self._node_of[block]
        self._node_of[block] = None
        self._changes[block] += 1
        blocks = self._blocks_with[node]
        del blocks[block]
        if not blocks:
            del self._blocks_with[node]

    def forget_all(self) -> None:
        """Forget the cached content of every block; requires that no request holds a block."""
        self._node_of = [None] * len(self._node_of)
        self._changes = [changes + 1 for changes in self._changes]
        self._blocks_with.clear()
