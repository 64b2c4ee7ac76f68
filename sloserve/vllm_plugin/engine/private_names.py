"""The private names of vLLM that this package reads or calls.

The scheduler interface of vLLM is not public. Whatever of it is used stands in the tables below, or for objects that
come and go in :mod:`~sloserve.vllm_plugin.engine.vllm_types` (a test reads the code for it). It is checked once, at the
start, so that a vLLM that moved something fails with a name instead of a wrong schedule.
"""

import inspect
import logging
import os
from typing import Any

import vllm
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from sloserve.core.errors import ConfigError
from sloserve.vllm_plugin.engine.vllm_types import missing_fields
from sloserve.vllm_plugin.versions import (
    ALLOW_UNTESTED,
    ALLOW_UNTESTED_FLAG,
    TESTED_VLLM,
    Support,
    patch_warning,
    support_of,
)

_logger = logging.getLogger(__name__)

SCHEDULER_ATTRIBUTES = (
    "block_size", "connector", "current_step", "has_mamba_layers", "is_encoder_decoder", "kv_cache_config",
    "kv_cache_manager", "lora_config", "max_num_running_reqs", "max_num_scheduled_tokens", "num_spec_tokens",
    "num_waiting_for_streaming_input", "pause_state", "requests", "requires_kv_delivery", "running", "scheduler_config",
    "use_pp", "vllm_config", "waiting", "defer_block_free", "finished_recving_kv_req_ids", "recompute_kv_load_failures",
    "_inflight_prefills", "cache_config", "deferred_frees", "encoder_cache_manager", "failed_recving_kv_req_ids",
    "max_model_len", "need_mamba_block_aligned_split", "num_lookahead_tokens", "num_prefill_lookahead",
    "prefill_capacity_bound", "prev_step_scheduled_req_ids", "max_num_encoder_input_tokens",
)  # fmt: skip
SCHEDULER_METHODS = (
    "schedule",
    "update_from_output",
    "add_request",
    "_preempt_request",
    "_free_request",
    "get_request_counts",
    "reset_prefix_cache",
    "_inflight_prefill_reserved_blocks",
    "_free_blocks",
    "set_pause_state",
    "finish_requests",
    "has_requests",
    "shutdown",
)
SCHEDULER_EITHER = (("max_num_active_reqs", "max_num_running_reqs"), ("kv_holding_waiting", "skipped_waiting"))
"""Names of which a version has one: see :mod:`~sloserve.vllm_plugin.engine.compat`."""
SCHEDULER_OPTIONAL = (
    "adaptive_long_prefill_threshold",
    "prefix_replay_tokens",
    "_set_kv_fetch_stage",
    "local_prefill_interval",
    "last_prefill_step",
    "num_executed_steps",
)
"""Names that some version lacks, and that are asked for where they are used."""
CONFIG_ATTRIBUTES = (
    "async_scheduling",
    "enable_chunked_prefill",
    "long_prefill_token_threshold",
    "max_num_batched_tokens",
    "policy",
)
QUEUE_METHODS = ("remove_requests", "prepend_request")
POOL_ATTRIBUTES = (
    "blocks",
    "free_blocks",
    "get_cached_block",
    "get_num_free_blocks",
    "hash_block_size",
    "num_gpu_blocks",
    "touch",
)
BLOCK_ATTRIBUTES = ("block_id", "is_null", "ref_cnt")
PREEMPT_ARGUMENTS = ("request", "drop_stale_output")
"""Arguments of ``_preempt_request``, by name."""
REQUEST_ATTRIBUTES = (
    "lora_request", "next_decode_eligible_step", "num_computed_tokens", "num_in_flight_tokens", "num_preemptions",
    "arrival_time", "block_hashes", "is_finished", "is_prefill_chunk", "max_tokens", "mm_features", "num_prompt_tokens",
    "num_tokens", "prompt_token_ids", "request_id", "sampling_params", "prefill_stats", "resumable",
    "num_output_tokens", "skip_reading_prefix_cache", "status", "structured_output_request", "trace_headers",
    "_output_token_ids", "spec_token_ids",
)  # fmt: skip
KV_MANAGER_ATTRIBUTES = (
    "block_pool",
    "watermark_blocks",
    "coordinator",
    "enable_caching",
    "get_block_ids",
    "get_blocks",
    "pop_blocks_for_free",
)
COORDINATOR_ATTRIBUTES = ("find_longest_cache_hit", "single_type_managers")
COORDINATOR_OPTIONAL = ("enable_partial_hash_hits",)
GROUP_ATTRIBUTES = ("block_size", "kv_cache_spec", "use_eagle")
GROUP_EITHER = ("max_admission_blocks_per_request", "_max_admission_blocks_per_request")


def check_version() -> None:
    """Check that this vLLM is tested, and log a warning for a patch release that is not.

    Raises: ConfigError for any other version, unless the operator has allowed it.
    """
    version = vllm.__version__.partition("+")[0]
    support = support_of(version)
    if support is Support.PATCH:
        _logger.warning("%s", patch_warning(version))
    if support is Support.UNTESTED and os.environ.get(ALLOW_UNTESTED) != "1":
        raise ConfigError(
            f"vLLM {version} is not tested with sloserve; tested: {', '.join(TESTED_VLLM)}. Install one of these, or "
            f"try it anyway with {ALLOW_UNTESTED_FLAG} (sloserve serve) or {ALLOW_UNTESTED}=1 in the environment."
        )


def check_scheduler(scheduler: Any) -> None:
    """Raise ConfigError that names every attribute this package needs and the scheduler no longer has."""
    probe = set(Request.__init__.__code__.co_names) | set(dir(Request))
    missing = [f"Request.{name}" for name in REQUEST_ATTRIBUTES if name not in probe]
    missing += _lacking("Scheduler", scheduler, SCHEDULER_ATTRIBUTES + SCHEDULER_METHODS)
    for names in SCHEDULER_EITHER:
        if len(_lacking("", scheduler, names)) == len(names):
            missing.append(f"Scheduler.{' or '.join(names)}")
    if not missing:
        takes = inspect.signature(Scheduler._preempt_request).parameters
        missing = [f"Scheduler._preempt_request({name})" for name in PREEMPT_ARGUMENTS if name not in takes]
        missing += _lacking("SchedulerConfig", scheduler.scheduler_config, CONFIG_ATTRIBUTES)
        missing += _lacking("RequestQueue", scheduler.waiting, QUEUE_METHODS)
        manager = scheduler.kv_cache_manager
        missing += _lacking("KVCacheManager", manager, KV_MANAGER_ATTRIBUTES)
        missing += _lacking("KVCacheCoordinator", manager.coordinator, COORDINATOR_ATTRIBUTES)
        missing += _lacking("BlockPool", manager.block_pool, POOL_ATTRIBUTES)
    if not missing:
        missing = _lacking("KVCacheBlock", manager.block_pool.blocks[0], BLOCK_ATTRIBUTES)
        for group in manager.coordinator.single_type_managers:
            missing += _lacking(type(group).__name__, group, GROUP_ATTRIBUTES)
            if len(_lacking("", group, GROUP_EITHER)) == len(GROUP_EITHER):
                missing.append(f"{type(group).__name__}.{' or '.join(GROUP_EITHER)}")
    _refuse(missing)


def check_types() -> None:
    """Raise ConfigError naming every field this package needs that a type of vLLM no longer has. Needs no engine."""
    _refuse(missing_fields())


def _refuse(missing: list[str]) -> None:
    if missing:
        raise ConfigError(
            f"vLLM {vllm.__version__} lacks {', '.join(missing)}, which sloserve needs; "
            f"use one of {', '.join(TESTED_VLLM)}"
        )


def _lacking(of: str, owner: Any, names: tuple[str, ...]) -> list[str]:
    return [f"{of}.{name}" for name in names if not hasattr(owner, name)]
