"""Run vLLM's real scheduler in virtual time: no device, no model, made-up tokens, step times from a profile.

AsyncScheduler of stock vLLM and SLOScheduler are run by the identical code. Runs are deterministic: only
``RunLog.timing`` is measured.
"""

import atexit
import gc
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from sloserve.core.outcome import Outcome
from sloserve.core.request import OUTPUT_ID, WorkloadRequest
from sloserve.core.runlog import RequestLog, RunLog
from sloserve.engine.swap.store import SwapStore
from sloserve.engine.virtual.drafts import AcceptedRuns
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.engine.virtual.event_loop import EventLoop
from sloserve.engine.virtual.virtual_front_end import VirtualFrontEnd
from sloserve.engine.virtual.virtual_swap_worker import NOTHING, Store, Told, VirtualSwapWorker
from sloserve.estimator.planning_cost import NO_PLANNING_COST, PlanningCosts
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.estimator.step_time.noise import StepFactors
from sloserve.estimator.step_time.profile import Profile
from sloserve.scheduler.admission.admission import Admission
from sloserve.scheduler.settings import KEY, plugin_settings
from sloserve.vllm_plugin.engine import compat
from sloserve.vllm_plugin.engine.scheduler import SLOScheduler
from sloserve.vllm_plugin.engine.vllm_port import admitted_ids
from sloserve.vllm_plugin.swap.messages import CopyTraffic, SwapReport
from sloserve.vllm_plugin.virtual.vllm_config import VOCABULARY, scheduler_arguments
from sloserve.wire.xargs import to_xargs, with_internal, with_promise

# What these imports left lives to the end. Every run begins with a collection, which would walk it for 0.4 s.
gc.freeze()
atexit.register(gc.unfreeze)  # nanobind's modules complain of what is left

_EOS = 0
_FILLER = [1]
_LAST = [_EOS]


@dataclass(slots=True)
class _LiveRequest:
    """A request inside the engine.

    Args:
        workload: The request of the workload.
        tokens_left: Output tokens still to come, down to EOS.
        accepted_runs: See :meth:`~sloserve.engine.virtual.drafts.Drafts.accepted_runs`; ``None`` without drafts.
        token_times_s: When each token came.
        prefilled: Tokens that have had KV.
        recomputed: Tokens that were computed again.
        cached: Tokens of the prompt that the prefix cache had when the request was first admitted.
    """

    workload: WorkloadRequest
    tokens_left: int
    accepted_runs: AcceptedRuns | None = None
    token_times_s: list[float] = field(default_factory=list)
    prefilled: int = 0
    recomputed: int = 0
    cached: int = 0


@dataclass(slots=True)
class _VirtualBatch:
    output: Any
    sampling: list[str]
    end_s: float
    planning_s: float
    told: Told

    @property
    def num_tokens(self) -> int:
        return int(self.output.total_num_scheduled_tokens)


class VirtualEngine(EventLoop):
    """One engine in virtual time.

    Args:
        additional_config: vLLM's, with our section in it; ``None`` runs stock's AsyncScheduler.
        admission: Admission of the front end before the engine; ``None`` admits every request, and predicts nothing.
        planning_costs: Time that planning takes from the engine.
        noise: Noise of step times; ``None`` for none.
    """

    def __init__(
        self,
        settings: EngineSettings,
        profile: Profile,
        additional_config: dict[str, Any] | None,
        admission: Admission | None = None,
        *,
        planning_costs: PlanningCosts = NO_PLANNING_COST,
        noise: StepFactors | None = None,
    ) -> None:
        lengths = None if additional_config is None else plugin_settings(additional_config).make_lengths()
        super().__init__(settings, profile, VirtualFrontEnd(settings, admission, lengths), noise)
        if additional_config is not None:
            self._swap_worker = VirtualSwapWorker.of(settings, profile)
        self._awaited = 0.0
        """The last copy beside steps that the next step waits for, if the scheduler said so before that step."""
        block_bytes = None if self._swap_worker is None else settings.block_bytes(profile)
        arguments = scheduler_arguments(settings, additional_config or {}, block_bytes)
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
            # Since 0.33 the hash of a block may cover tokens after it, which layers that draft have read.
            ahead = int(getattr(self.scheduler, "num_hash_lookahead_tokens", 0))
            self._hasher = get_request_block_hasher(self.scheduler.hash_block_size, sha256, *([ahead] if ahead else []))
        self._live: dict[str, _LiveRequest] = {}
        self._lora_numbers: dict[str, int] = {}
        self._prefilling: set[str] = set()
        self._preempted: list[str] = []
        compat.on_preemption(self.scheduler, self._preempted.append)
        self.on_step: Callable[[Any], None] | None = None
        """Callback that gets each SchedulerOutput; tests compare decisions with it."""

    def run(self, workload: Sequence[WorkloadRequest], on_progress: Callable[[int], None] | None = None) -> RunLog:
        """Serve a workload to its end.

        Args:
            workload: The requests, in the order of their arrivals.
            on_progress: Called now and then with the number of requests that have ended.
        """
        started = time.perf_counter()
        with collector_paused():
            self._serve(workload, on_progress)
        return self.log(workload, time.perf_counter() - started)

    def log(self, requests: Sequence[WorkloadRequest], wall_s: float = 0.0) -> RunLog:
        """Return the log of requests that were given, at the end of a run; requests that have not ended are lost.

        Args:
            requests: The requests.
            wall_s: Wall time that the run took.
        """
        for live in list(self._live.values()):
            self._end(live, Outcome.LOST)
        return RunLog(
            requests=[self._done[r.request_id] for r in requests],
            steps=self._step_log(),
            timing=self._timing(wall_s, getattr(self.scheduler, "plan_costs_s", None) or ()),
            counters={**self._counters, **getattr(self.scheduler, "slo_counters", {}), **self._swap_counters()},
            token_budget=self._settings.max_num_batched_tokens,
            tenant_service_s=self._tenant_service_s(),
        )

    @property
    def kv_used(self) -> float:
        return 1.0 - compat.free_blocks(self.scheduler) / self._settings.kv_blocks

    @property
    def _kept(self) -> SwapStore | None:
        return getattr(self.scheduler.connector, "store", None)

    def _keep(self, request_id: str) -> Sequence[Store]:
        request = self.scheduler.requests.get(request_id)
        if request is not None and request.status == RequestStatus.RUNNING:
            self.scheduler.keep_kv(request)
        orders = self.scheduler.connector.build_connector_meta(None)
        self._awaited = max(self._awaited, orders.awaited)  # said once: the next step waits
        return [(copy.number, copy.host_ids) for copy in orders.stores]

    def _has_requests(self) -> bool:
        return bool(self.scheduler.has_requests())

    def _add(self, items: Sequence[WorkloadRequest], epoch_s: float) -> None:
        for item in items:
            max_tokens = self._front_end.max_tokens(item)
            length = self._front_end.length(item, epoch_s + item.arrival_s)
            call = None if item.call is None else item.call.later(epoch_s)
            stated = with_internal(to_xargs(item.slo, item.output_tokens), length, item.tenant or None, call)
            first_after_s = self._front_end.first_after_s(item)
            if first_after_s is not None:
                stated = with_promise(stated, epoch_s + item.arrival_s + first_after_s)
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
                    # Made-up prompts are all alike; the salt keeps prompts that share nothing apart in the prefix
                    # cache.
                    cache_salt=None if item.prefix_ids else item.request_id,
                    block_hasher=self._hasher,
                    lora_request=self._lora(item.adapter) if item.adapter else None,
                )
            )
            tokens, drafts = min(item.output_tokens, max_tokens), self._settings.drafts
            runs = None if drafts is None else drafts.accepted_runs(item.request_id, tokens)
            self._live[item.request_id] = _LiveRequest(item, tokens, runs)
            self._stages.arrived(item.request_id, item.arrival_s)

    def _lora(self, name: str) -> LoRARequest:
        """Return the adapter of a name; the first one named has the number 1."""
        number = self._lora_numbers.setdefault(name, len(self._lora_numbers) + 1)
        return LoRARequest(lora_name=name, lora_int_id=number, lora_path="none")

    def _dispatch(self, now_s: float, worker_free_s: float) -> _VirtualBatch:
        """Schedule a step at ``now_s``. Planning comes first, and meanwhile the worker is at the step before."""
        scheduler = self.scheduler
        began = time.perf_counter()
        output = scheduler.schedule()
        self._schedule_s.append(time.perf_counter() - began)
        scheduler.get_grammar_bitmask(output)  # as vLLM does once the device has its step
        planning_s = getattr(scheduler, "slo_planning_s", 0.0)
        start_s = max(now_s + planning_s, worker_free_s)
        self._stages.scheduled(admitted_ids(output), self._preempted, getattr(scheduler, "slo_paused", ()), start_s)
        if self.on_step is not None:
            self.on_step(output)
        told = NOTHING
        if self._swap_worker is not None:
            orders = output.kv_connector_metadata
            loads = [(copy.request_id, copy.host_ids) for copy in orders.loads]
            stores = [(copy.number, copy.host_ids) for copy in orders.stores]
            awaited, self._awaited = max(self._awaited, orders.awaited), 0.0
            told = self._swap_worker.step(stores, loads, start_s, awaited)
        if not output.total_num_scheduled_tokens:
            self._counters["empty_steps"] += 1
            return _VirtualBatch(output, [], start_s + told.longer_s, planning_s, told)
        load, sampling = self._inspect(output)
        rounds = max(map(len, output.scheduled_spec_decode_tokens.values()), default=0)
        duration_s = self._duration_s(load, rounds) + told.longer_s
        end_s = start_s + duration_s
        running, waiting = scheduler.get_request_counts()
        self._steps.append((end_s, duration_s, output.total_num_scheduled_tokens, running, waiting, self.kv_used))
        return _VirtualBatch(output, sampling, end_s, planning_s, told)

    def _inspect(self, output: Any) -> tuple[StepLoad, list[str]]:
        """Return the step's load, and the requests that get a token from it."""
        cached, scheduled = output.scheduled_cached_reqs, output.num_scheduled_tokens
        drafted = output.scheduled_spec_decode_tokens
        drafts = None if self._settings.drafts is None else sum(map(len, drafted.values()))
        if not output.scheduled_new_reqs and not cached.resumed_req_ids and not self._prefilling:
            context = sum(cached.num_computed_tokens) + len(cached.req_ids)
            load = StepLoad(decode_seqs=len(cached.req_ids), decode_context_tokens=context, draft_tokens=drafts)
            return load, cached.req_ids
        prefills, contexts, sampling = [], [], []
        requests = self.scheduler.requests
        for new in output.scheduled_new_reqs:
            self._live[new.req_id].cached = new.num_computed_tokens
        for request_id, computed in (
            *((new.req_id, new.num_computed_tokens) for new in output.scheduled_new_reqs),
            *zip(cached.req_ids, cached.num_computed_tokens, strict=True),
        ):
            request, live = requests[request_id], self._live[request_id]
            tokens = scheduled[request_id] - len(drafted.get(request_id, ()))
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
        return StepLoad.of(prefills, contexts, drafts), sampling

    def _apply(self, batch: _VirtualBatch, now_s: float) -> None:
        scheduler, live_of = self.scheduler, self._live
        ids = list(batch.output.num_scheduled_tokens)
        index = {request_id: i for i, request_id in enumerate(ids)}
        tokens: list[list[int]] = [[]] * len(ids)
        ending = []
        drafted = batch.output.scheduled_spec_decode_tokens
        # A request that is admitted has no drafts yet: vLLM pads it with tokens that none accepts.
        padded = set(admitted_ids(batch.output)) if drafted else ()
        for request_id in batch.sampling:
            live = live_of.get(request_id)
            if live is None:
                continue  # ended while this step was in flight
            if not live.token_times_s:
                self._front_end.started(request_id, self._clock.now_s())
            num_drafts = len(drafted.get(request_id, ()))
            if num_drafts:
                tokens[index[request_id]] = self._verified(live, num_drafts, request_id in padded, now_s)
            else:
                live.token_times_s.append(now_s)
                live.tokens_left -= 1
                tokens[index[request_id]] = _FILLER if live.tokens_left else _LAST
            if not live.tokens_left:
                ending.append(live)
        result = ModelRunnerOutput(req_ids=ids, req_id_to_index=index, sampled_token_ids=tokens)
        if batch.told is not NOTHING:
            report = SwapReport(out=CopyTraffic(*batch.told.out), back=CopyTraffic(*batch.told.back))
            result.kv_connector_output = KVConnectorOutput(
                finished_recving=set(batch.told.loaded), kv_connector_worker_meta=report or None
            )
        preemptions = [scheduler.requests[live.workload.request_id].num_preemptions for live in ending]
        scheduler.update_from_output(batch.output, result)
        for live, count in zip(ending, preemptions, strict=True):
            if live.workload.request_id not in scheduler.requests:
                self._end(live, Outcome.COMPLETED, count)

    def _verified(self, live: _LiveRequest, num_drafts: int, padded: bool, now_s: float) -> list[int]:
        """Return what the worker makes of a request's drafts: the accepted drafts, and one token more.

        vLLM takes no token after the last of the output.
        """
        assert live.accepted_runs is not None
        accepted = 0 if padded else min(int(live.accepted_runs[len(live.token_times_s)]), num_drafts)
        self._counters["draft_tokens"] += num_drafts
        self._counters["accepted_draft_tokens"] += accepted
        tokens = _FILLER * (accepted + 1)
        taken = min(accepted + 1, live.tokens_left)
        live.token_times_s.extend([now_s] * taken)
        live.tokens_left -= taken
        if not live.tokens_left:
            tokens[taken - 1] = _EOS
        return tokens

    def empty_prefix_cache(self) -> None:
        """Empty the prefix cache: the model goes to sleep and keeps its weights. No request may run.

        KV in the swap space stays good, as over a park's own reset.
        """
        self.scheduler.kv_cache_manager.reset_prefix_cache()

    def output_tokens(self, request_id: str) -> int:
        live = self._live.get(request_id)
        return 0 if live is None else len(live.token_times_s)

    def _abort(self, request_id: str) -> None:
        live = self._live.get(request_id)
        if live is not None:
            num_preemptions = self.scheduler.requests[request_id].num_preemptions
            self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)
            self._prefilling.discard(request_id)
            self._stages.ended(request_id, self._now_s)
            self._end(live, Outcome.ABORTED, num_preemptions)

    def _end(self, live: _LiveRequest, outcome: Outcome, num_preemptions: int = 0) -> None:
        item = live.workload
        times_s = np.array(live.token_times_s)
        predicted = self._front_end.predicted(item.request_id)
        stages = self._stages.ended(item.request_id, live.token_times_s[-1]) if outcome is Outcome.COMPLETED else None
        swaps = self._num_swaps(item.request_id)
        log = RequestLog(
            item,
            outcome,
            times_s,
            num_preemptions,
            live.recomputed,
            predicted,
            stages,
            swaps,
            live.cached,
            self._front_end.promised(item.request_id),
        )
        self._front_end.ended(item.request_id, log.latency, times_s.size, self._clock.now_s())
        self._done[item.request_id] = log
        self._num_ended += 1
        if outcome is not Outcome.LOST:
            self._front_end.notify(item.request_id, outcome)
        del self._live[item.request_id]


def _prompt(item: WorkloadRequest) -> list[int]:
    """Return token ids of the prompt: equal where two requests share a prefix block, of no meaning otherwise."""
    if not item.prefix_ids:
        return [2] * item.prompt_tokens
    tokens: list[int] = []
    for block in item.prefix_ids:
        tokens.extend(_token(block) * item.prefix_block_tokens)
    tokens.extend(_token(item.prefix_ids[-1]) * (item.prompt_tokens - len(tokens)))
    return tokens[: item.prompt_tokens]


def _token(block: int) -> list[int]:
    """Return the token of which a block with this id is made.

    The scheduler only hashes tokens; the block's id, offset past the special ones, is a token as good as any.
    """
    return _FILLER if block == OUTPUT_ID else [VOCABULARY + block]


@contextmanager
def collector_paused():  # type: ignore[no-untyped-def]
    """Keep Python's cyclic garbage collector from walking vLLM's block tables in the middle of a run."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
