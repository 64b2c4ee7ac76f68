"""The requests of a model engine: counts as vLLM's Request has them, one array each."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sloserve.core.arrays import BoolArray, IntArray, grown
from sloserve.core.request import WorkloadRequest
from sloserve.core.rows import State

FREE, WAITING, PREEMPTED, RUNNING, BLOCKED = (
    int(s) for s in (State.FREE, State.WAITING, State.PREEMPTED, State.RUNNING, State.BLOCKED)
)

_CAPACITY = 1024
"""The number of requests that there is room for at first."""
_COUNTS = (
    "prompt", "last", "tokens", "left", "computed", "in_flight", "placeholders", "stale", "found",
    "blocks", "cached", "settled", "junction", "preemptions", "prefilled", "recomputed", "proposed",
)  # fmt: skip


class ModelRequests:
    """The counts and state of all requests, one entry per request by its index; an index is never used again.

    Counts are in tokens unless their description says otherwise.

    Args:
        prompt: Tokens of the prompt.
        last: Most tokens that prompt and output can have.
        tokens: Tokens of the prompt and of the output up to now.
        left: Output tokens that remain, up to and including EOS.
        computed: Tokens with KV, tokens in flight included.
        in_flight: Tokens that are scheduled, with a result not yet seen.
        placeholders: Output tokens that are in flight.
        stale: Tokens in flight since before a preemption.
        found: Tokens found in the prefix cache or the host pool at the first admission.
        prefilled: Tokens that had KV at some time.
        recomputed: Tokens that had KV, lost it and were computed again.
        proposed: Drafts for the next step; 0 for a request that did not get a token from the last step.
        blocks: Number of KV blocks held.
        cached: Number of held blocks that the prefix cache knows, by place.
        settled: Tokens that were not in flight when the request last gave blocks back.
        junction: The field of ``Hit`` with this name.
        preemptions: Number of times the request was preempted.
        state: A :class:`~sloserve.core.rows.State`; FREE once the request has ended.
    """

    prompt: IntArray
    last: IntArray
    tokens: IntArray
    left: IntArray
    computed: IntArray
    in_flight: IntArray
    placeholders: IntArray
    stale: IntArray
    found: IntArray
    blocks: IntArray
    cached: IntArray
    settled: IntArray
    junction: IntArray
    preemptions: IntArray
    prefilled: IntArray
    recomputed: IntArray
    proposed: IntArray

    def __init__(self) -> None:
        self.handles: list[ModelRequest] = []
        for name in _COUNTS:
            setattr(self, name, np.zeros(_CAPACITY, np.int64))
        self.state: NDArray[np.int8] = np.zeros(_CAPACITY, np.int8)
        self.marked: BoolArray = np.zeros(_CAPACITY, np.bool_)
        """A scratch array for use within one function: every entry is ``False`` before and after."""

    def add(self, item: WorkloadRequest, arrival_time: float, max_tokens: int) -> "ModelRequest":
        """Add a new request that waits, and return its handle."""
        index = len(self.handles)
        if index == self.state.size:
            for name in (*_COUNTS, "state", "marked"):
                setattr(self, name, grown(getattr(self, name), 2 * index, 0))
        self.prompt[index] = self.tokens[index] = item.prompt_tokens
        self.last[index] = item.prompt_tokens + max_tokens
        self.left[index] = min(item.output_tokens, max_tokens)
        self.state[index] = WAITING
        handle = ModelRequest(self, index, item.request_id, item, arrival_time, max_tokens)
        self.handles.append(handle)
        return handle


@dataclass(frozen=True, slots=True, eq=False)
class ModelRequest:
    """One request as planner and request table see it; an :class:`~sloserve.engine.port.EngineRequest`."""

    requests: ModelRequests
    index: int
    request_id: str
    workload: WorkloadRequest
    arrival_time: float
    max_tokens: int

    @property
    def priority(self) -> int:
        return self.workload.priority

    @property
    def num_prompt_tokens(self) -> int:
        return self.workload.prompt_tokens

    @property
    def num_computed_tokens(self) -> int:
        return int(self.requests.computed[self.index])

    @property
    def num_output_tokens(self) -> int:
        return int(self.requests.tokens[self.index] - self.requests.prompt[self.index])

    @property
    def num_in_flight_tokens(self) -> int:
        return int(self.requests.in_flight[self.index])

    @property
    def num_preemptions(self) -> int:
        return int(self.requests.preemptions[self.index])
