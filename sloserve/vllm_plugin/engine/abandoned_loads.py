"""Loads for which no request waits any more, and the blocks that they may still write to.

The only way out of a load in vLLM is its end: vLLM cannot reset the KV cache while one runs, and raises. Here the
request goes back into the queue at once, as if just preempted, and the blocks that its load writes stay out of vLLM's
pool until the load ends. So a reset waits for no load, and no block is given to another request while a copy writes to
it.
"""

from typing import Any

from vllm.v1.request import Request

from sloserve.vllm_plugin.engine import kv_loads


class AbandonedLoads:
    """Blocks to which loads without a request still write, by the id of the request that they were for."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._blocks: dict[str, list[Any]] = {}
        self._counted_free: list[Any] = []

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._blocks

    def add(self, request: Request) -> None:
        """Give up the running load of ``request``: it waits again, without KV, or is gone if it has ended."""
        take = kv_loads.take_over if request.is_finished() else kv_loads.take_back
        self._blocks[request.request_id] = take(self._scheduler, request)

    def ended(self, request_id: str) -> bool:
        """Record that a load ended. Return whether it was abandoned; then vLLM must not be notified."""
        blocks = self._blocks.pop(request_id, None)
        if blocks is not None:
            kv_loads.free(self._scheduler, blocks)
        return blocks is not None

    def count_free(self) -> None:
        """Make vLLM's pool count the blocks as free, for a reset, which requires that all blocks are free.

        Nothing may be allocated before :meth:`count_taken`.
        """
        self._counted_free = [block for blocks in self._blocks.values() for block in blocks]
        kv_loads.free(self._scheduler, self._counted_free)

    def count_taken(self) -> None:
        """Make vLLM's pool count the blocks as taken again, after the reset."""
        blocks, self._counted_free = self._counted_free, []
        kv_loads.reclaim(self._scheduler, blocks)
