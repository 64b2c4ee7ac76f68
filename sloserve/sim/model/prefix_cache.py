"""KV blocks of a model engine with prefix caching, block by block: vLLM's BlockPool.

Which block a request gets decides which prompt is forgotten, so the queue of free blocks is kept in vLLM's order: what
the prefix cache knows is appended when it is freed (the least recently used is taken first, of one request its tail),
what it does not know is put in front.
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence

from sloserve.core.request import PREFIX_BLOCK_TOKENS
from sloserve.engine.prefix_hit import blocks_hit
from sloserve.lso.blocks import blocks_of
from sloserve.lso.preemption import Holding
from sloserve.sim.model.blocks import KVBlocks
from sloserve.sim.model.model_requests import ModelRequests

_OUTPUT = -1
"""Token that all replies are made of; no block of a prompt has it for its id."""


class PrefixCache(KVBlocks):
    """See :class:`~sloserve.sim.model.blocks.KVBlocks`. A block's content is a node: its tokens and the node before it.

    Prompts without ``prefix_ids`` share nothing, so their nodes are their own.
    """

    caches = True

    def __init__(self, requests: ModelRequests, num_blocks: int, block_size: int) -> None:
        super().__init__(requests, num_blocks, block_size)
        self._queue = OrderedDict.fromkeys(range(1, num_blocks + 1))  # free blocks, the next one to be used first
        self._holders = [0] * (num_blocks + 1)
        self._node_of: list[Hashable] = [None] * (num_blocks + 1)
        self._blocks_with: dict[Hashable, dict[int, None]] = {}  # by node, in the order in which they were cached
        self._nodes: dict[tuple[Hashable, ...], int] = {}
        self._nodes_of: dict[int, list[int]] = {}  # by request, as far as asked for
        self._held: dict[int, list[int]] = {}

    def lookup(self, index: int) -> Sequence[int]:
        found = []
        for i in range(self._full_blocks(index)):
            blocks = self._blocks_with.get(self._node(index, i))
            if blocks is None:
                break
            found.append(next(iter(blocks)))
        return found

    def hits(self, index: int, before: int) -> int:
        return blocks_hit(lambda i: self._node(index, i) in self._blocks_with, self._full_blocks(index), before)

    def _full_blocks(self, index: int) -> int:
        """Full blocks of all tokens but the last, which must be computed."""
        return (int(self._requests.tokens[index]) - 1) // self._block_size

    def fits(self, tokens: int, hits: Sequence[int], reserved: int = 0) -> bool:
        # A block in the cache that no request holds counts as free until it is held.
        unheld = sum(self._holders[block] == 0 for block in hits)
        return blocks_of(tokens, self._block_size) - len(hits) + unheld <= self.free - reserved

    def admit(self, index: int, hits: Sequence[int]) -> None:
        for block in hits:
            if not self._holders[block]:
                del self._queue[block]
                self.free -= 1
            self._holders[block] += 1
        self._held[index] = list(hits)
        self._requests.blocks[index] = self._requests.cached[index] = len(hits)

    def take(self, index: int, count: int) -> None:
        super().take(index, count)
        for _ in range(count):
            block, _ = self._queue.popitem(last=False)
            self._forget(block)
            self._holders[block] = 1
            self._held[index].append(block)

    def _forget(self, block: int) -> None:
        node = self._node_of[block]
        if node is None:
            return
        self._node_of[block] = None
        blocks = self._blocks_with[node]
        del blocks[block]
        if not blocks:
            del self._blocks_with[node]

    def cache(self, index: int, full_blocks: int) -> None:
        held = self._held[index]
        for i in range(int(self._requests.cached[index]), full_blocks):
            node = self._node(index, i)
            self._node_of[held[i]] = node
            self._blocks_with.setdefault(node, {})[held[i]] = None
        self._requests.cached[index] = max(full_blocks, int(self._requests.cached[index]))

    def release(self, index: int) -> None:
        known: list[int] = []
        unknown: list[int] = []
        for block in reversed(self._held.pop(index, ())):
            self._holders[block] -= 1
            if not self._holders[block]:
                (unknown if self._node_of[block] is None else known).append(block)
        for block in reversed(unknown):
            self._queue[block] = None
            self._queue.move_to_end(block, last=False)
        for block in known:
            self._queue[block] = None
        self.free += len(unknown) + len(known)
        self._requests.blocks[index] = self._requests.cached[index] = 0

    def empty_cache(self) -> None:
        self._node_of = [None] * len(self._node_of)
        self._blocks_with.clear()

    def ended(self, index: int) -> None:
        self._nodes_of.pop(index, None)

    def holding(self, index: int) -> Holding:
        held = self._held[index]
        shared = {block: self._holders[block] for block in held if self._holders[block] > 1}
        return Holding(len(held) - len(shared), shared)

    def _node(self, index: int, i: int) -> Hashable:
        """What identifies the content of the request's block ``i``, all before it included."""
        item = self._requests.handles[index].workload
        if not item.prefix_ids:
            return (index, i)
        nodes = self._nodes_of.setdefault(index, [])
        while len(nodes) <= i:
            key = (nodes[-1] if nodes else None, *self._content(item.prompt_tokens, item.prefix_ids, len(nodes)))
            nodes.append(self._nodes.setdefault(key, len(self._nodes)))
        return nodes[i]

    def _content(self, prompt_tokens: int, prefix_ids: tuple[int, ...], i: int) -> tuple[int, ...]:
        """The tokens of a block: each run of equal ones as one, with its length."""
        at, end = i * self._block_size, (i + 1) * self._block_size
        runs: list[int] = []
        while at < end:
            chunk = min(at // PREFIX_BLOCK_TOKENS, len(prefix_ids) - 1)
            token, until = _OUTPUT, end
            if at < prompt_tokens:
                token = prefix_ids[chunk]
                is_last = chunk == len(prefix_ids) - 1
                until = min(end, prompt_tokens, end if is_last else (chunk + 1) * PREFIX_BLOCK_TOKENS)
            if runs and runs[-2] == token:
                runs[-1] += until - at
            else:
                runs += [token, until - at]
            at = until
        return tuple(runs)
