"""The annealer's view of requests: their times as lines in the batch size, from the paper's bilinear fits.

There are two views of an engine. In *batches* (the paper's), requests start together and the next batch waits for the
slowest. In *slots* (continuous batching), each takes the place of one that ends: it runs beside ``slots`` others and
delays the requests behind it by its share of the engine's time alone.

Source: SLO-aware scheduling by simulated annealing, Eq. 14 to 19.
"""

from dataclasses import dataclass

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.kernels.anneal import BatchTimes
from sloserve.estimator.step_time.fit import MeasuredStep, fit_bilinear
from sloserve.estimator.step_time.latency import BatchFit, Bilinear, StepLatency, StepLoad
from sloserve.estimator.step_time.profile import Profile

_MS_PER_S = 1000.0
_PROMPTS = (64, 256, 512, 1024, 2048)
_PREFILL_BATCHES = (1, 2, 4, 8)
_CONTEXTS = (128, 512, 1024, 2048, 4096)
_DECODE_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def bilinear_of(latency: StepLatency) -> Bilinear:
    """Return the paper's fits, if the latency consists of them; else fits to its step times.

    The step times are over a usual engine's batches.

    A profile is asked for steps within its own grid alone. The call takes a few milliseconds.
    """
    profile = latency if isinstance(latency, Profile) else None
    form = profile.latency if profile is not None and profile.engine_overhead_ms == 0.0 else latency
    if isinstance(form, Bilinear):
        return form
    prefills = [StepLoad.of([(tokens, 0)] * batch) for batch in _PREFILL_BATCHES for tokens in _PROMPTS]
    decodes = [StepLoad.of((), [tokens] * batch) for batch in _DECODE_BATCHES for tokens in _CONTEXTS]
    loads = [load for load in prefills + decodes if profile is None or profile.within_grid(load)]
    return fit_bilinear([MeasuredStep(load, latency.step_s(load)) for load in loads])


@dataclass(frozen=True, slots=True, eq=False)
class RemainingWork:
    """What is left of requests, ``[n]`` each.

    Args:
        prefill_tokens: Tokens still to be computed of the prompt, and of the output so far of preempted requests.
        context_tokens: Tokens of context of the next output token.
        output_tokens: Predicted tokens still to come.
        per_step: Tokens that a step brings each; 1 without drafts.
    """

    prefill_tokens: IntArray
    context_tokens: IntArray
    output_tokens: FloatArray
    per_step: FloatArray | float = 1.0

    @property
    def decode_steps(self) -> FloatArray:
        """Steps in which the output comes."""
        return self.output_tokens / self.per_step

    @property
    def mean_kv_tokens(self) -> float:
        """Tokens of KV cache that a request fills at its end, on average."""
        return float((self.context_tokens + self.output_tokens).mean())


def batch_times(fit: Bilinear, work: RemainingWork) -> BatchTimes:
    """Return the times of requests that run in batches."""
    prompt, steps = work.prefill_tokens, work.decode_steps
    # Eq. 16: the contexts of all decode steps, summed. Differs: with drafts a step brings more than one token.
    context = steps * work.context_tokens + steps * (work.output_tokens + 1.0) / 2.0
    fresh = prompt > 0

    def lines(at: BatchFit, tokens: FloatArray | IntArray, steps: FloatArray) -> tuple[FloatArray, FloatArray]:
        base = (at.gamma_ms * tokens + at.delta_ms * steps) / _MS_PER_S
        slope = (at.alpha_ms * tokens + at.beta_ms * steps) / _MS_PER_S
        return base, slope

    return BatchTimes(*lines(fit.prefill, prompt, fresh.astype(np.float64)), *lines(fit.decode, context, steps))


@dataclass(frozen=True, slots=True)
class Slots:
    """The engine's admission: ``running`` requests at once, while steps are full of up to ``token_budget`` tokens.

    Args:
        bind: Whether a request waits for the end of another; else only for the prompts before it.
    """

    running: int
    token_budget: int
    bind: bool


def slot_times(fit: Bilinear, work: RemainingWork, slots: Slots) -> BatchTimes:
    """Return the times of requests that run beside others and take the places of ended requests, one by one.

    A step that computes prompts decodes too. So while requests wait, steps are full, and a prompt gets through at the
    rate of full steps; decoding is slowed by the prompts that start meanwhile, at most to one token a full step. Behind
    it, others wait for a slot as long as it keeps the engine busy: its prompt and its part of each step's decoding; or,
    where slots are free, for its prompt alone.
    """
    times = batch_times(fit, work)
    alone = times.prefill_base_s + times.prefill_slope_s
    decode = times.decode_base_s + times.decode_slope_s * slots.running
    fused = np.maximum(alone - min(fit.prefill.delta_ms, fit.decode.delta_ms) / _MS_PER_S, 0.0)
    room = max(slots.token_budget - slots.running, 1)
    token_s = (fit.prefill.alpha_ms + fit.prefill.gamma_ms) / _MS_PER_S
    full_step_s = float((decode / work.decode_steps).mean()) + token_s * room
    through = work.prefill_tokens / room * full_step_s
    slowed = decode * (1.0 + (slots.running - 1) * float(fused.mean()) / float(np.mean(decode)))
    decoding = np.maximum(np.minimum(slowed, work.decode_steps * full_step_s), decode)
    prefill = np.maximum(through, alone)
    delay = fused + decode / slots.running if slots.bind else through
    nothing = np.zeros_like(prefill)
    return BatchTimes(prefill, nothing, decoding, nothing, delay / (prefill + decoding))
