"""What a step of vLLM's computes, in the terms of the latency models."""

from dataclasses import replace
from typing import Any

from sloserve.estimator.step_time.latency import StepLoad


def step_load(output: Any) -> StepLoad:
    """The load of a SchedulerOutput.

    A request that was in a step before and has one token in this one is taken to decode: nearly all do, and the last
    token of a prompt costs the same.
    """
    scheduled, cached = output.num_scheduled_tokens, output.scheduled_cached_reqs
    chunks = [(scheduled[new.req_id], new.num_computed_tokens) for new in output.scheduled_new_reqs]
    decodes, context = len(cached.req_ids), sum(cached.num_computed_tokens)
    if output.total_num_scheduled_tokens > decodes + sum(tokens for tokens, _ in chunks):
        parts = zip(map(scheduled.__getitem__, cached.req_ids), cached.num_computed_tokens, strict=True)
        longer = [(tokens, computed) for tokens, computed in parts if tokens > 1]
        decodes -= len(longer)
        context -= sum(computed for _, computed in longer)
        chunks += longer
    return replace(StepLoad.of(chunks), decode_seqs=decodes, decode_context_tokens=context + decodes)
