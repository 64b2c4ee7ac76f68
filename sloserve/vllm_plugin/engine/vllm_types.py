"""The fields that this package reads of vLLM's types: configurations, descriptions of a KV cache, steps and results.

Objects of these types come and go, so their types are looked at, once, at the start.
"""

from typing import Final

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
from vllm.v1.structured_output.request import StructuredOutputRequest

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
    LoRARequest: ("lora_int_id",),
    MambaSpec: ("mamba_cache_mode", "num_speculative_blocks"),
    ModelConfig: ("is_encoder_decoder", "model", "runner_type"),
    ModelRunnerOutput: ("kv_connector_output", "req_id_to_index", "sampled_token_ids"),
    MultiModalFeatureSpec: ("identifier", "mm_position"),
    NewRequestData: ("num_computed_tokens", "req_id"),
    ObservabilityConfig: ("otlp_traces_endpoint",),
    ParallelConfig: ("pipeline_parallel_size",),
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
