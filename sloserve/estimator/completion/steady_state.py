"""A full engine at equilibrium: how often a request is admitted, and how long its steps take."""

import math
from dataclasses import dataclass, replace

import numpy as np

from sloserve.core.arrays import FloatArray
from sloserve.estimator.step_time.latency import StepLatency, StepLoad


@dataclass(frozen=True, slots=True)
class EngineSize:
    """The engine's limits: requests at once, tokens a step, tokens of KV cache; and the depth of its pipeline.

    Args:
        steps_ahead: Steps until what arrives now can be scheduled; with two in flight, half of the present one and the
            whole next one.
        idle_steps: Steps for which a slot stays empty between two requests; with two in flight, one.
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
    """An engine with drafts, seen as one in which a decode gains one token a step.

    One step of the real engine is ``per_step`` steps here, so formulas in which an output of ``n`` tokens takes ``n``
    steps hold. A step is as long as a token, and has a token's share of the prompts; the token budget is ``token_budget
    / per_step`` tokens.
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
    """Return by how many steps each waiting request delays the next once the engine is full: its scarcest need decides.

    Args:
        prefill_tokens: Tokens of the prompt, ``[n]``.
        output_mean: Expected tokens to come, ``[n]``.
        output_sd: Standard deviation of the tokens to come, ``[n]``.
        engine: Limits of the engine.
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
    """Return the mean duration in seconds of steps of which some have prompts, and of a step without prompts.

    There are as many steps with prompts as there are prompts, at most all steps.
    """
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
