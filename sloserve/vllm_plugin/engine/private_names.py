"""The private names of vLLM that this package reads or calls.

The scheduler interface of vLLM is not public. Whatever of it is used stands in the tables below (a test reads the code
for it). It is checked once, at the start, so that a vLLM that moved something fails with a name instead of a wrong
schedule. Objects of the types in :data:`FIELDS` come and go, so their types are checked.
"""

import inspect
import logging
import os
from typing import Any, Final

import vllm
from vllm.config import (
    CacheConfig,
    KVTransferConfig,
    LoRAConfig,
    ModelConfig,
    ObservabilityConfig,
    ParallelConfig,
    SpeculativeConfig,
    VllmConfig,
)
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.metrics.stats import PrefillStats
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output.request import StructuredOutputRequest

from sloserve.core.errors import ConfigError
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
BLOCK_ATTRIBUTES = ("_block_hash", "block_id", "is_null", "ref_cnt")
PREEMPT_ARGUMENTS = ("request", "drop_stale_output")
"""Arguments of ``_preempt_request``, by name."""
REQUEST_ATTRIBUTES = (
    "lora_request", "next_decode_eligible_step", "num_computed_tokens", "num_in_flight_tokens", "num_preemptions",
    "arrival_time", "block_hashes", "is_finished", "is_prefill_chunk", "max_tokens", "mm_features", "num_prompt_tokens",
    "num_tokens", "priority", "prompt_token_ids", "request_id", "sampling_params", "prefill_stats", "resumable",
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


FIELDS: Final[dict[type, tuple[str, ...]]] = {
    CacheConfig: ("block_size", "gpu_memory_utilization"),
    CachedRequestData: ("num_computed_tokens", "req_ids", "resumed_req_ids"),
    ChunkedLocalAttentionSpec: ("attention_chunk_size",),
    EncoderCacheManager: ("free",),
    EngineCoreOutput: ("new_token_ids", "request_id"),
    EngineCoreOutputs: ("outputs",),
    KVCacheConfig: ("kv_cache_groups", "kv_cache_tensors", "needs_kv_cache_zeroing", "num_blocks"),
    KVCacheGroupSpec: ("kv_cache_spec", "layer_names"),
    KVCacheSpec: ("block_size", "page_size_bytes", "prefix_cacheable"),
    KVConnectorOutput: ("failed_recving", "finished_recving", "kv_connector_worker_meta"),
    KVTransferConfig: ("kv_connector", "kv_connector_extra_config", "kv_role"),
    LoRAConfig: ("max_loras",),
    LoRARequest: ("lora_int_id", "lora_name"),
    MambaSpec: ("mamba_cache_mode", "num_speculative_blocks"),
    ModelConfig: ("is_encoder_decoder", "model", "runner_type"),
    ModelRunnerOutput: ("kv_connector_output", "req_id_to_index", "sampled_token_ids"),
    MultiModalFeatureSpec: ("identifier", "mm_position"),
    NewRequestData: ("num_computed_tokens", "req_id"),
    ObservabilityConfig: ("otlp_traces_endpoint",),
    ParallelConfig: ("pipeline_parallel_size", "tensor_parallel_size"),
    PlaceholderRange: ("get_num_embeds", "length", "offset"),
    PrefillStats: ("num_cached_tokens",),
    SamplingParams: ("extra_args",),
    SchedulerOutput: (
        "num_scheduled_tokens",
        "scheduled_cached_reqs",
        "scheduled_new_reqs",
        "scheduled_spec_decode_tokens",
        "total_num_scheduled_tokens",
    ),
    SlidingWindowSpec: ("sliding_window",),
    SpeculativeConfig: ("method",),
    StructuredOutputRequest: ("grammar",),
    VllmConfig: (
        "additional_config",
        "cache_config",
        "diffusion_config",
        "kv_transfer_config",
        "max_concurrent_batches",
        "model_config",
        "observability_config",
        "parallel_config",
        "scheduler_config",
        "speculative_config",
        "use_v2_model_runner",
    ),
}
"""Names that every tested version has. Names that some version lacks are looked up where they are used."""


def missing_fields() -> list[str]:
    """Return each name of :data:`FIELDS` that its type lacks, as ``Type.name``."""
    return [f"{kind.__name__}.{name}" for kind, names in FIELDS.items() for name in names if name not in _names(kind)]


def _names(kind: type) -> set[str]:
    """Return the names that an object of a type has: methods, properties and fields.

    A field that is only annotated, or that only a constructor sets, is no attribute of its type.
    """
    found = set(dir(kind))
    for base in kind.__mro__:
        found |= vars(base).get("__annotations__", {}).keys()
    for constructor in ("__init__", "__post_init__"):
        code = getattr(getattr(kind, constructor, None), "__code__", None)
        found |= set() if code is None else set(code.co_names)
    return found
