"""The identity of the content of a request's blocks, so that equal prefixes are found equal: vLLM's block hashes."""

from collections.abc import Hashable, Sequence

from sloserve.core.request import OUTPUT_ID, WorkloadRequest
from sloserve.sim.model.model_requests import ModelRequests


class PromptNodes:
    """The contents of blocks as nodes: a node is the tokens of a block together with the node before it.

    A prompt without ``prefix_ids`` shares nothing: no other prompt has the same nodes.
    """

    def __init__(self, requests: ModelRequests, block_size: int) -> None:
        self._requests = requests
        self._block_size = block_size
        self._nodes: dict[tuple[Hashable, ...], int] = {}
        self._nodes_of: dict[int, list[int]] = {}  # by request, up to the last block that was asked for

    def node(self, index: int, i: int) -> Hashable:
        """Return the node of the request's block ``i``: it identifies the content up to and including this block."""
        nodes = self._nodes_of.get(index)
        if nodes is not None and i < len(nodes):
            return nodes[i]
        item = self._requests.handles[index].workload
        if not item.prefix_ids:
            return (index, i)
        if nodes is None:
            nodes = self._nodes_of[index] = []
        while len(nodes) <= i:
            key = (nodes[-1] if nodes else None, *self._content(item, len(nodes)))
            nodes.append(self._nodes.setdefault(key, len(self._nodes)))
        return nodes[i]

    def of_prompt(self, index: int) -> Sequence[Hashable]:
        """Return the nodes of the full blocks of the request's prompt; none for a prompt that shares nothing."""
        return self.first(index, self._requests.handles[index].workload.prompt_tokens // self._block_size)

    def first(self, index: int, count: int) -> Sequence[Hashable]:
        """Return the nodes of the request's first ``count`` blocks; none for a prompt that shares nothing."""
        if count <= 0 or not self._requests.handles[index].workload.prefix_ids:
            return ()
        self.node(index, count - 1)
        return self._nodes_of[index][:count]

    def ended(self, index: int) -> None:
        """Forget the request, which will not come back."""
        self._nodes_of.pop(index, None)

    def _content(self, item: WorkloadRequest, i: int) -> tuple[int, ...]:
        """Return the tokens of block ``i``; each run of equal tokens is one token with its length."""
        prompt_tokens, prefix_ids, chunk_tokens = item.prompt_tokens, item.prefix_ids, item.prefix_block_tokens
        at, end = i * self._block_size, (i + 1) * self._block_size
        if chunk_tokens == self._block_size and end <= prompt_tokens and i < len(prefix_ids):
            return prefix_ids[i], chunk_tokens
        runs: list[int] = []
        while at < end:
            chunk = min(at // chunk_tokens, len(prefix_ids) - 1)
            token, until = OUTPUT_ID, end
            if at < prompt_tokens:
                token = prefix_ids[chunk]
                is_last = chunk == len(prefix_ids) - 1
                until = min(end, prompt_tokens, end if is_last else (chunk + 1) * chunk_tokens)
            if runs and runs[-2] == token:
                runs[-1] += until - at
            else:
                runs += [token, until - at]
            at = until
        return tuple(runs)
