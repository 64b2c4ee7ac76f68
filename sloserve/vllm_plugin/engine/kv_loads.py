"""Loads of requests' KV by connectors, as vLLM's scheduler has them: which run or have ended, how to give one up."""

from collections.abc import Sequence
from typing import Any

from vllm.v1.request import Request, RequestStatus

from sloserve.vllm_plugin.engine import compat


def trust_loads(scheduler: Any, alone: bool) -> None:
    """Have vLLM compute again what failed to load, and free blocks at once if every load waits for the running step.

    (Otherwise vLLM holds blocks back until the steps that may write them are over.)

    Args:
        scheduler: vLLM's scheduler.
        alone: Whether all loads are ours.
    """
    scheduler.recompute_kv_load_failures = True
    if alone:
        scheduler.defer_block_free = False


def is_loading(scheduler: Any, request: Request) -> bool:
    """Return whether a load of KV runs for this request, which is not admitted before it has ended."""
    return (
        request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
        and request.request_id not in scheduler.finished_recving_kv_req_ids
    )


def awaits_load(scheduler: Any, request_id: str) -> bool:
    """Return whether vLLM expects the end of a load of this request's KV; for any other request it raises an error."""
    request = scheduler.requests.get(request_id)
    if request is None:
        return False
    return bool(request.status == RequestStatus.WAITING_FOR_REMOTE_KVS or request.is_finished())


def has_loaded(scheduler: Any, request: Request) -> bool:
    """Return whether a request's KV has been loaded, and it is not admitted yet."""
    if request.status == RequestStatus.WAITING_FOR_REMOTE_KVS:
        return request.request_id in scheduler.finished_recving_kv_req_ids
    return compat.holds_loaded_kv(request)


def fetching(scheduler: Any) -> list[Request]:
    """Return the requests with KV that a connector loads, or has loaded, and that are not admitted yet."""
    return [r for r in compat.beside_waiting(scheduler) if is_loading(scheduler, r) or has_loaded(scheduler, r)]


def take_back(scheduler: Any, request: Request) -> list[Any]:
    """Make a waiting request that loads KV, or has loaded it, wait in front, without KV.

    A request that was never preempted is new to the workers, as in vLLM's own promotion of a loaded request: they know
    nothing of it that could be resumed.

    Returns: its blocks, which now belong to no request; they go back to the pool by :func:`free`.
    """
    blocks: list[Any] = scheduler.kv_cache_manager.pop_blocks_for_free(request)
    compat.beside_waiting(scheduler).remove_requests([request])
    scheduler.waiting.remove_requests([request])
    for name in ("finished_recving_kv_req_ids", "failed_recving_kv_req_ids"):
        getattr(scheduler, name).discard(request.request_id)
    scheduler._inflight_prefills.discard(request)
    if hasattr(scheduler, "_set_kv_fetch_stage"):  # since 0.32
        scheduler._set_kv_fetch_stage(request, None)
    scheduler.encoder_cache_manager.free(request)
    request.status = RequestStatus.PREEMPTED if request.num_preemptions else RequestStatus.WAITING
    request.num_computed_tokens = 0
    scheduler.waiting.prepend_request(request)
    return blocks


def take_over(scheduler: Any, request: Request) -> list[Any]:
    """End a request that was aborted while its KV was loaded, which vLLM has wait for the load.

    Returns: its blocks, as :func:`take_back`.
    """
    blocks: list[Any] = scheduler.kv_cache_manager.pop_blocks_for_free(request)
    scheduler._free_blocks(request)
    return blocks


def free(scheduler: Any, blocks: Sequence[Any]) -> None:
    """Give blocks of a request, in the order of its tokens, back to the pool: the last are used again first."""
    scheduler.kv_cache_manager.block_pool.free_blocks(reversed(blocks))


def reclaim(scheduler: Any, blocks: Sequence[Any]) -> None:
    """Take blocks that :func:`free` gave back out of the pool again; nothing was allocated meanwhile."""
    scheduler.kv_cache_manager.block_pool.touch(blocks)
