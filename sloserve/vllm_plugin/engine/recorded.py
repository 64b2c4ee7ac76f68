"""Record what one scheduler is asked and does, see :mod:`sloserve.engine.recording`.

Without a recorder nothing here runs. With one, a step costs a few microseconds, and nothing here changes what is
decided.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from vllm.v1.request import Request, RequestStatus

import sloserve
from sloserve.core.clock import Clock
from sloserve.core.errors import ConfigError
from sloserve.core.stated import StatedSLO
from sloserve.engine.recording.events import (
    ABORTED,
    ABORTED_OR_STOP_STRING,
    FAILED,
    FORMAT,
    LENGTH,
    REPETITION,
    STOP,
    STRETCH_TOKENS,
    Arrived,
    FirstToken,
    Paused,
    PoliciesChanged,
    Preempted,
    RequestAdmitted,
    RequestEnded,
    SegmentHead,
    Stepped,
    weight,
)
from sloserve.engine.recording.folder import engine_stem, recordings_folder, trim
from sloserve.engine.recording.plan_log import PlanLog
from sloserve.engine.recording.recorder import Recorder
from sloserve.engine.recording.run import present_run
from sloserve.engine.recording.salt import Salt
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.vllm_plugin.engine import compat
from sloserve.vllm_plugin.engine.prefix_cache import prompt_contents
from sloserve.vllm_plugin.engine.vllm_port import admitted_ids
from sloserve.vllm_plugin.kv_groups import layout_of
from sloserve.vllm_plugin.versions import installed_vllm
from sloserve.wire.held import stated_held
from sloserve.wire.xargs import stated_tenant

logger = logging.getLogger(__name__)

_SETTINGS: Final = ("classes", "default_class", "seed", "plan_share", "aged_share", "swapping", "tenant_shares")
"""Settings of a recording: the ones that decide what the scheduler does."""
_ENDS: Final = {
    RequestStatus.FINISHED_STOPPED: STOP,
    RequestStatus.FINISHED_LENGTH_CAPPED: LENGTH,
    RequestStatus.FINISHED_IGNORED: LENGTH,
    RequestStatus.FINISHED_REPETITION: REPETITION,
}
_MOST_IN_FLIGHT = 64
"""More steps than any engine has in flight; the oldest is forgotten, since its output was lost."""


def start_recording(scheduler: Any, rank: int, clock: Clock, report: Callable[[int, bool], None]) -> "Recorded | None":
    """Return a recording of a scheduler into the folder of its settings; ``None`` if it cannot begin, which is logged.

    Args:
        scheduler: The scheduler.
        rank: Rank of the engine.
        clock: Clock of the scheduler.
        report: Called from another thread with what is lost, see :class:`~sloserve.engine.recording.recorder.Recorder`.
    """
    settings = scheduler.settings
    try:
        folder = recordings_folder(settings.record_folder)
        most_bytes, now_s = settings.record_mib << 20, clock.now_s()
        trim(folder, most_bytes, now_s)
        run = present_run(now_s)
        return Recorded(scheduler, folder, engine_stem(run.name, rank), most_bytes, clock, salt=run.salt, report=report)
    except (ConfigError, OSError) as error:
        logger.warning("nothing is recorded: %s", error)
        return None


def engine_facts(scheduler: Any) -> dict[str, Any]:
    """Return the sizes and limits of an engine, in the names of vLLM's flags where they have one."""
    config = scheduler.vllm_config
    cache, limits, model = config.cache_config, config.scheduler_config, config.model_config
    drafts = config.speculative_config
    return {
        "model": str(model.served_model_name),
        "sloserve": sloserve.__version__,
        "vllm": installed_vllm(),
        "kv_blocks": scheduler.kv_cache_manager.block_pool.num_gpu_blocks - 1,  # vLLM keeps one for itself
        "block_size": int(scheduler.block_size),
        "max_num_seqs": int(limits.max_num_seqs),
        "max_num_batched_tokens": int(limits.max_num_batched_tokens),
        "max_model_len": int(model.max_model_len),
        "enable_prefix_caching": bool(cache.enable_prefix_caching),
        "enable_chunked_prefill": bool(limits.enable_chunked_prefill),
        "async_scheduling": bool(limits.async_scheduling),
        "num_speculative_tokens": 0 if drafts is None else int(drafts.num_speculative_tokens),
        "draft_layers": scheduler.num_lookahead_tokens > 0,
        "tensor_parallel_size": int(config.parallel_config.tensor_parallel_size),
        "max_loras": None if config.lora_config is None else int(config.lora_config.max_loras),
        "kv_groups": _kv_groups(scheduler),
    }


def _kv_groups(scheduler: Any) -> list[list[int]]:
    """Return the KV cache groups of a model with layers that do not all keep the whole context; none for another."""
    try:
        layout = layout_of(scheduler)
    except LookupError:
        return []
    return [] if layout.is_full else [list(group) for group in layout.groups]


def accepted_drafts(scheduler_output: Any, model_runner_output: Any) -> int:
    """Return how many draft tokens a step accepted."""
    drafted = scheduler_output.scheduled_spec_decode_tokens
    if not drafted:
        return 0
    sampled, index = model_runner_output.sampled_token_ids, model_runner_output.req_id_to_index
    return sum(max(len(sampled[index[one]]) - 1, 0) for one in drafted if one in index)


def _reason(request: Request) -> str:
    """Return how a request ended, as one of :data:`~sloserve.engine.recording.events.ENDS`."""
    if request.status != RequestStatus.FINISHED_ABORTED:
        return _ENDS.get(request.status, FAILED)
    params = request.sampling_params
    return ABORTED if params is None or not params.stop else ABORTED_OR_STOP_STRING


class Recorded:
    """Records one scheduler."""

    def __init__(
        self,
        scheduler: Any,
        folder: Path,
        stem: str,
        most_bytes: int,
        clock: Clock,
        *,
        salt: Salt | None = None,
        report: Callable[[int, bool], None] = lambda lost, failed: None,
    ) -> None:
        """Begin a recording.

        Args:
            scheduler: The scheduler.
            folder: Folder of the segments.
            stem: Beginning of the names of the segments.
            most_bytes: Most bytes of all segments together.
            clock: Clock of the scheduler.
            salt: Key of the hashes; ``None`` for a new one.
            report: Called from another thread with what is lost.

        Raises: OSError if the first segment cannot be created.
        """
        self._scheduler, self._salt, self._facts = scheduler, salt or Salt(), engine_facts(scheduler)
        self._clock = clock
        size = scheduler.kv_cache_manager.block_pool.hash_block_size
        self._stretch_tokens = max(STRETCH_TOKENS // size, 1) * size
        self._recorder = Recorder(folder, stem, most_bytes, self._head, clock, report)
        self._number_of: dict[str, int] = {}
        self._next = 1
        self._unbegun: dict[str, Request] = {}  # admitted requests without a token
        self._planned: frozenset[str] = frozenset()
        self._paused: Sequence[Request] = ()
        self._in_flight: deque[tuple[float, StepLoad, int, int, int, float]] = deque(maxlen=_MOST_IN_FLIGHT)

    def _head(self) -> SegmentHead:
        """Return the facts with which a segment begins now."""
        settings = self._scheduler.settings.as_config()
        kept = {name: settings[name] for name in _SETTINGS}
        shares = settings["tenant_shares"]
        if shares is not None:
            weights = {str(self._salt.name(name)): weight for name, weight in shares["weights"].items()}
            kept["tenant_shares"] = {**shares, "weights": weights}
        policy, shadow_policy = self._scheduler.policy_texts
        live = list(self._number_of.values())
        return SegmentHead(
            FORMAT, self._clock.now_s(), self._facts, kept, policy, shadow_policy, self._stretch_tokens, live
        )

    def arrived(self, request: Request, stated: StatedSLO) -> None:
        """Record a request that was enqueued, and what it states."""
        number = self._number_of[request.request_id] = self._next
        self._next += 1
        params, targets, call, salt = request.sampling_params, stated.slo.targets, stated.call, self._salt
        extra_args = None if params is None else params.extra_args
        prompt = prompt_contents(self._scheduler, request, STRETCH_TOKENS)
        self._recorder.add(
            Arrived(
                number,
                request.arrival_time,
                stated.class_id,
                targets.ttft_s,
                targets.tpot_s,
                targets.e2e_s,
                targets.tds,
                request.num_prompt_tokens,
                None if params is None else params.max_tokens,
                stated.output_tokens,
                request.priority,
                salt.name(stated_tenant(extra_args)),
                salt.name(compat.lora_name(request)),
                salt.name(None if call is None else call.key),
                None if call is None else call.due_s,
                None if call is None else call.calls,
                call is not None and call.last,
                salt.contents(prompt),
                self._clock.now_s(),
                stated.first_from_s,
                stated_held(extra_args),
            )
        )

    def number_of(self, request_id: str) -> int | None:
        """Return the number of an unfinished request; ``None`` for one that was not recorded."""
        return self._number_of.get(request_id)

    def preempting(self, victims: Sequence[Request]) -> None:
        """Record which requests the plan is about to preempt."""
        self._planned = frozenset(one.request_id for one in victims)

    def preempted(self, request: Request, is_swapped: bool, now_s: float) -> None:
        """Record that a request lost its KV."""
        number = self._number_of.get(request.request_id)
        if number is not None:
            # An asynchronous step that was in flight may still bring its first token.
            self._recorder.add(Preempted(number, now_s, request.request_id in self._planned, is_swapped))

    def stepped(
        self, output: Any, load: StepLoad, paused: Sequence[Request], now_s: float, plan_s: float = 0.0
    ) -> None:
        """Record a step that was scheduled.

        Args:
            output: The ``SchedulerOutput`` of the step.
            load: The load of the step.
            paused: Requests that the plan passes over.
            now_s: Start of the step, in epoch seconds.
            plan_s: Seconds that a plan made for the step took.
        """
        scheduler = self._scheduler
        self._planned = frozenset()
        resumed = output.scheduled_cached_reqs.resumed_req_ids
        for request_id in admitted_ids(output):
            request, number = scheduler.requests.get(request_id), self._number_of.get(request_id)
            if request is None or number is None:
                continue
            stats = request.prefill_stats
            cached = 0 if stats is None else int(stats.num_cached_tokens)
            self._recorder.add(RequestAdmitted(number, now_s, cached, request_id in resumed))
            if not request.num_output_tokens:
                self._unbegun[request_id] = request
        if paused or self._paused:
            self._repaused(paused, now_s)
        running, waiting = scheduler.get_request_counts()
        free_blocks = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        self._in_flight.append((now_s, load, running, waiting, free_blocks, plan_s))

    def _repaused(self, paused: Sequence[Request], now_s: float) -> None:
        before, self._paused = self._paused, paused
        if before == paused:
            return
        for changed, on in ((set(paused).difference(before), True), (set(before).difference(paused), False)):
            for request in changed:
                number = self._number_of.get(request.request_id)
                if number is not None:
                    self._recorder.add(Paused(number, now_s, on))

    def output(self, now_s: float, accepted: int) -> None:
        """Record that the oldest step in flight gave its output.

        Args:
            now_s: The present time, in epoch seconds.
            accepted: Draft tokens that were accepted in it.
        """
        begun = [one for one, request in self._unbegun.items() if request.num_output_tokens]
        for request_id in begun:
            del self._unbegun[request_id]
            self._recorder.add(FirstToken(self._number_of[request_id], now_s))
        if not self._in_flight:
            return
        start_s, load, running, waiting, free_blocks, plan_s = self._in_flight.popleft()
        self._recorder.add(
            Stepped(
                start_s,
                now_s,
                load.prefill_tokens,
                load.num_prefills,
                load.decode_seqs,
                load.decode_context_tokens,
                load.prefill_attention_tokens2,
                load.draft_tokens or 0,
                running,
                waiting,
                free_blocks,
                accepted,
                plan_s,
            )
        )

    def ended(self, request: Request, now_s: float) -> None:
        """Record that a request left the engine, in whatever way."""
        number = self._number_of.pop(request.request_id, None)
        if number is None:
            return
        if self._unbegun.pop(request.request_id, None) is not None and request.num_output_tokens:
            self._recorder.add(FirstToken(number, now_s))
        prompt = prompt_contents(self._scheduler, request, STRETCH_TOKENS)
        size = self._scheduler.kv_cache_manager.block_pool.hash_block_size if prompt else 1
        stretch = max(STRETCH_TOKENS // size, 1)
        contents = request.block_hashes[stretch - 1 :: stretch][len(prompt) :] if prompt else ()
        reason = _reason(request)
        self._recorder.add(
            RequestEnded(
                number,
                now_s,
                reason not in (ABORTED, ABORTED_OR_STOP_STRING),
                request.num_output_tokens,
                request.num_preemptions,
                self._salt.contents(contents),
                reason,
                self._salt.name(request.request_id) if reason == ABORTED_OR_STOP_STRING else 0,
            )
        )
        if not self._number_of:
            self._recorder.write_soon()

    def policy_changed(self, policy: str, shadow_policy: str | None, now_s: float) -> None:
        """Record other policies."""
        self._recorder.add(PoliciesChanged(now_s, policy, shadow_policy))

    def log_of_plans(self) -> PlanLog:
        """Return a log of plans that becomes a part of this recording."""
        recorder = self._recorder
        return PlanLog(lambda event: recorder.add(event, weight(event)))

    def close(self) -> None:
        """Write what there is, and end the recording."""
        self._recorder.close()
