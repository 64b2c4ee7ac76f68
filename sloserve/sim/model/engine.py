"""The model engine in virtual time: the virtual engine's loop around :mod:`sloserve.sim.model.scheduler`.

The same requests go in and the same log comes out; runs are deterministic but for ``RunLog.timing``. Tokens are kept as
one array a step, which is split by request at the end.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.outcome import Outcome
from sloserve.core.request import WorkloadRequest
from sloserve.core.runlog import RequestLog, RunLog, StageTimes, latency_of
from sloserve.core.tenants import TenantTable
from sloserve.engine.read_stated import StatedReader
from sloserve.engine.swap.store import SwapStore
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.engine.virtual.event_loop import EventLoop
from sloserve.engine.virtual.virtual_front_end import VirtualFrontEnd
from sloserve.engine.virtual.virtual_swap_worker import NOTHING, Store, Told, VirtualSwapWorker
from sloserve.estimator.planning_cost import NO_PLANNING_COST, PlanningCosts
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.estimator.step_time.noise import StepFactors
from sloserve.estimator.step_time.profile import Profile
from sloserve.scheduler.admission.admission import Admission
from sloserve.scheduler.policy import Policy
from sloserve.scheduler.settings import plugin_settings
from sloserve.sim.model.model_requests import FREE, RUNNING
from sloserve.sim.model.planned import PlannedScheduler
from sloserve.sim.model.scheduler import ModelScheduler
from sloserve.sim.model.step import StepBatch
from sloserve.wire.xargs import to_xargs, with_internal, with_promise


@dataclass(frozen=True, slots=True)
class _Dispatched:
    batch: StepBatch
    end_s: float
    planning_s: float
    has_prefills: bool
    told: Told

    @property
    def num_tokens(self) -> int:
        return self.batch.num_tokens


class ModelEngine(EventLoop):
    """A model of one engine.

    Args:
        additional_config: vLLM's setting of this name with our section in it; ``None`` runs stock vLLM's rules.
        admission: Admission control of the front end before the engine; ``None`` admits all and predicts nothing.
        planning_costs: The time of the engine that planning takes.
        noise: Noise of step times; ``None`` for none.
        policy: A policy object in place of the one that our section names, for experiments.
    """

    scheduler: ModelScheduler

    def __init__(
        self,
        settings: EngineSettings,
        profile: Profile,
        additional_config: dict[str, Any] | None,
        admission: Admission | None = None,
        *,
        planning_costs: PlanningCosts = NO_PLANNING_COST,
        noise: StepFactors | None = None,
        policy: Policy | None = None,
    ) -> None:
        plugin = None if additional_config is None else plugin_settings(additional_config)
        lengths = None if plugin is None else plugin.make_lengths()
        super().__init__(settings, profile, VirtualFrontEnd(settings, admission, lengths), noise)
        self.scheduler = ModelScheduler(settings)
        self._planned: PlannedScheduler | None = None
        if plugin is not None:
            self.scheduler = self._planned = PlannedScheduler(settings, plugin, self._clock, planning_costs, policy)
            self._swap_worker = VirtualSwapWorker.of(settings, profile)
            if self._swap_worker is not None:
                self._planned.swap_with(settings.swap_space_gib, settings.block_bytes(profile))
        shares = self.tenant_shares
        self._stated = (
            None
            if plugin is None
            else StatedReader(plugin.classes, TenantTable() if shares is None else shares.tenants)
        )
        self._aborted: set[str] = set()
        self._stages_of: dict[str, StageTimes] = {}
        self._index_of: dict[str, int] = {}
        self._first_token_s: dict[int, float] = {}
        self._tokens: list[tuple[float, IntArray]] = []
        self.on_step: Callable[[StepBatch], None] | None = None
        """Called with each scheduled batch; tests compare decisions with it."""

    def run(self, workload: Sequence[WorkloadRequest], on_progress: Callable[[int], None] | None = None) -> RunLog:
        """Serve ``workload`` (ascending arrivals) to its end.

        Calls ``on_progress`` now and then with the number of requests that have ended.
        """
        started = time.perf_counter()
        self._serve(workload, on_progress)
        return self.log(workload, time.perf_counter() - started)

    def log(self, requests: Sequence[WorkloadRequest], wall_s: float = 0.0) -> RunLog:
        """Return the log of ``requests``, which were served, in a run of ``wall_s`` seconds of real time."""
        counters = {} if self._planned is None else self._planned.slo_counters
        plan_costs_s = [] if self._planned is None else self._planned.plan_costs_s
        return RunLog(
            requests=self._request_logs(requests),
            steps=self._step_log(),
            timing=self._timing(wall_s, plan_costs_s),
            counters={**self._counters, **counters, **self._swap_counters(), **self._draft_counters()},
            token_budget=self._settings.max_num_batched_tokens,
            tenant_service_s=self._tenant_service_s(),
        )

    def _draft_counters(self) -> dict[str, int]:
        drafts = self.scheduler.drafts
        return {} if drafts is None else {"draft_tokens": drafts.drafted, "accepted_draft_tokens": drafts.accepted}

    @property
    def _kept(self) -> SwapStore | None:
        return None if self.scheduler.swap is None else self.scheduler.swap.control.store

    @property
    def kv_used(self) -> float:
        return 1.0 - self.scheduler.kv.free / self._settings.kv_blocks

    def _has_requests(self) -> bool:
        return self.scheduler.has_requests()

    def _add(self, items: Sequence[WorkloadRequest], epoch_s: float) -> None:
        scheduler, planned = self.scheduler, self._planned
        added = []
        for item in items:
            max_tokens = self._front_end.max_tokens(item)
            arrival_time = epoch_s + item.arrival_s
            length = self._front_end.length(item, arrival_time)
            request = scheduler.requests.add(item, arrival_time, max_tokens)
            added.append(request)
            if scheduler.swap is not None:
                scheduler.swap.given(request.index)
            self._index_of[item.request_id] = request.index
            self._stages.arrived(item.request_id, item.arrival_s)
            if planned is not None and planned.planner is not None and self._stated is not None:
                call = None if item.call is None else item.call.later(epoch_s)
                args = with_internal(to_xargs(item.slo, item.output_tokens), length, item.tenant or None, call)
                first_after_s = self._front_end.first_after_s(item)
                if first_after_s is not None:
                    args = with_promise(args, arrival_time + first_after_s)
                planned.state(request, self._stated.read(args, item.adapter or None))
        scheduler.add(added)

    def _dispatch(self, now_s: float, worker_free_s: float) -> _Dispatched:
        """Schedule a step at ``now_s`` and return it.

        Planning comes first; meanwhile the worker still runs the step before.
        """
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
        told = NOTHING
        if self._swap_worker is not None and scheduler.swap is not None:
            told = self._swap_worker.step(*scheduler.swap.take(), start_s, scheduler.swap.control.awaited())
        if not batch.num_tokens:
            self._counters["empty_steps"] += 1
            return _Dispatched(batch, start_s + told.longer_s, planning_s, False, told)
        load = self._load(batch)
        rounds = 0 if batch.drafts is None else int(batch.drafts.max())
        duration_s = self._duration_s(load, rounds) + told.longer_s
        end_s = start_s + duration_s
        running, waiting = int(scheduler.running.size), scheduler.num_waiting
        self._steps.append((end_s, duration_s, batch.num_tokens, running, waiting, self.kv_used))
        return _Dispatched(batch, end_s, planning_s, load.num_prefills > 0, told)

    def _load(self, batch: StepBatch) -> StepLoad:
        """Return the step's load, and book the tokens that it computes again."""
        counts = self.scheduler.requests
        members, computed, own = batch.requests, batch.computed, batch.own_tokens
        drafts = None if batch.drafts is None else int(np.add.reduce(batch.drafts))
        # The last token of a prompt computed alone decodes too, as it costs.
        prefills = ~((own == 1) & (computed >= counts.prompt[members]))
        if not np.logical_or.reduce(prefills):
            context = int(np.add.reduce(computed)) + members.size
            return StepLoad(decode_seqs=members.size, decode_context_tokens=context, draft_tokens=drafts)
        chunks, prefixes, of = own[prefills], computed[prefills], members[prefills]
        ends = prefixes + chunks
        again = counts.preemptions[of] > 0
        if np.logical_or.reduce(again):
            # A decoding request has KV of all its tokens but the last; a request preempted in prefill has KV of the
            # tokens that it had computed.
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
            draft_tokens=drafts,
        )

    def _apply(self, dispatched: _Dispatched, now_s: float) -> None:
        sampled, ended = self.scheduler.update(dispatched.batch, dispatched.told)
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
        self._front_end.notify(item.request_id, Outcome.COMPLETED)

    def empty_prefix_cache(self) -> None:
        """Empty the prefix cache: the model goes to sleep (requires that no request runs)."""
        self.scheduler.kv.empty_cache()

    def output_tokens(self, request_id: str) -> int:
        index, counts = self._index_of.get(request_id), self.scheduler.requests
        return 0 if index is None else int(counts.tokens[index] - counts.prompt[index])

    def _abort(self, request_id: str) -> None:
        index = self._index_of.get(request_id)
        counts = self.scheduler.requests
        if index is None or counts.state[index] == FREE:
            return
        self.scheduler.abort(index)
        self._aborted.add(request_id)
        self._num_ended += 1
        self._stages.ended(request_id, self._now_s)
        tokens = int(counts.tokens[index] - counts.prompt[index])
        self._front_end.ended(request_id, None, tokens, self._clock.now_s())
        self._front_end.notify(request_id, Outcome.ABORTED)

    def _keep(self, request_id: str) -> Sequence[Store]:
        index, scheduler = self._index_of.get(request_id), self.scheduler
        assert scheduler.swap is not None
        if index is not None and scheduler.requests.state[index] == RUNNING:
            scheduler.swap.keep(index, math.inf)
        stores, loads = scheduler.swap.take()
        assert not loads
        return stores

    def _request_logs(self, workload: Sequence[WorkloadRequest]) -> list[RequestLog]:
        times_of, counts, logs = self._times_by_request(), self.scheduler.requests, []
        for item in workload:
            request_id = item.request_id
            log = self._done.get(request_id)
            if log is None:
                index = self._index_of[request_id]
                stages = self._stages_of.get(request_id)
                outcome = Outcome.LOST if stages is None else Outcome.COMPLETED
                if request_id in self._aborted:
                    outcome = Outcome.ABORTED
                log = RequestLog(
                    item,
                    outcome,
                    times_of[index],
                    0 if outcome is Outcome.LOST else int(counts.preemptions[index]),
                    int(counts.recomputed[index]),
                    self._front_end.predicted(request_id),
                    stages,
                    self._num_swaps(request_id),
                    int(counts.found[index]),
                    self._front_end.promised(request_id),
                )
            logs.append(log)
        return logs

    def _times_by_request(self) -> list[FloatArray]:
        """Return the times at which each request got its tokens, in seconds, by index."""
        num_requests = len(self.scheduler.requests.handles)
        if not self._tokens:
            return [np.empty(0)] * num_requests
        owners = np.concatenate([sampled for _, sampled in self._tokens])
        times_s = np.repeat([now_s for now_s, _ in self._tokens], [sampled.size for _, sampled in self._tokens])
        order = np.argsort(owners, kind="stable")
        ends = np.cumsum(np.bincount(owners, minlength=num_requests))
        return np.split(times_s[order], ends[:-1])
