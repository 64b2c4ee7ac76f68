"""Describe what a step of vLLM's computes in the terms of the latency models."""

from typing import Any

from sloserve.core.kernels.requests import chunks_scheduled
from sloserve.estimator.step_time.latency import StepLoad


def step_load(output: Any) -> StepLoad:
    """Return the load of a SchedulerOutput.

    A request with draft tokens decodes. So does one that was in a step before and has one token in this one: nearly all
    of these do, and the last token of a prompt costs the same.
    """
    scheduled, cached = output.num_scheduled_tokens, output.scheduled_cached_reqs
    drafted = output.scheduled_spec_decode_tokens
    if drafted:
        return _with_drafts(output)
    chunks = [(scheduled[new.req_id], new.num_computed_tokens) for new in output.scheduled_new_reqs]
    decodes, context = len(cached.req_ids), sum(cached.num_computed_tokens)
    tokens = sum(chunk for chunk, _ in chunks)
    if output.total_num_scheduled_tokens > decodes + tokens:
        longer = chunks_scheduled(scheduled, cached.req_ids, cached.num_computed_tokens)
        decodes -= len(longer)
        for chunk, prefix in longer:
            tokens += chunk
            context -= prefix
        chunks += longer
    pairs = sum(chunk * (chunk + 2 * prefix) for chunk, prefix in chunks)
    return StepLoad(tokens, len(chunks), decodes, context + decodes, pairs, 0)


def _with_drafts(output: Any) -> StepLoad:
    """Return the load of a step in which some requests have drafts.

    vLLM pads the last token of a new or resumed prompt with as many drafts as decodes have, so that all rows of a step
    are alike: then it costs what a decode costs.
    """
    scheduled, drafted, cached = (
        output.num_scheduled_tokens,
        output.scheduled_spec_decode_tokens,
        output.scheduled_cached_reqs,
    )
    chunks, contexts = [], []
    for new in output.scheduled_new_reqs:
        if new.req_id in drafted:
            contexts.append(new.num_computed_tokens + 1)
        else:
            chunks.append((scheduled[new.req_id], new.num_computed_tokens))
    for request_id, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
        if request_id in drafted or scheduled[request_id] == 1:
            contexts.append(computed + 1)
        else:
            chunks.append((scheduled[request_id], computed))
    return StepLoad.of(chunks, contexts, sum(map(len, drafted.values())))
