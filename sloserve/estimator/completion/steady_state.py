"""A full engine at equilibrium: how often a request comes in, and how long steps take with so much in them."""

import math

import numpy as np

from sloserve.core.arrays import FloatArray
from sloserve.estimator.completion.queue_backlog import EngineSize, RequestLengths
from sloserve.estimator.step_time.latency import StepLatency, StepLoad


def equilibrium_steps(waiting: RequestLengths, engine: EngineSize) -> FloatArray:
    """Steps by which each that waits delays the next once the engine is full: the scarcest of its needs decides."""
    chunks = np.maximum(waiting.prefill_tokens / engine.prompt_budget, 1.0)
    service = waiting.output_mean + engine.idle_steps + chunks - 1.0
    # Tokens held, summed over the steps of the service: the prompt throughout, the output as it grows.
    held = waiting.prefill_tokens * service + (waiting.output_mean**2 + waiting.output_sd**2) / 2.0
    needs = (service / engine.max_num_seqs, held / engine.kv_tokens, waiting.prefill_tokens / engine.prompt_budget)
    return np.asarray(np.maximum.reduce(needs), np.float64)


def mean_step_s(
    latency: StepLatency, engine: EngineSize, slots: float, context: float, prompt_tokens: float, prompts: float
) -> tuple[float, float]:
    """Mean duration of steps, some of them with prompts (as many as there are, at most all), and of one without."""
    seqs, tokens = (round(slots), round(context)) if slots >= 0.5 else (0, 0)
    decode = StepLoad(decode_seqs=max(seqs, 1), decode_context_tokens=max(tokens, 1))
    decode_s = latency.step_s(decode)
    if prompt_tokens < 1e-6:
        return decode_s, decode_s
    share = min(max(1.0 - math.exp(-prompts), prompt_tokens / engine.prompt_budget, 1e-6), 1.0)
    chunk, each = prompt_tokens / share, max(prompts / share, 1.0)
    filled = StepLoad(
        prefill_tokens=max(round(chunk), 1),
        num_prefills=round(each),
        decode_seqs=seqs,
        decode_context_tokens=tokens,
        prefill_attention_tokens2=round(chunk * chunk / each),
    )
    return share * latency.step_s(filled) + (1.0 - share) * decode_s, decode_s
