"""vLLM's real scheduler in virtual time: no device, no model, made-up tokens, step times from a profile.

The loop is that of vLLM's EngineCore with a batch queue of two: step n+1 is scheduled right after step n was
dispatched, then n's result is applied, then n+2 is scheduled; the worker runs batches one after another. What arrives
while n runs joins n+2. Planning takes the time of EngineCore's one thread: a step is dispatched when it is planned and
the step before it is done, whichever is later. Stock's AsyncScheduler and SLOScheduler run through the identical code.
Runs are deterministic: only ``RunLog.timing`` is measured.
"""

import atexit
import gc
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from sloserve.admission.admission import Admission
from sloserve.core.clock import ManualClock
from sloserve.core.outcome import Outcome
from sloserve.core.request import PREFIX_BLOCK_TOKENS, WorkloadRequest
from sloserve.core.runlog import RequestLog, RunLog, StepLog
from sloserve.engine.stages import Stages
from sloserve.estimator.planning_cost import NO_PLANNING_COST, PlanningCosts
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.estimator.step_time.noise import StepNoise
from sloserve.estimator.step_time.profile import Profile
from sloserve.settings import KEY, plugin_settings
from sloserve.vllm_plugin.engine import compat
from sloserve.vllm_plugin.engine.port import admitted_ids
from sloserve.vllm_plugin.engine.scheduler import SLOScheduler
from sloserve.vllm_plugin.virtual.front_end import VirtualFrontEnd
from sloserve.vllm_plugin.virtual.settings import EngineSettings
from sloserve.vllm_plugin.virtual.vllm_config import VOCABULARY, scheduler_arguments
from sloserve.wire.xargs import to_xargs, with_length

# What these imports left lives to the end. Every run begins with a collection, which would walk it for 0.4 s.
gc.freeze()
atexit.register(gc.unfreeze)  # nanobind's modules complain of what is left

_EOS = 0
_FILLER = [1]
_LAST = [_EOS]
_BATCH_QUEUE = 2
_MAX_EMPTY_STEPS = 1000
"""Steps in a row that schedule nothing although requests wait, after which the run is given up and the requests count
as lost.
"""


@dataclass(slots=True)
class _Live:
    """A request inside the engine. tokens_left counts down to the one that is EOS; prefilled: tokens whose KV existed
    once.
    """

    workload: WorkloadRequest
    tokens_left: int
    token_times_s: list[float] = field(default_factory=list)
    prefilled: int = 0
    recomputed: int = 0


@dataclass(slots=True)
class _Batch:
    output: Any
    sampling: list[str]
    end_s: float
    planning_s: float


class VirtualEngine:
    """One engine. ``additional_config`` is vLLM's, with our section in it; ``None`` runs stock's AsyncScheduler.

    admission: of the front end before it; ``None`` takes in, and predicts, nothing. planning_costs: what planning
    takes of the engine's time. noise: of step times; ``None`` for none.
    """

    def __init__(
        self,
        settings: EngineSettings,
        profile: Profile,
        additional_config: dict[str, Any] | None,
        admission: Admission | None = None,
        *,
        planning_costs: PlanningCosts = NO_PLANNING_COST,
        noise: StepNoise | None = None,
    ) -> None:
        self._settings = settings
        self._profile = profile
        self._noise = noise
        self._clock = ManualClock()
        arguments = scheduler_arguments(settings, additional_config or {})
        self.scheduler: Any
        if additional_config is None:
            self.scheduler = AsyncScheduler(**arguments)
        else:
            additional_config.setdefault(KEY, {})
            self.scheduler = SLOScheduler(**arguments, clock=self._clock, planning_costs=planning_costs)
            self.scheduler.plan_costs_s = []
        self._hasher = None
        if settings.enable_prefix_caching:
            init_none_hash(sha256)
            self._hasher = get_request_block_hasher(settings.block_size, sha256)
        lengths = None if additional_config is None else plugin_settings(additional_config).make_lengths()
        self._front_end = VirtualFrontEnd(settings, admission, lengths)
        self._arriving: deque[WorkloadRequest] = deque()
        self._accepted: list[WorkloadRequest] = []
        self._live: dict[str, _Live] = {}
        self._prefilling: set[str] = set()
        self._stages = Stages()
        self._preempted: list[str] = []
        compat.on_preemption(self.scheduler, self._preempted.append)
        self._done: dict[str, RequestLog] = {}
        self._steps: list[tuple[float, float, int, int, int, float]] = []
        self._schedule_s: list[float] = []
        self._counters: Counter[str] = Counter()
        self.on_step: Callable[[Any], None] | None = None
        """Called with each SchedulerOutput; tests compare decisions with it."""

    def run(self, workload: Sequence[WorkloadRequest], on_progress: Callable[[int], None] | None = None) -> RunLog:
        """Serves ``workload`` (ascending arrivals) to its end. on_progress is told how many requests have ended, now
        and then.
        """
        started = time.perf_counter()
        with _collector_paused():
            self._arriving.extend(workload)
            self._loop(on_progress)
        for live in list(self._live.values()):
            self._end(live, Outcome.LOST)
        return RunLog(
            requests=[self._done[r.request_id] for r in workload],
            steps=self._step_log(),
            timing=self._timing(time.perf_counter() - started),
            counters={**self._counters, **getattr(self.scheduler, "slo_counters", {})},
            token_budget=self._settings.max_num_batched_tokens,
        )

    def _loop(self, on_progress: Callable[[int], None] | None) -> None:
        scheduler, epoch_s = self.scheduler, self._clock.now_s()
        now_s, worker_free_s, empty = 0.0, 0.0, 0
        batches: deque[_Batch] = deque()
        while True:
            self._arrive(now_s, epoch_s)
            for item in self._accepted:
                self._add(item, epoch_s)
            self._accepted.clear()
            if not scheduler.has_requests() and not batches:
                if not self._arriving:
                    return
                now_s = self._arriving[0].arrival_s
                self._clock.advance_to(epoch_s + now_s)
                continue
            if scheduler.has_requests():
                batch = self._dispatch(now_s, worker_free_s)
                if batch.planning_s:
                    now_s += batch.planning_s
                    self._clock.advance_to(epoch_s + now_s)
                executed = batch.output.total_num_scheduled_tokens > 0
                worker_free_s = batch.end_s
                batches.append(batch)
                if len(batches) < _BATCH_QUEUE and (executed or scheduler.has_requests()) and empty < _BATCH_QUEUE:
                    empty = 0 if executed else empty + 1
                    continue
                empty = 0 if executed else empty + 1
            batch = batches.popleft()
            now_s = max(now_s, batch.end_s)
            self._clock.advance_to(epoch_s + now_s)
            # The front end works while the engine does: it decides before it sees this batch's tokens.
            self._arrive(now_s, epoch_s)
            self._apply(batch, now_s)
            if on_progress is not None and len(self._steps) % 256 == 0:
                on_progress(len(self._done))
            if empty and (not batches or empty > 2 * _BATCH_QUEUE):
                # Nothing in flight, or nothing but empty steps, and nothing could be scheduled: only an arrival, or a
                # plan that changes its mind, helps.
                if self._accepted:
                    empty = 0
                elif self._arriving:
                    empty = 0
                    now_s = max(now_s, self._arriving[0].arrival_s)
                elif empty > _MAX_EMPTY_STEPS:
                    return
                else:
                    now_s += self._profile.engine_overhead_ms / 1e3
                worker_free_s = max(worker_free_s, now_s)
                self._clock.advance_to(epoch_s + now_s)

    def _arrive(self, until_s: float, epoch_s: float) -> None:
        """The front end takes in or refuses what has come until then, each when it came."""
        while self._arriving and self._arriving[0].arrival_s <= until_s:
            item = self._arriving.popleft()
            if self._front_end.takes(item, epoch_s + item.arrival_s):
                self._accepted.append(item)
            else:
                predicted = self._front_end.predicted(item.request_id)
                self._done[item.request_id] = RequestLog(item, Outcome.REJECTED, np.empty(0), predicted=predicted)

    def _add(self, item: WorkloadRequest, epoch_s: float) -> None:
        max_tokens = self._front_end.max_tokens(item)
        length = self._front_end.length(item, epoch_s + item.arrival_s)
        stated = with_length(to_xargs(item.slo, item.output_tokens), length)
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0, extra_args=stated)
        params.update_from_generation_config({}, eos_token_id=_EOS)
        self.scheduler.add_request(
            Request(
                request_id=item.request_id,
                prompt_token_ids=_prompt(item),
                sampling_params=params,
                pooling_params=None,
                arrival_time=epoch_s + item.arrival_s,
                priority=item.priority,
                # Made-up prompts are all alike; the salt keeps those that share nothing apart in the prefix cache.
                cache_salt=None if item.prefix_ids else item.request_id,
                block_hasher=self._hasher,
            )
        )
        self._live[item.request_id] = _Live(item, min(item.output_tokens, max_tokens))
        self._stages.arrived(item.request_id, item.arrival_s)

    def _dispatch(self, now_s: float, worker_free_s: float) -> _Batch:
        """The step scheduled at ``now_s``. Planning comes first, and meanwhile the worker is at the step before."""
        scheduler = self.scheduler
        began = time.perf_counter()
        output = scheduler.schedule()
        self._schedule_s.append(time.perf_counter() - began)
        planning_s = getattr(scheduler, "slo_planning_s", 0.0)
        start_s = max(now_s + planning_s, worker_free_s)
        self._stages.scheduled(admitted_ids(output), self._preempted, getattr(scheduler, "slo_paused", ()), start_s)
        if self.on_step is not None:
            self.on_step(output)
        if not output.total_num_scheduled_tokens:
            self._counters["empty_steps"] += 1
            return _Batch(output, [], start_s, planning_s)
        load, sampling = self._inspect(output)
        duration_s = self._profile.step_s(load)
        if self._noise is not None:
            duration_s *= self._noise.factor(len(self._steps))
        if not self._profile.within_grid(load):
            self._counters["extrapolated_steps"] += 1
        end_s = start_s + duration_s
        used = 1.0 - compat.free_blocks(scheduler) / self._settings.kv_blocks
        running, waiting = scheduler.get_request_counts()
        self._steps.append((end_s, duration_s, output.total_num_scheduled_tokens, running, waiting, used))
        return _Batch(output, sampling, end_s, planning_s)

    def _inspect(self, output: Any) -> tuple[StepLoad, list[str]]:
        """The step's load, and the requests that get a token from it."""
        cached, scheduled = output.scheduled_cached_reqs, output.num_scheduled_tokens
        if not output.scheduled_new_reqs and not cached.resumed_req_ids and not self._prefilling:
            context = sum(cached.num_computed_tokens) + len(cached.req_ids)
            return StepLoad(decode_seqs=len(cached.req_ids), decode_context_tokens=context), cached.req_ids
        prefills, contexts, sampling = [], [], []
        requests = self.scheduler.requests
        for request_id, computed in (
            *((new.req_id, new.num_computed_tokens) for new in output.scheduled_new_reqs),
            *zip(cached.req_ids, cached.num_computed_tokens, strict=True),
        ):
            tokens, request, live = scheduled[request_id], requests[request_id], self._live[request_id]
            if tokens == 1 and computed >= request.num_prompt_tokens:
                contexts.append(computed + 1)
            else:
                prefills.append((tokens, computed))
                # A decoding request has KV of all its tokens but the last; one preempted in prefill, of what it got to.
                once = max(live.prefilled, request.num_tokens - 1) if request.num_output_tokens else live.prefilled
                if request.num_preemptions:
                    live.recomputed += max(min(computed + tokens, once) - computed, 0)
                live.prefilled = max(live.prefilled, computed + tokens)
            if request.is_prefill_chunk:
                self._prefilling.add(request_id)
            else:
                self._prefilling.discard(request_id)
                sampling.append(request_id)
        return StepLoad.of(prefills, contexts), sampling

    def _apply(self, batch: _Batch, now_s: float) -> None:
        scheduler, live_of = self.scheduler, self._live
        ids = list(batch.output.num_scheduled_tokens)
        index = {request_id: i for i, request_id in enumerate(ids)}
        tokens: list[list[int]] = [[]] * len(ids)
        ending = []
        for request_id in batch.sampling:
            live = live_of.get(request_id)
            if live is None:
                continue  # ended while this step was in flight
            if not live.token_times_s:
                self._front_end.started(request_id, self._clock.now_s())
            live.token_times_s.append(now_s)
            live.tokens_left -= 1
            if live.tokens_left:
                tokens[index[request_id]] = _FILLER
            else:
                tokens[index[request_id]] = _LAST
                ending.append(live)
        result = ModelRunnerOutput(req_ids=ids, req_id_to_index=index, sampled_token_ids=tokens)
        preemptions = [scheduler.requests[live.workload.request_id].num_preemptions for live in ending]
        scheduler.update_from_output(batch.output, result)
        for live, count in zip(ending, preemptions, strict=True):
            if live.workload.request_id not in scheduler.requests:
                self._end(live, Outcome.COMPLETED, count)

    def _end(self, live: _Live, outcome: Outcome, num_preemptions: int = 0) -> None:
        item = live.workload
        times_s = np.array(live.token_times_s)
        predicted = self._front_end.predicted(item.request_id)
        stages = self._stages.ended(item.request_id, live.token_times_s[-1]) if outcome is Outcome.COMPLETED else None
        log = RequestLog(item, outcome, times_s, num_preemptions, live.recomputed, predicted, stages)
        self._front_end.ended(item.request_id, log.latency, times_s.size, self._clock.now_s())
        self._done[item.request_id] = log
        del self._live[item.request_id]

    def _step_log(self) -> StepLog:
        end_s, duration_s, tokens, running, waiting, used = zip(*self._steps, strict=True) if self._steps else [()] * 6
        return StepLog(
            end_s=np.array(end_s, np.float64),
            duration_s=np.array(duration_s, np.float64),
            scheduled_tokens=np.array(tokens, np.int64),
            running=np.array(running, np.int64),
            waiting=np.array(waiting, np.int64),
            kv_utilization=np.array(used, np.float64),
        )

    def _timing(self, wall_s: float) -> dict[str, float]:
        costs_s = getattr(self.scheduler, "plan_costs_s", None) or [0.0]
        schedule_s = self._schedule_s or [0.0]
        return {
            "plan_us_mean": float(np.mean(costs_s)) * 1e6,
            "plan_us_p99": float(np.percentile(costs_s, 99)) * 1e6,
            "vllm_schedule_us_mean": (sum(schedule_s) - sum(costs_s)) / len(schedule_s) * 1e6,
            "wall_s": wall_s,
        }


def _prompt(item: WorkloadRequest) -> list[int]:
    """Token ids of the prompt: equal where two requests share a prefix block, of no meaning otherwise."""
    if not item.prefix_ids:
        return [2] * item.prompt_tokens
    tokens: list[int] = []
    for block in item.prefix_ids:
        # The scheduler only hashes tokens; the block's id, offset past the special ones, is a token as good as any.
        tokens.extend([VOCABULARY + block] * PREFIX_BLOCK_TOKENS)
    tokens.extend([VOCABULARY + item.prefix_ids[-1]] * (item.prompt_tokens - len(tokens)))
    return tokens[: item.prompt_tokens]


@contextmanager
def _collector_paused():  # type: ignore[no-untyped-def]
    """Keeps Python's cyclic garbage collector from walking vLLM's block tables in the middle of a run."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
