"""Read vLLM's scheduler and change it, in the same way for each of its versions.

(:mod:`~sloserve.vllm_plugin.engine.private_names` lists which of its names are private.)
"""

import asyncio
from collections.abc import Callable, Container, Iterable, Mapping
from operator import attrgetter
from typing import Any, Final

import vllm.logger
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.request import Request, RequestStatus

from sloserve.core.errors import ConfigError
from sloserve.core.kernels.kv_layout import KVLayout
from sloserve.core.rows import State
from sloserve.engine.step_clock import StepClock
from sloserve.lso.preemption import Holding
from sloserve.scheduler.policy import EngineFacts

_HOLDERS = attrgetter("ref_cnt")

ADAPTIVE: Final = "adaptive_long_prefill_threshold"
"""The attribute that says whether vLLM raises its threshold of long prompts; 0.30 has none."""

BLOCKED_STATUSES = frozenset(
    {
        RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR,
        RequestStatus.WAITING_FOR_REMOTE_KVS,
        RequestStatus.WAITING_FOR_STREAMING_REQ,
    }
)


def check_model(vllm_config: Any) -> None:
    """Raise ConfigError for a diffusion model, since its requests need a scheduler of vLLM's own.

    vLLM chooses that scheduler only where no class of scheduler is given.
    """
    if vllm_config.diffusion_config is not None:
        raise ConfigError(
            f"{vllm_config.model_config.model} is a diffusion model, which sloserve cannot schedule; "
            "serve it with `vllm serve`, without --scheduler-cls"
        )


def configure_logging(args: Any) -> None:
    """Apply the logging flags of ``vllm serve``; 0.30 has none."""
    apply = getattr(vllm.logger, "configure_logging_from_args", None)
    if apply is not None:
        apply(args)


def admission_limit_name(scheduler: Any) -> str:
    """Return the attribute that limits admission: 0.31 separated it from the number of model-runner slots."""
    return "max_num_active_reqs" if hasattr(scheduler, "max_num_active_reqs") else "max_num_running_reqs"


def pause_for_next_step(scheduler: Any, request: Request) -> None:
    """Make the next ``schedule()`` pass ``request`` over; it keeps KV and slot, and the pause ends by itself.

    vLLM skips a running request until ``next_decode_eligible_step`` (made for pipeline parallelism), in every
    configuration; ``schedule()`` first counts ``current_step`` up by one. A longer wait of vLLM's own stays.
    """
    request.next_decode_eligible_step = max(request.next_decode_eligible_step, scheduler.current_step + 2)


def chunk_multiple(scheduler: Any) -> int:
    """Return the number of tokens at multiples of which a prompt's chunks must end, but for the last; 1 for any."""
    return int(scheduler.cache_config.block_size) if scheduler.need_mamba_block_aligned_split else 1


def chunk_tokens(scheduler: Any) -> int | None:
    """Return the most prompt tokens of one request in the next step, by vLLM's own threshold; ``None`` for no limit.

    A request that is alone is not limited since 0.31, and the threshold may be raised to an equal share of a full step.
    """
    own = int(scheduler.scheduler_config.long_prefill_token_threshold)
    if not own or not hasattr(scheduler, ADAPTIVE):
        return own or None
    requests = sum(scheduler.get_request_counts())
    if requests <= 1:
        return None
    share = scheduler.scheduler_config.max_num_batched_tokens // requests if getattr(scheduler, ADAPTIVE) else 0
    return max(own, int(share))


def encoder_tokens(scheduler: Any) -> int | None:
    """Return the tokens of items that the encoder computes in a step and its cache has room for; ``None`` without one.

    An operator's own manager of the cache may not say how much room is left; then only the step's limit is known.
    """
    most = int(scheduler.max_num_encoder_input_tokens)
    if not most:
        return None
    return min(most, int(getattr(scheduler.encoder_cache_manager, "num_freeable_slots", most)))


def encoded_items(scheduler: Any) -> Container[str]:
    """Return the identifiers of the multimodal items in the encoder's cache; none where its manager does not say."""
    cached: Container[str] = getattr(scheduler.encoder_cache_manager, "cached", ())
    return cached


def encoder_lookahead(scheduler: Any) -> int:
    """Return how many tokens before an item without room in the encoder's cache vLLM computes nothing.

    These are the tokens by which draft layers look ahead. Since 0.33 the layers read the item's placeholders instead.
    """
    if hasattr(scheduler, "local_prefill_interval"):  # no name of its own came with that change
        return 0
    return int(scheduler.num_prefill_lookahead)


def defers_prompts(scheduler: Any, throttle_prefills: bool = False) -> bool:
    """Return whether vLLM computes no prompt in this step, because ``--prefill-schedule-interval`` holds prompts back.

    Data parallel ranks of a mixture of experts begin prompts in the same steps: their engine counts the steps and says
    so by ``throttle_prefills``, the argument of ``schedule()``. Since 0.33 every other scheduler counts its own steps.
    No prompt is held back where no request decodes, or where the last step that began prompts left some waiting.
    """
    if scheduler.prefill_capacity_bound or not (throttle_prefills or _within_own_interval(scheduler)):
        return False
    return any(not request.is_prefill_chunk for request in scheduler.running)


def _within_own_interval(scheduler: Any) -> bool:
    """Return whether too few steps have passed since the scheduler's last step with a prompt; never before 0.33."""
    interval = getattr(scheduler, "local_prefill_interval", 1)
    return interval > 1 and scheduler.num_executed_steps + 1 - scheduler.last_prefill_step < interval


def on_preemption(scheduler: Any, notify: Callable[[str], object]) -> None:
    """Have ``notify`` called with the id of each request that is preempted, by vLLM or by a plan.

    (``SchedulerOutput.preempted_req_ids`` leaves out a plan's in some versions.)
    """
    preempt = scheduler._preempt_request

    def preempt_and_notify(request: Request, *args: Any, **kwargs: Any) -> None:
        preempt(request, *args, **kwargs)
        notify(request.request_id)

    scheduler._preempt_request = preempt_and_notify


def admits_new(scheduler: Any) -> bool:
    """Return whether the engine is not being paused.

    While it is, running requests finish, and preempted ones do not come back.
    """
    return bool(scheduler.pause_state == PauseState.UNPAUSED)


def is_blocked(request: Request) -> bool:
    """Return whether a waiting request waits for something that the scheduler cannot give."""
    if request.status == RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR:
        pending = request.structured_output_request
        return pending is None or pending.grammar is None
    return request.status in BLOCKED_STATUSES or holds_loaded_kv(request)


def holds_loaded_kv(request: Request) -> bool:
    """Return whether a waiting request's KV has been loaded: vLLM admits it before all others, whatever their order."""
    return request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED) and request.num_computed_tokens > 0


def is_aborted(request: Request) -> bool:
    """Return whether a request that ends was left by its client or ended by an error."""
    return request.status in (RequestStatus.FINISHED_ABORTED, RequestStatus.FINISHED_ERROR)


def is_complete(request: Request) -> bool:
    """Return whether a request that ends has its whole output."""
    return request.status in (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED)


def state_of(request: Request) -> State:
    """Return the state of an unfinished request that is not blocked."""
    if request.status == RequestStatus.RUNNING:
        return State.RUNNING
    return State.WAITING if request.num_preemptions == 0 else State.PREEMPTED


def live_requests(scheduler: Any) -> list[Request]:
    """Return the unfinished requests in order of arrival.

    (vLLM keeps a finished request while a connector still reads its blocks.)
    """
    return [request for request in scheduler.requests.values() if not request.is_finished()]


def lora_id(request: Request) -> int | None:
    return request.lora_request.lora_int_id if request.lora_request is not None else None


def lora_name(request: Request) -> str | None:
    return request.lora_request.lora_name if request.lora_request is not None else None


def free_blocks(scheduler: Any) -> int:
    return int(scheduler.kv_cache_manager.block_pool.get_num_free_blocks())


def total_blocks(scheduler: Any) -> int:
    return int(scheduler.kv_cache_manager.block_pool.num_gpu_blocks)


def _blocks(scheduler: Any, request: Request) -> list[Any]:
    """Return a request's KV blocks, of all groups, without null blocks, which stand for what a window has left."""
    groups = scheduler.kv_cache_manager.get_blocks(request.request_id).blocks
    return [block for group in groups for block in group if not block.is_null]


def blocks_held(scheduler: Any, request: Request) -> int:
    """Return how many KV blocks a request holds, shared blocks included."""
    return len(_blocks(scheduler, request))


def kv_share(scheduler: Any, request: Request) -> float:
    """Return the share of the KV cache that a request holds, shared blocks included."""
    return blocks_held(scheduler, request) / max(total_blocks(scheduler), 1)


def holding(scheduler: Any, request: Request) -> Holding:
    """Return the KV blocks of a running request: its own, and how many requests hold each of the others."""
    blocks = _blocks(scheduler, request)
    if not scheduler.kv_cache_manager.enable_caching:
        return Holding(len(blocks))
    own = list(map(_HOLDERS, blocks)).count(1)
    if own == len(blocks):
        return Holding(own)
    return Holding(own, {block.block_id: block.ref_cnt for block in blocks if block.ref_cnt > 1})


def _freeing_blocks(scheduler: Any) -> int:
    """Return the blocks that are free once the steps in flight are over; other requests hold the rest of them too."""
    return sum(block.ref_cnt == 1 for _, blocks in scheduler.deferred_frees for block in blocks)


def places_taken(scheduler: Any) -> int:
    """Return the number that vLLM compares with its limit on admission.

    A session between two inputs keeps its place there.
    """
    return len(scheduler.running) + int(scheduler.num_waiting_for_streaming_input)


def free_slots(scheduler: Any, promised: int = 0) -> int:
    """Return how many more requests could be admitted now.

    Args:
        scheduler: vLLM's scheduler.
        promised: Places that requests will take which do not run yet, as for :func:`engine_facts`.
    """
    limit: int = getattr(scheduler, admission_limit_name(scheduler))
    return max(limit - places_taken(scheduler) - promised, 0)


def engine_facts(
    scheduler: Any,
    layout: KVLayout,
    *,
    running: int,
    others: Iterable[Request],
    clock: StepClock,
    monotonic_s: float,
    promised: int = 0,
) -> EngineFacts:
    """Return what the engine can do for the requests of a snapshot, as of ``monotonic_s``, a time of ``clock``.

    Args:
        scheduler: vLLM's scheduler.
        layout: Layout of its KV cache.
        running: Number of requests of the snapshot that run.
        others: Requests that are not in the snapshot and may hold KV.
        clock: Clock of the engine's steps.
        monotonic_s: Present time of ``clock``.
        promised: Places that requests will take which do not run yet: their KV is being loaded.
    """
    limit, taken = getattr(scheduler, admission_limit_name(scheduler)), places_taken(scheduler) + promised
    held = sum(blocks_held(scheduler, request) for request in others)
    return EngineFacts(
        free_blocks=free_blocks(scheduler),
        total_blocks=max(total_blocks(scheduler) - held, 1),
        layout=layout,
        max_num_seqs=max(limit - (taken - running), 1),
        token_budget=scheduler.max_num_scheduled_tokens,
        free_slots=free_slots(scheduler, promised),
        decode_tokens=1 + scheduler.num_spec_tokens,
        chunked_prefill=scheduler.scheduler_config.enable_chunked_prefill,
        chunk_tokens=chunk_tokens(scheduler),
        defers_prompts=scheduler.slo_defers_prompts,
        step_latency=clock.latency,
        busy_s=clock.busy_s(monotonic_s),
        watermark_blocks=int(scheduler.kv_cache_manager.watermark_blocks),
        freeing_blocks=_freeing_blocks(scheduler),
        encoder_tokens=encoder_tokens(scheduler),
    )


def max_loras(scheduler: Any) -> int | None:
    return scheduler.lora_config.max_loras if scheduler.lora_config is not None else None


async def call_every_engine(client: Any, method: str, *args: Any, limit_s: float | None) -> list[Any]:
    """Return each rank's response to a utility call, in order: its result, or the exception that it ended in.

    (A client's plain utility call returns the first rank's response alone.)

    Args:
        client: The client of the engine cores.
        method: Name of the method to call.
        *args: Arguments of the method.
        limit_s: Seconds after which a call ends in a TimeoutError; ``None`` for no limit.
    """
    calls = (client._call_utility_async(method, *args, engine=engine) for engine in client.core_engines)
    return await asyncio.gather(*(asyncio.wait_for(call, limit_s) for call in calls), return_exceptions=True)


def connectors(scheduler: Any) -> list[Any]:
    """Return the scheduler's KV connectors, the connectors of a MultiConnector one by one."""
    if scheduler.connector is None:
        return []
    children: list[Any] = getattr(scheduler.connector, "_connectors", [scheduler.connector])
    return children


def connector_settings(scheduler: Any) -> list[Mapping[str, Any]]:
    """Return what the operator set for each of :func:`connectors`; empty if there is only one."""
    config = scheduler.vllm_config.kv_transfer_config
    return list(config.kv_connector_extra_config.get("connectors", [])) if len(connectors(scheduler)) > 1 else []


def block_ids(scheduler: Any, request: Request) -> tuple[list[int], ...]:
    """Return the KV blocks of a request, of each KV cache group."""
    found: tuple[list[int], ...] = scheduler.kv_cache_manager.get_block_ids(request.request_id)
    return found


def requeue_skipped(scheduler: Any) -> None:
    """Move the requests that vLLM 0.30 skipped and that hold no KV to the front of its waiting queue.

    Later versions do so themselves. Version 0.30 keeps every skipped request in a queue of its own, which it serves
    before the waiting queue. There no plan could order them: a victim that may not come back in the step of its
    preemption would come back in the next one, before all others. And a request without KV in front of one with loaded
    KV, and that finds too little room beside it, would keep both waiting for ever.
    """
    skipped: Any = getattr(scheduler, "skipped_waiting", None)
    if not skipped:
        return
    moved = [request for request in skipped if not blocks_held(scheduler, request)]
    if moved:
        skipped.remove_requests(moved)
        for request in reversed(moved):
            scheduler.waiting.prepend_request(request)


def beside_waiting(scheduler: Any) -> Any:
    """Return the queue of requests that wait with KV; 0.30 has one for all that it passed over."""
    return scheduler.kv_holding_waiting if hasattr(scheduler, "kv_holding_waiting") else scheduler.skipped_waiting
