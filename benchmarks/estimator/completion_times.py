"""When each request of a queue gets its first token and its last, as distributions, from the work ahead of it.

Source: QLM, Sec. 6: completion = waiting + prefill + decode (Eq. 1), lengths as random variables (Eq. 3), a group's
completion as a maximum (Eq. 5, :meth:`TimeDistribution.last_quantile_s`). Differs: waiting follows from the steps that
those ahead need and from what these cost (``queue_flow.py``); Eq. 2, which divides the output tokens ahead by a
constant throughput, is the ablation :class:`TokenWaiting`.

Spread: of a request's own length, of the lengths ahead of it, and a relative error common to all times, which stands
for the step model's and for that of mean lengths. Pure: nothing is kept between calls.
"""

from dataclasses import dataclass

import numpy as np

from benchmarks.estimator.arrival_queue import NO_ARRIVALS, ExpectedArrivals
from benchmarks.estimator.queue_flow import QueueFlow
from benchmarks.estimator.time_distribution import TimeDistribution, lognormal_skewness
from sloserve.core.arrays import FloatArray
from sloserve.estimator.completion.queue_backlog import EngineSize, RequestLengths
from sloserve.estimator.length.remaining import Rest
from sloserve.estimator.step_time.latency import StepLatency

_PHASE = 0.6
"""Standard deviation, in steps, of when the first token comes to one that need not wait: the phase of the step in which
it arrives (0.3), and prompts of others in the two steps until its own is done."""
_LEVELS = 12


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """ttft, e2e: of those that wait, from now, ``[waiting]``. running: when those that run end, ``[running]``."""

    ttft: TimeDistribution
    e2e: TimeDistribution
    running: TimeDistribution


class CompletionModel:
    """Completion times on one engine.

    Args:
        latency: the step model; a Profile, or one that the live engine corrects.
        engine: its limits.
    """

    def __init__(self, latency: StepLatency, engine: EngineSize) -> None:
        self._latency = latency
        self._engine = engine

    def predict(
        self,
        running: RequestLengths,
        waiting: RequestLengths,
        arrivals: ExpectedArrivals = NO_ARRIVALS,
        relative_error: float = 0.0,
    ) -> Completion:
        """Times from now of all that run and all that wait, in the order given.

        relative_error: standard deviation of an error common to all times, as a share of them.
        """
        engine = self._engine
        flow = QueueFlow(self._latency, engine, running, waiting, arrivals)
        admitted, admitted_sd = flow.admissions()
        first = admitted + np.maximum(waiting.prefill_tokens / engine.prompt_budget, 1.0)
        mean_s, pace_s = flow.times_s(first)
        own_s = flow.own_prefill_s(first)
        ttft_s = mean_s + own_s
        # A step begun earlier or later, and what else is in it.
        waiting_sd_s = np.hypot(admitted_sd * pace_s, _PHASE * (engine.steps_ahead > 0.0) * pace_s)
        prefill = np.cumsum(running.prefill_tokens) / engine.prompt_budget * (running.prefill_tokens > 0.0)
        nothing = np.zeros(len(running))
        started = prefill + max(engine.steps_ahead - 1.0, 0.0)
        return Completion(
            ttft=TimeDistribution.normal(ttft_s, np.hypot(waiting_sd_s, relative_error * ttft_s)),
            e2e=_ends(flow, waiting, first - 1.0, own_s, waiting_sd_s, relative_error),
            running=_ends(flow, running, started, nothing, nothing, relative_error),
        )


def _ends(
    flow: QueueFlow,
    requests: RequestLengths,
    start: FloatArray,
    late_s: FloatArray,
    start_sd_s: FloatArray,
    relative_error: float,
) -> TimeDistribution:
    """Times of the last tokens of requests whose next comes a step after step ``start``, and ``late_s``."""
    mean, sd = requests.output_mean, requests.output_sd
    centre_s = flow.times_s(start + mean)[0] + late_s
    low_s, _ = flow.times_s(start + np.maximum(mean - sd, 1.0))
    high_s, _ = flow.times_s(start + mean + sd)
    own_sd = np.maximum(high_s - low_s, 0.0) / 2.0
    total = np.hypot(own_sd, np.hypot(start_sd_s, relative_error * centre_s))
    share = np.divide(own_sd, total, out=np.zeros_like(total), where=total > 0.0)
    return TimeDistribution(centre_s, total, lognormal_skewness(mean, sd) * share**3)


def token_moments(rest: Rest) -> tuple[FloatArray, FloatArray]:
    """Mean and standard deviation of the tokens still to come, ``[n]`` each, for :class:`RequestLengths`.

    The standard deviation is that of the quantiles at ``_LEVELS`` equal probabilities.
    """
    levels = (np.arange(_LEVELS) + 0.5) / _LEVELS
    quantiles = np.stack([rest.quantile(float(q)) for q in levels])
    return rest.mean(), np.asarray(quantiles.std(axis=0), np.float64)


@dataclass(frozen=True, slots=True)
class TokenWaiting:
    """QLM's Eq. 1 to 4 as printed: waiting is the output tokens ahead in the queue over a constant throughput.

    tokens_per_s: Theta. prefill_s: P, the same for all. decode_s: epsilon * d, a decode step of a full batch.
    """

    tokens_per_s: float
    prefill_s: float
    decode_s: float

    def predict(self, waiting: RequestLengths) -> Completion:
        """Times from now; prompts, those that run, and the engine's limits do not count."""
        mean, sd = waiting.output_mean, waiting.output_sd
        wait_s = (np.cumsum(mean) - mean) / self.tokens_per_s
        wait_sd_s = np.sqrt(np.maximum(np.cumsum(sd**2) - sd**2, 0.0)) / self.tokens_per_s
        ttft_s = wait_s + self.prefill_s
        return Completion(
            ttft=TimeDistribution.normal(ttft_s, wait_sd_s),
            e2e=TimeDistribution.normal(ttft_s + mean * self.decode_s, np.hypot(wait_sd_s, sd * self.decode_s)),
            running=TimeDistribution.normal(np.empty(0), np.empty(0)),
        )
