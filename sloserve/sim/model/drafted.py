"""Drafts in the model engine: what vLLM's asynchronous scheduler books of them, on arrays.

A request that gets a token from a step proposes as many drafts as the engine has for its next one. Until the output of
a step is there, vLLM counts all its drafts as computed, and a place for each beside the token that is certain; rejected
drafts are then taken off again.
"""

from collections.abc import Iterable

import numpy as np

from sloserve.core.arrays import BoolArray, IntArray, grown
from sloserve.engine.virtual.drafts import Drafts
from sloserve.sim.model.model_requests import ModelRequest, ModelRequests
from sloserve.sim.model.step import StepBatch

_CAPACITY = 65_536
"""The number of output tokens, over all requests, that there is room for at first."""


class ModelDrafts:
    """The drafts of a model engine's requests.

    Args:
        num_tokens: Draft tokens of a decode in a step.
        drafted: Number of draft tokens that were verified.
        accepted: Number of draft tokens that were accepted.
    """

    def __init__(self, requests: ModelRequests, drafts: Drafts) -> None:
        self.num_tokens = drafts.num_tokens
        self.drafted = self.accepted = 0
        self._requests, self._drafts = requests, drafts
        self._runs: IntArray = np.zeros(_CAPACITY, np.int64)  # the outputs of every request, one after another
        self._first: IntArray = np.zeros(requests.state.size, np.int64)  # by index, where the runs of an output begin
        # By index, whether the request's last step reached the end of its prompt.
        self._decodes: BoolArray = np.zeros(requests.state.size, np.bool_)
        self._size = 0

    def add(self, requests: Iterable[ModelRequest]) -> None:
        """Draw which drafts of new requests are accepted."""
        for request in requests:
            self._add(request)

    def _add(self, request: ModelRequest) -> None:
        index, tokens = request.index, int(self._requests.left[request.index])
        while index >= self._first.size:
            self._first = grown(self._first, 2 * self._first.size, 0)
            self._decodes = grown(self._decodes, self._first.size, False)
        while self._size + tokens > self._runs.size:
            self._runs = grown(self._runs, 2 * self._runs.size, 0)
        self._first[index] = self._size
        self._runs[self._size : self._size + tokens] = self._drafts.accepted_runs(request.request_id, tokens)
        self._size += tokens

    def scheduled(self, members: IntArray, beyond: IntArray, samples: BoolArray) -> IntArray:
        """Book the drafts of a step; return how many each request has, ``[n]``.

        Args:
            members: Indices of the requests in the step, ``[n]``.
            beyond: Tokens that the step computes of each request beyond its known or awaited tokens, ``[n]``.
            samples: Whether the step gives each request a token, ``[n]``.
        """
        counts = self._requests
        drafts: IntArray = np.maximum(beyond, 0)
        counts.placeholders[members] += drafts
        counts.proposed[members] = np.where(samples, self.num_tokens, 0)
        self._decodes[members] = samples
        return drafts

    def padding(self, served: IntArray) -> int:
        """Return the tokens that an admitted request gets in place of drafts beside its last token.

        vLLM keeps a step uniform in this way if the requests that it serves before, ``served``, all decode.
        """
        return self.num_tokens if bool(self._decodes[served].all()) else 0

    def output(self, batch: StepBatch, gets: BoolArray, fresh: BoolArray | None) -> IntArray:
        """Book the output of a step; return how many tokens each request that gets any takes from it.

        Args:
            batch: The step.
            gets: Mask of the requests that get tokens in the step, ``[requests in the step]``.
            fresh: Mask, among the requests that get tokens, of the requests that were not preempted since; ``None`` for
                all.
        """
        assert batch.drafts is not None
        counts, sampled, drafts = self._requests, batch.requests[gets], batch.drafts[gets]
        acceptable = drafts
        if batch.admitted:  # no drafts yet: they were padded
            acceptable = batch.drafts.copy()
            acceptable[-len(batch.admitted) :] = 0
            acceptable = acceptable[gets]
        places = self._first[sampled] + counts.tokens[sampled] - counts.prompt[sampled]
        accepted: IntArray = np.minimum(self._runs[places], acceptable)
        self.drafted += int(np.add.reduce(drafts))
        self.accepted += int(np.add.reduce(accepted))
        taken: IntArray = np.minimum(accepted + 1, counts.left[sampled])
        rejected = drafts - accepted
        if fresh is not None:
            sampled, rejected = sampled[fresh], rejected[fresh]
        counts.computed[sampled] -= rejected
        counts.placeholders[sampled] -= rejected + (taken if fresh is None else taken[fresh])
        return taken
