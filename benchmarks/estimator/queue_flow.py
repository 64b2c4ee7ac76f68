"""A queue that flows into an engine and out of it: when each request comes in, and how long steps take meanwhile.

Each decoding request gets a token a step, so requests leave after their length in steps, whatever a step costs. Time
goes in cells of some steps, at first short beside a request's service, then longer. In each cell the requests leave
that are expected to (lognormal lengths), those that wait come in as far as slots, KV cache and the budget of tokens
allow, and the step model says how long the cell's steps take with that many decoding and that many prompt tokens. So a
queue in any state, of any composition, is one recursion of ``CELLS`` cells; what still waits then goes on at the
equilibrium's pace, each request by its own share of slots, KV or budget. Requests come in in the order given, and count
in fractions.

Limits. Preemptions are not followed one by one: KV beyond the cache makes all that run slower in proportion. Where
KV is what is scarce and vLLM preempts more than once a request, times come out too short, by up to a quarter.
"""

import math

import numpy as np
from scipy.special import ndtr

from benchmarks.estimator.arrival_queue import ExpectedArrivals, Queue, Sums
from sloserve.core.arrays import FloatArray, IntArray
from sloserve.estimator.completion.queue_backlog import EngineSize, RequestLengths
from sloserve.estimator.completion.steady_state import equilibrium_steps, mean_step_s
from sloserve.estimator.step_time.latency import StepLatency, StepLoad

CELLS = 40
_GROWTH = 1.04
_CELLS_A_SERVICE = 14.0
"""The first cell's share of a mean service; 40 cells that grow by 4 % span nearly seven services."""
_GROUPS = 24
"""Those that run are taken together in so many groups of neighbours by length."""
_LEAST_CV2 = 1e-4
_LEAST_REQUESTS = 1e-6
"""Fractions below this are rounding, and would divide by nothing."""


class QueueFlow:
    """The recursion, run when built; then answers when places in the queue come in, and when steps end."""

    def __init__(
        self,
        latency: StepLatency,
        engine: EngineSize,
        running: RequestLengths,
        waiting: RequestLengths,
        arrivals: ExpectedArrivals,
    ) -> None:
        self._latency, self._engine, self._waiting = latency, engine, waiting
        self._queue = Queue(waiting, arrivals)
        outputs = np.concatenate([running.output_mean, waiting.output_mean])
        self._service = float(outputs.mean()) + 1.0 if outputs.size else arrivals.output_mean + 1.0
        first = max(self._service / _CELLS_A_SERVICE, 2.0 * engine.steps_ahead, 1.0)
        self._edges = np.concatenate([[0.0], np.cumsum(first * _GROWTH ** np.arange(CELLS))])
        # At each edge: requests that have left, the variance of that number, the variance of the tokens that
        # they had, and the tokens held in the KV cache.
        self._left, self._noise, self._work, self._held = (np.zeros(CELLS + 1) for _ in range(4))
        self._time_s = [0.0]
        self._decode_s: list[float] = []
        # Requests that have come in, at which step, and its standard deviation in steps.
        self._knots: list[tuple[float, float, float]] = [(0.0, engine.steps_ahead, 0.0)]
        if len(running):
            self._add_running(running)
        self._run(float(len(running)), float(running.prefill_tokens.sum()), arrivals.rate_per_s)

    def _run(self, slots: float, prefill_left: float, arrivals_per_s: float) -> None:
        engine, queue, edges = self._engine, self._queue, self._edges.tolist()
        head, base, time_s = 0.0, queue.to(0.0), 0.0
        for k in range(CELLS):
            start, steps = edges[k], edges[k + 1] - edges[k]
            ahead = engine.steps_ahead if k == 0 else 0.0
            leaving = float(self._left[k + 1] - self._left[k])
            decoding = max(slots - leaving / 2.0, 0.0)
            room = engine.token_budget - min(decoding, engine.token_budget / 2.0)
            tokens = max(room * (steps - ahead) - prefill_left, 0.0)
            kv_tokens = engine.kv_tokens - max(float(self._held[k]), float(self._held[k + 1]))
            present = len(self._waiting) + arrivals_per_s * time_s - head
            free = engine.max_num_seqs - slots
            fitting = queue.place_of(base.prompt + max(min(tokens, kv_tokens), 0.0)) - head
            at_once = max(min(present, free, fitting), 0.0)
            more = max(min(present, free + leaving, fitting), 0.0)
            more = more if more > _LEAST_REQUESTS else 0.0
            behind = queue.to(head + more)
            coming = behind.minus(base)
            if more:
                now_steps = min(coming.prompt * at_once / more / room, steps - ahead)
                scarce = more >= free + leaving - 1e-9 or kv_tokens < tokens
                sd = self._spread(k, steps, scarce)
                self._knots.append((head, start + ahead, sd if k else 0.0))
                if at_once > 0.0:
                    self._knots.append((head + at_once, start + ahead + now_steps, sd if k else 0.0))
                if more > at_once:
                    self._knots.append((head + more, start + steps, sd))
                late = (now_steps * at_once + (steps - ahead) * (more - at_once)) / (2.0 * more)
                self._add_cohort(k, start + ahead + late, more, coming)
            computed = min(coming.prompt + prefill_left, room * steps)
            prefill_left = max(prefill_left - room * steps, 0.0)
            slots = min(max(slots - leaving + more, 0.0), float(engine.max_num_seqs))
            context = (float(self._held[k]) + float(self._held[k + 1])) / 2.0
            step_s, decode_s = mean_step_s(self._latency, engine, slots, context, computed / steps, more / steps)
            self._decode_s.append(decode_s)
            # More KV than there is: that share of the requests is preempted and makes no progress.
            time_s += steps * step_s * max(context / engine.kv_tokens, 1.0)
            self._time_s.append(time_s)
            head, base = head + more, behind

    def _add_running(self, running: RequestLengths) -> None:
        """Adds the departures of those that run now, and the KV that they hold until then."""
        mean, sd = running.output_mean, running.output_sd
        offset = np.cumsum(running.prefill_tokens) / self._engine.prompt_budget * (running.prefill_tokens > 0.0)
        context = running.context_tokens + running.prefill_tokens
        columns = np.stack([mean, mean**2 + sd**2, sd**2, offset, context, np.ones(len(running))])[:, np.argsort(mean)]
        # Neighbours by length are taken together, as one of their mean and spread: the sum over all is what counts.
        starts = np.unique(np.linspace(0, len(running), _GROUPS, endpoint=False, dtype=np.int64))
        mean, mean2, variance, offset, context, count = np.add.reduceat(columns, starts, axis=1)
        mean = mean / count
        offset = offset / count + self._engine.steps_ahead + self._engine.idle_steps - 1.0
        spread = np.sqrt(np.maximum(mean2 / count - mean**2, 0.0))
        done = _lognormal_cdf(self._edges[:, None] - offset, mean, spread)
        self._left += done @ count
        self._noise += (done * (1.0 - done)) @ count
        self._work += done @ variance
        self._held += (1.0 - done) @ context + ((1.0 - done) @ count) * self._edges

    def _add_cohort(self, cell: int, start: float, count: float, sums: Sums) -> None:
        """Adds the departures of ``count`` requests of these sums that come in at step ``start``."""
        prompt, mean = sums.prompt / count, sums.output / count
        offset = start + max(prompt / self._engine.prompt_budget, 1.0) + self._engine.idle_steps - 1.0
        served = self._edges[cell + 1 :] - offset
        done = _lognormal_cdf(served, mean, math.sqrt(max(sums.output2 / count - mean**2, 0.0)))
        remaining = count * (1.0 - done)
        self._left[cell + 1 :] += count * done
        self._noise[cell + 1 :] += remaining * done
        self._work[cell + 1 :] += sums.variance * done
        self._held[cell + 1 :] += remaining * (prompt + np.maximum(served, 0.0))

    def _spread(self, cell: int, steps: float, scarce: bool) -> float:
        """Standard deviation, in steps, of when the place now reached comes in.

        Many departures: the variance of the work that was done, over the slots that do it. Few: that of the number
        that have left, over the rate of leaving; only where slots or KV are scarce, so that others must leave first.
        """
        many = math.sqrt(float(self._work[cell + 1])) / self._engine.max_num_seqs
        if not scarce:
            return many
        rate = max(float(self._left[cell + 1] - self._left[cell]) / steps, 1e-9)
        # Where hardly any request has left, the rate says nothing, but the first to leave did so before now.
        few = math.sqrt(float(self._noise[cell + 1])) / rate
        return max(min(few, self._service, float(self._edges[cell + 1]) / 2.0), many)

    def admissions(self) -> tuple[FloatArray, FloatArray]:
        """When each that waits comes in, and the standard deviation of that, in steps, ``[waiting]`` each."""
        places = np.arange(len(self._waiting)) + 0.5
        head, step, spread = np.array(self._knots).T
        at, sd = np.interp(places, head, step), np.interp(places, head, spread)
        beyond = places > head[-1]
        if beyond.any():
            delay = np.cumsum(equilibrium_steps(self._waiting, self._engine)[beyond])
            at[beyond] = self._edges[-1] + delay - delay[0]
            total = np.sqrt(np.cumsum(self._waiting.output_sd**2)[beyond]) / self._engine.max_num_seqs
            sd[beyond] = np.maximum(total, sd[beyond])
        return at, sd

    def own_prefill_s(self, steps: FloatArray) -> FloatArray:
        """Seconds by which the step, at ``steps``, that computes each one's prompt is longer than the mean there.

        Its own step is one with a prompt in it, of which the mean step holds but a share.
        """
        _, pace_s = self.times_s(steps)
        decode_s = np.array(self._decode_s)[self._cells(steps)]
        prompts = np.minimum(self._waiting.prefill_tokens, self._engine.prompt_budget)
        mean = float(prompts.mean()) if prompts.size else 1.0
        alone = StepLoad.of([(max(round(mean), 1), 0)])
        a_token_s = max(self._latency.step_s(alone) - self._decode_s[0], 0.0) / max(mean, 1.0)
        return np.asarray(np.maximum(prompts * a_token_s - (pace_s - decode_s), 0.0), np.float64)

    def times_s(self, steps: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Seconds from now at which so many steps have passed, and seconds a step there, ``[n]`` each."""
        times = np.array(self._time_s)
        pace = np.diff(times) / np.diff(self._edges)
        cell = self._cells(steps)
        return times[cell] + (steps - self._edges[cell]) * pace[cell], pace[cell]

    def _cells(self, steps: FloatArray) -> IntArray:
        return np.clip(np.searchsorted(self._edges, steps, side="right") - 1, 0, CELLS - 1).astype(np.int64)


def _lognormal_cdf(steps: FloatArray, mean: FloatArray | float, sd: FloatArray | float) -> FloatArray:
    """Share of lengths of this mean and standard deviation that are at most ``steps``."""
    sigma = np.sqrt(np.log1p(np.maximum((np.asarray(sd) / mean) ** 2, _LEAST_CV2)))
    logs = np.log(np.maximum(steps, 1e-9) / mean)
    return np.asarray(ndtr(logs / sigma + sigma / 2.0), np.float64)
