"""What a step of vLLM's computes, in the terms of the latency models."""

from typing import Any

from sloserve.estimator.step_time.latency import StepLoad
from sloserve.kernels.requests import chunks_scheduled


def step_load(output: Any) -> StepLoad:
    """Return the load of a SchedulerOutput.

    A request with draft tokens decodes. So does one that was in a step before and has one token in this one: nearly all
    of these do, and the last token of a prompt costs the same.
    """
    scheduled, cached = output.num_scheduled_tokens, output.scheduled_cached_reqs
    chunks = [(scheduled[new.req_id], new.num_computed_tokens) for new in output.scheduled_new_reqs]
    decodes, context = len(cached.req_ids), sum(cached.num_computed_tokens)
    tokens = sum(chunk for chunk, _ in chunks)
    drafts = sum(map(len, output.scheduled_spec_decode_tokens.values()))
    if output.total_num_scheduled_tokens > decodes + tokens + drafts:
        drafted = output.scheduled_spec_decode_tokens
        longer = (
            [
                (scheduled[request_id], computed)
                for request_id, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True)
                if scheduled[request_id] > 1 and request_id not in drafted
            ]
            if drafted
            else chunks_scheduled(scheduled, cached.req_ids, cached.num_computed_tokens)
        )
        decodes -= len(longer)
        for chunk, prefix in longer:
            tokens += chunk
            context -= prefix
        chunks += longer
    pairs = sum(chunk * (chunk + 2 * prefix) for chunk, prefix in chunks)
    return StepLoad(tokens, len(chunks), decodes, context + decodes, pairs, drafts)
