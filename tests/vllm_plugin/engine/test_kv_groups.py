"""KV caches of several groups of layers: how their blocks are counted, and which are left to vLLM."""

import logging
from collections.abc import Callable
from typing import Any

import pytest

from sloserve.core.kernels.kv_layout import KVGroups

pytestmark = pytest.mark.vllm


def unknown_layers(kind: str) -> Any:
    """Makes the layers of a KV cache of ``kind``, none of which can be counted."""
    import torch
    from vllm.v1 import kv_cache_interface as interface

    class Unknown(interface.FullAttentionSpec):
        """One that a later vLLM adds."""

    shape: dict[str, Any] = {"block_size": 16, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float16}
    return interface.RSWASpec(**shape, rswa_window=32) if kind == "RSWASpec" else Unknown(**shape)


@pytest.mark.parametrize("kind", ["RSWASpec", "Unknown"])
def test_layers_that_are_not_known_by_their_exact_type_are_left_to_vllm(
    build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """A subclass may give blocks back otherwise. Log and status say which layer it is."""
    from sloserve.vllm_plugin.virtual import vllm_config

    build(None)  # vLLM registers its own kinds of layers with the first engine
    layer = unknown_layers(kind)
    monkeypatch.setattr(vllm_config, "_spec_of", lambda groups, settings: layer)
    if kind == "Unknown":
        from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
        from vllm.v1.kv_cache_interface import FullAttentionSpec
        from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry

        KVCacheSpecRegistry.register(type(layer), FullAttentionManager, uniform_type_base_spec=FullAttentionSpec)
    monkeypatch.setattr(logging.getLogger("sloserve"), "propagate", True)
    with caplog.at_level(logging.WARNING, logger="sloserve"):
        scheduler = build("edf").scheduler
    assert kind in scheduler.status()["plans_off"] and kind in caplog.text
    assert build("fcfs").scheduler.status()["plans_off"] is None  # it plans nothing


def test_a_policy_that_counts_tokens_by_block_size_makes_no_plans_for_windows(
    build: Callable[..., Any], request_of: Callable[..., Any]
) -> None:
    both = (KVGroups(1, 16), KVGroups(2, 16, window_tokens=32))
    workload = [request_of(f"r{i}", 0.01 * i, 90, 40) for i in range(10)]
    size: dict[str, Any] = {"kv_groups": both, "kv_blocks": 120}
    mine = build("econo-paper", **size)
    reason = mine.scheduler.status()["plans_off"]
    assert "counts tokens / block size" in reason and "counts tokens" not in str(
        build("econo-paper").scheduler.status()
    )
    times = [
        [r.token_times_s.tolist() for r in engine.run(workload).requests] for engine in (mine, build(None, **size))
    ]
    assert times[0] == times[1]
    mine.scheduler.set_policies("edf")
    assert mine.scheduler.status()["plans_off"] is None


@pytest.mark.parametrize("cache", [False, True])
def test_null_blocks_are_no_blocks(build: Callable[..., Any], request_of: Callable[..., Any], cache: bool) -> None:
    """vLLM puts one in the place of each block that a window has left, and counts nobody who holds it."""
    from sloserve.vllm_plugin.engine import compat

    engine = build("fcfs", enable_prefix_caching=cache)
    scheduler = engine.scheduler
    seen: list[tuple[int, int]] = []

    def look(output: Any) -> None:
        for request in scheduler.running:
            (blocks,) = scheduler.kv_cache_manager.coordinator.get_blocks(request.request_id)
            held = compat.blocks_held(scheduler, request)
            null, first = scheduler.kv_cache_manager.block_pool.null_block, blocks[0]
            blocks[0], null.ref_cnt = null, 3
            left = compat.holding(scheduler, request)
            assert (compat.blocks_held(scheduler, request), left.shared) == (held - 1, {})
            seen.append((held, left.own))
            blocks[0], null.ref_cnt = first, 0

    engine.on_step = look
    engine.run([request_of("a", 0.0, 40, 20)])
    assert seen and all(own == held - 1 for held, own in seen)
