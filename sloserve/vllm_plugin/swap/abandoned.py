"""Loads that no request waits for any more, and what they may still write to.

vLLM has no way out of a load but its end: it cannot reset the KV cache while one runs, and raises. Here the request
goes back into the queue at once, as if just preempted, and the blocks that its load writes stay out of vLLM's pool
until the load ends. So a reset waits for no load, and no block is given to another request while a copy writes to it.
"""

from typing import Any

from vllm.v1.request import Request

from sloserve.vllm_plugin.engine import compat


class AbandonedLoads:
    """The blocks that loads of no request still write to, by the id of the request that they were for."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._blocks: dict[str, list[Any]] = {}
        self._counted_free: list[Any] = []

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._blocks

    def add(self, request: Request) -> None:
        """The load of ``request`` runs: the request waits again, without KV, or is gone if it has ended."""
        take = compat.take_over if request.is_finished() else compat.take_back
        self._blocks[request.request_id] = take(self._scheduler, request)

    def ended(self, request_id: str) -> bool:
        """A load ended. Returns: whether it was one of these, of which vLLM must hear nothing."""
        blocks = self._blocks.pop(request_id, None)
        if blocks is not None:
            compat.free(self._scheduler, blocks)
        return blocks is not None

    def count_free(self) -> None:
        """vLLM's pool counts their blocks as free from now on, for a reset, which asks that all are.

        Nothing may be allocated before :meth:`count_taken`.
        """
        self._counted_free = [block for blocks in self._blocks.values() for block in blocks]
        compat.free(self._scheduler, self._counted_free)

    def count_taken(self) -> None:
        """The reset is over."""
        blocks, self._counted_free = self._counted_free, []
        compat.reclaim(self._scheduler, blocks)
