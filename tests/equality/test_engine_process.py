"""An engine that fails while it starts leaves the process as it was, for the engines of later tests."""

import os
from typing import Any

import pytest

from tests.equality.engine import ENGINE_WARNINGS, EngineConfig, started

pytestmark = [pytest.mark.vllm, *(pytest.mark.filterwarnings(w) for w in ENGINE_WARNINGS)]


def process_state() -> dict[str, Any]:
    """Return what an engine changes in its process."""
    import torch
    from vllm import envs
    from vllm.distributed import kv_transfer, parallel_state

    return {
        "environment": dict(os.environ),
        "default dtype": torch.get_default_dtype(),
        "float32 precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "threads": torch.get_num_threads(),
        "set_num_threads": torch.set_num_threads,
        "random numbers": torch.get_rng_state().tolist(),
        "process group": torch.distributed.is_initialized(),
        "vLLM's groups": parallel_state.model_parallel_is_initialized(),
        "KV connector": kv_transfer.has_kv_transfer_group(),
        "cached environment": envs._is_envs_cache_enabled(),
    }


def test_an_engine_that_fails_to_start_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    inside: list[dict[str, Any]] = []

    def fail(*args: Any, **kwargs: Any) -> None:
        inside.append(process_state())
        raise NotImplementedError("as vLLM's fp8 KV cache does without AVX-512")

    monkeypatch.setattr(GPUModelRunner, "initialize_metadata_builders", fail)
    before = process_state()
    config = EngineConfig(async_scheduling=True, prefix_caching=False, host_blocks=4)
    with pytest.raises(NotImplementedError, match="without AVX-512"), started(config, dtype="bfloat16"):
        pass
    (during,) = inside
    changed = {name for name in before if before[name] != during[name]}
    assert changed >= {"environment", "set_num_threads", "process group", "vLLM's groups", "KV connector"}
    assert process_state() == before
