"""A full engine at equilibrium: how often a request comes in, and how long steps take with so much in them."""

import math
from dataclasses import dataclass, replace

import numpy as np

from sloserve.core.arrays import FloatArray
from sloserve.estimator.step_time.latency import StepLatency, StepLoad


@dataclass(frozen=True, slots=True)
class EngineSize:
    """The engine's limits: requests at once, tokens a step, tokens of KV cache; and the depth of its pipeline.

    steps_ahead: steps until what arrives now can be scheduled; with two in flight, half of the present one and the
    whole next one. idle_steps: steps a slot stays empty between two requests; with two in flight, one.
    """

    max_num_seqs: int
    token_budget: int
    kv_tokens: int
    steps_ahead: float = 1.5
    idle_steps: float = 1.0

    @property
    def prompt_budget(self) -> float:
        """Prompt tokens a step may compute when all slots decode; at least half the budget."""
        return float(max(self.token_budget - min(self.max_num_seqs, self.token_budget // 2), 1))


@dataclass(frozen=True, slots=True)
class TokenLatency:
    """An engine with drafts as one that brings a decode one token a step: ``per_step`` such steps are one of its own.

    So formulas in which a reply of ``n`` tokens takes ``n`` steps hold for it. Its steps are as long as a token, and
    have a token's share of the prompts; the engine's token budget is that of ``token_budget / per_step`` tokens.
    """

    latency: StepLatency
    per_step: float

    def step_s(self, load: StepLoad) -> float:
        """Return the seconds that the engine takes for the time of a token."""
        if self.per_step == 1.0:
            return self.latency.step_s(load)
        whole = replace(
            load,
            prefill_tokens=round(load.prefill_tokens * self.per_step),
            prefill_attention_tokens2=round(load.prefill_attention_tokens2 * self.per_step),
        )
        return self.latency.step_s(whole) / self.per_step

    def prefill_within(self, seconds: float, base: StepLoad, prefix_tokens: int) -> int:
        """Return the most prompt tokens of the time of a token; see StepLatency."""
        return int(self.latency.prefill_within(seconds * self.per_step, base, prefix_tokens) / self.per_step)


def equilibrium_steps(
    prefill_tokens: FloatArray, output_mean: FloatArray, output_sd: FloatArray, engine: EngineSize
) -> FloatArray:
    """Steps by which each that waits delays the next once the engine is full: the scarcest of its needs decides.

    prefill_tokens: of the prompt. output_mean, output_sd: tokens to come, and how sure that is; ``[n]`` each.
    """
    chunks = np.maximum(prefill_tokens / engine.prompt_budget, 1.0)
    service = output_mean + engine.idle_steps + chunks - 1.0
    # Tokens held, summed over the steps of the service: the prompt throughout, the output as it grows.
    held = prefill_tokens * service + (output_mean**2 + output_sd**2) / 2.0
    needs = (service / engine.max_num_seqs, held / engine.kv_tokens, prefill_tokens / engine.prompt_budget)
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
