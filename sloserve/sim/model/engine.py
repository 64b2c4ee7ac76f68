"""The model engine in virtual time: the loop of the virtual engine around :mod:`sloserve.sim.model.scheduler`.

The same requests go in and the same log comes out; runs are deterministic but for ``RunLog.timing``. What is kept of
tokens is one array a step, taken apart by request at the end.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sloserve.admission.admission import Admission
from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.clock import ManualClock
from sloserve.core.outcome import Outcome
from sloserve.core.request import WorkloadRequest
from sloserve.core.runlog import RequestLog, RunLog, StageTimes, StepLog, latency_of
from sloserve.engine.stages import Stages
from sloserve.engine.stated import read_stated
from sloserve.estimator.planning_cost import NO_PLANNING_COST, PlanningCosts
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.estimator.step_time.noise import StepNoise
from sloserve.estimator.step_time.profile import Profile
from sloserve.settings import plugin_settings
from sloserve.sim.model.planned import PlannedScheduler
from sloserve.sim.model.scheduler import Batch, ModelScheduler
from sloserve.vllm_plugin.virtual.front_end import VirtualFrontEnd
from sloserve.vllm_plugin.virtual.settings import EngineSettings
from sloserve.wire.xargs import to_xargs, with_length

_BATCH_QUEUE = 2
_MAX_EMPTY_STEPS = 1000
"""Steps in a row that schedule nothing although requests wait, after which the run is given up and the requests count
as lost.
"""


@dataclass(frozen=True, slots=True)
class _Dispatched:
    batch: Batch
    end_s: float
    planning_s: float
    has_prefills: bool


class ModelEngine:
    """One engine. ``additional_config`` is vLLM's, with our section in it; ``None`` runs stock's rules.

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
        plugin = None if additional_config is None else plugin_settings(additional_config)
        self.scheduler = ModelScheduler(settings)
        self._planned: PlannedScheduler | None = None
        if plugin is not None:
            self.scheduler = self._planned = PlannedScheduler(settings, plugin, self._clock, planning_costs)
        self._classes = None if plugin is None else plugin.classes
        self._front_end = VirtualFrontEnd(settings, admission, None if plugin is None else plugin.make_lengths())
        self._arriving: deque[WorkloadRequest] = deque()
        self._accepted: list[WorkloadRequest] = []
        self._stages = Stages()
        self._stages_of: dict[str, StageTimes] = {}
        self._index_of: dict[str, int] = {}
        self._rejected: dict[str, RequestLog] = {}
        self._num_ended = 0
        self._first_token_s: dict[int, float] = {}
        self._tokens: list[tuple[float, IntArray]] = []
        self._steps: list[tuple[float, float, int, int, int, float]] = []
        self._schedule_s: list[float] = []
        self._counters: Counter[str] = Counter()
        self.on_step: Callable[[Batch], None] | None = None
        """Called with each scheduled batch; tests compare decisions with it."""

    def run(self, workload: Sequence[WorkloadRequest], on_progress: Callable[[int], None] | None = None) -> RunLog:
        """Serves ``workload`` (ascending arrivals) to its end. on_progress is told how many requests have ended, now
        and then.
        """
        started = time.perf_counter()
        self._arriving.extend(workload)
        self._loop(on_progress)
        counters = {} if self._planned is None else self._planned.slo_counters
        requests = self._request_logs(workload)
        return RunLog(
            requests=requests,
            steps=self._step_log(),
            timing=self._timing(time.perf_counter() - started),
            counters={**self._counters, **counters},
            token_budget=self._settings.max_num_batched_tokens,
        )

    def _loop(self, on_progress: Callable[[int], None] | None) -> None:
        """As the virtual engine's; see there."""
        scheduler, epoch_s = self.scheduler, self._clock.now_s()
        now_s, worker_free_s, empty = 0.0, 0.0, 0
        batches: deque[_Dispatched] = deque()
        while True:
            self._arrive(now_s, epoch_s)
            if self._accepted:
                self._add(self._accepted, epoch_s)
                self._accepted = []
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
                executed = batch.batch.num_tokens > 0
                worker_free_s = batch.end_s
                batches.append(batch)
                if len(batches) < _BATCH_QUEUE and (executed or scheduler.has_requests()) and empty < _BATCH_QUEUE:
                    empty = 0 if executed else empty + 1
                    continue
                empty = 0 if executed else empty + 1
            batch = batches.popleft()
            now_s = max(now_s, batch.end_s)
            self._clock.advance_to(epoch_s + now_s)
            self._arrive(now_s, epoch_s)
            self._apply(batch, now_s)
            if on_progress is not None and len(self._steps) % 256 == 0:
                on_progress(self._num_ended)
            if empty and (not batches or empty > 2 * _BATCH_QUEUE):
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
                self._rejected[item.request_id] = RequestLog(item, Outcome.REJECTED, np.empty(0), predicted=predicted)
                self._num_ended += 1

    def _add(self, items: Sequence[WorkloadRequest], epoch_s: float) -> None:
        scheduler, planned = self.scheduler, self._planned
        added = []
        for item in items:
            max_tokens = self._front_end.max_tokens(item)
            arrival_time = epoch_s + item.arrival_s
            length = self._front_end.length(item, arrival_time)
            request = scheduler.requests.add(item, arrival_time, max_tokens)
            added.append(request)
            self._index_of[item.request_id] = request.index
            self._stages.arrived(item.request_id, item.arrival_s)
            if planned is not None and planned.planner is not None and self._classes is not None:
                args = with_length(to_xargs(item.slo, item.output_tokens), length)
                planned.state(request, read_stated(args, self._classes))
        scheduler.add(added)

    def _dispatch(self, now_s: float, worker_free_s: float) -> _Dispatched:
        """The step scheduled at ``now_s``. Planning comes first, and meanwhile the worker is at the step before."""
        scheduler = self.scheduler
        began = time.perf_counter()
        batch = scheduler.schedule()
        self._schedule_s.append(time.perf_counter() - began)
        planning_s = 0.0 if self._planned is None else self._planned.slo_planning_s
        start_s = max(now_s + planning_s, worker_free_s)
        paused = () if self._planned is None else self._planned.slo_paused
        handles = scheduler.requests.handles
        admitted = [handles[index].request_id for index in batch.admitted]
        self._stages.scheduled(admitted, scheduler.preempted, paused, start_s)
        if self.on_step is not None:
            self.on_step(batch)
        if not batch.num_tokens:
            self._counters["empty_steps"] += 1
            return _Dispatched(batch, start_s, planning_s, False)
        load = self._load(batch)
        duration_s = self._profile.step_s(load)
        if self._noise is not None:
            duration_s *= self._noise.factor(len(self._steps))
        if not self._profile.within_grid(load):
            self._counters["extrapolated_steps"] += 1
        end_s = start_s + duration_s
        used = 1.0 - scheduler.kv.free / self._settings.kv_blocks
        running, waiting = int(scheduler.running.size), int(scheduler.waiting.size)
        self._steps.append((end_s, duration_s, batch.num_tokens, running, waiting, used))
        return _Dispatched(batch, end_s, planning_s, load.num_prefills > 0)

    def _load(self, batch: Batch) -> StepLoad:
        """The step's load; books what it computes again."""
        counts = self.scheduler.requests
        members, computed = batch.requests, batch.computed
        # The last token of a prompt computed alone decodes too, as it costs.
        prefills = ~((batch.tokens == 1) & (computed >= counts.prompt[members]))
        if not np.logical_or.reduce(prefills):
            context = int(np.add.reduce(computed)) + members.size
            return StepLoad(decode_seqs=members.size, decode_context_tokens=context)
        chunks, prefixes, of = batch.tokens[prefills], computed[prefills], members[prefills]
        ends = prefixes + chunks
        again = counts.preemptions[of] > 0
        if np.logical_or.reduce(again):
            # A decoding request has KV of all its tokens but the last; one preempted in prefill, of what it got to.
            had_output = counts.tokens[of] > counts.prompt[of]
            once = np.maximum(counts.prefilled[of], np.where(had_output, counts.tokens[of] - 1, 0))
            counts.recomputed[of] += np.where(again, np.maximum(np.minimum(ends, once) - prefixes, 0), 0)
        counts.prefilled[of] = np.maximum(counts.prefilled[of], ends)
        decodes = members.size - of.size
        return StepLoad(
            prefill_tokens=int(chunks.sum()),
            num_prefills=of.size,
            decode_seqs=decodes,
            decode_context_tokens=int(computed.sum() - prefixes.sum()) + decodes,
            prefill_attention_tokens2=int((chunks * (chunks + 2 * prefixes)).sum()),
        )

    def _apply(self, dispatched: _Dispatched, now_s: float) -> None:
        sampled, ended = self.scheduler.update(dispatched.batch)
        self._tokens.append((now_s, sampled))
        if dispatched.has_prefills:  # none has its first token from another step
            counts = self.scheduler.requests
            for index in sampled[counts.tokens[sampled] == counts.prompt[sampled] + 1].tolist():
                self._first_token_s[index] = now_s
                self._front_end.started(counts.handles[index].request_id, self._clock.now_s())
        for index in ended:
            self._end(index, now_s)

    def _end(self, index: int, now_s: float) -> None:
        counts = self.scheduler.requests
        item = counts.handles[index].workload
        self._num_ended += 1
        self._stages_of[item.request_id] = self._stages.ended(item.request_id, now_s)
        tokens = int(counts.tokens[index] - counts.prompt[index])
        latency = latency_of(item.arrival_s, self._first_token_s[index], now_s, tokens)
        self._front_end.ended(item.request_id, latency, tokens, self._clock.now_s())

    def _request_logs(self, workload: Sequence[WorkloadRequest]) -> list[RequestLog]:
        times_of, counts, logs = self._times_by_request(), self.scheduler.requests, []
        for item in workload:
            request_id = item.request_id
            log = self._rejected.get(request_id)
            if log is None:
                index = self._index_of[request_id]
                stages = self._stages_of.get(request_id)
                log = RequestLog(
                    item,
                    Outcome.LOST if stages is None else Outcome.COMPLETED,
                    times_of[index],
                    0 if stages is None else int(counts.preemptions[index]),
                    int(counts.recomputed[index]),
                    self._front_end.predicted(request_id),
                    stages,
                )
            logs.append(log)
        return logs

    def _times_by_request(self) -> list[FloatArray]:
        """When each request got its tokens, by index."""
        num_requests = len(self.scheduler.requests.handles)
        if not self._tokens:
            return [np.empty(0)] * num_requests
        owners = np.concatenate([sampled for _, sampled in self._tokens])
        times_s = np.repeat([now_s for now_s, _ in self._tokens], [sampled.size for _, sampled in self._tokens])
        order = np.argsort(owners, kind="stable")
        ends = np.cumsum(np.bincount(owners, minlength=num_requests))
        return np.split(times_s[order], ends[:-1])

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
        costs_s = (self._planned.plan_costs_s if self._planned is not None else None) or [0.0]
        schedule_s = self._schedule_s or [0.0]
        return {
            "plan_us_mean": float(np.mean(costs_s)) * 1e6,
            "plan_us_p99": float(np.percentile(costs_s, 99)) * 1e6,
            "vllm_schedule_us_mean": (sum(schedule_s) - sum(costs_s)) / len(schedule_s) * 1e6,
            "wall_s": wall_s,
        }
