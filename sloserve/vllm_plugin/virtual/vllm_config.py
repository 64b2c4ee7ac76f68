"""vLLM's configuration objects for an engine without a device: what its scheduler reads, and nothing else."""

import copy
import json
import math
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    KVTransferConfig,
    LoRAConfig,
    ModelConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
)
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    KVCacheTensor,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.structured_output import StructuredOutputManager

from sloserve.core.kernels.kv_layout import STATE_WINDOW, KVGroups
from sloserve.engine.swap.host.regions import SPACE_KEY
from sloserve.engine.virtual.drafts import Drafts
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.vllm_plugin.server.swap_space import CONNECTOR, MODULE

VOCABULARY = 1024


@lru_cache(maxsize=4)
def _base_config(settings: EngineSettings) -> VllmConfig:
    model = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": settings.max_model_len,
    }
    with tempfile.TemporaryDirectory(prefix="sloserve-virtual-") as folder:
        Path(folder, "config.json").write_text(json.dumps(model), encoding="utf-8")
        config = VllmConfig(
            model_config=ModelConfig(
                model=folder, skip_tokenizer_init=True, dtype="float16", max_model_len=settings.max_model_len
            ),
            cache_config=CacheConfig(
                block_size=settings.block_size, enable_prefix_caching=settings.enable_prefix_caching
            ),
            scheduler_config=SchedulerConfig(
                max_num_seqs=settings.max_num_seqs,
                max_num_batched_tokens=settings.max_num_batched_tokens,
                max_model_len=settings.max_model_len,
                is_encoder_decoder=False,
                enable_chunked_prefill=True,
            ),
            device_config=DeviceConfig("cpu"),
        )
    # The CPU platform turns it off; the engine imitated here is a GPU's, which runs two deep.
    config.scheduler_config.async_scheduling = True
    config.cache_config.num_gpu_blocks = settings.kv_blocks + 1
    return config


def scheduler_arguments(
    settings: EngineSettings, additional_config: Mapping[str, Any], block_bytes: int | None = None
) -> dict[str, Any]:
    """Return keyword arguments with which vLLM's scheduler, or ours, can be built without an engine.

    Args:
        settings: Settings of the engine.
        additional_config: vLLM's, with our section in it.
        block_bytes: Bytes of a KV block, to be swapped to the swap space of ``settings``; ``None`` for no swapping.
    """
    config = copy.copy(_base_config(replace(settings, drafts=None)))
    config.additional_config = dict(additional_config)
    # Limits are narrowed on this object for a step at a time: each scheduler gets its own.
    config.scheduler_config = copy.copy(config.scheduler_config)
    specs = [_spec_of(one, settings) for one in settings.kv_groups or (KVGroups(1, settings.block_size),)]
    sizes = [spec.block_size for spec in specs]
    if settings.max_loras is not None:
        config.lora_config = LoRAConfig(max_loras=settings.max_loras)
    if settings.drafts is not None:
        config.speculative_config = _speculative_config(settings.drafts)
    if any(one.states for one in settings.kv_groups):
        config.cache_config = copy.copy(config.cache_config)
        config.cache_config.mamba_cache_mode = "align"
        config.cache_config.block_size = max(sizes)
    num_groups = [one.num_groups for one in settings.kv_groups] or [1]
    each = [spec for spec, count in zip(specs, num_groups, strict=True) for _ in range(count)]
    tensors = []
    if block_bytes is not None:
        # What the connector reads of a cache: how many bytes a block has.
        size = (settings.kv_blocks + 1) * block_bytes
        tensors = [KVCacheTensor(size=size, layers=["layer.0"], layer_stride=size, block_stride=block_bytes)]
        config.kv_transfer_config = KVTransferConfig(
            kv_connector=CONNECTOR,
            kv_connector_module_path=MODULE,
            kv_role="kv_both",
            kv_load_failure_policy="recompute",
            kv_connector_extra_config={SPACE_KEY: settings.swap_space_gib},
        )
    return {
        "vllm_config": config,
        "kv_cache_config": KVCacheConfig(
            num_blocks=settings.kv_blocks + 1,
            kv_cache_tensors=tensors,
            kv_cache_groups=[KVCacheGroupSpec([f"layer.{i}"], spec) for i, spec in enumerate(each)],
        ),
        "structured_output_manager": StructuredOutputManager(config),
        "block_size": math.lcm(*sizes),
        "hash_block_size": math.gcd(*sizes),
        "log_stats": False,
    }


def _speculative_config(drafts: Drafts) -> SpeculativeConfig:
    """Return vLLM's configuration of an EAGLE head, or of n-grams.

    It is made without its checks, which load the configuration of a draft model: the scheduler reads none.
    """
    config = object.__new__(SpeculativeConfig)
    config.method = "eagle" if drafts.has_layers else "ngram"
    config.num_speculative_tokens = drafts.num_tokens
    return config


def _spec_of(groups: KVGroups, settings: EngineSettings) -> KVCacheSpec:
    """Return vLLM's description of layers that keep what ``groups`` states."""
    size = groups.block_size
    if groups.states or groups.window_tokens == STATE_WINDOW:
        mode = "align" if groups.states else "none" if size >= settings.max_model_len else "all"
        return MambaSpec(
            block_size=size,
            shapes=((size,),),
            dtypes=(torch.float32,),
            mamba_cache_mode=mode,
            num_speculative_blocks=groups.spare_blocks,
        )
    shape: dict[str, Any] = {"block_size": size, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float16}
    if groups.window_tokens:
        return SlidingWindowSpec(**shape, sliding_window=groups.window_tokens)
    if groups.chunk_tokens:
        return ChunkedLocalAttentionSpec(**shape, attention_chunk_size=groups.chunk_tokens)
    return FullAttentionSpec(**shape)
