"""KV caches whose blocks do not follow from tokens: scheduling is vLLM's, and the log says why and what helps."""

import logging
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.vllm


def layers(*windows: int | None) -> Any:
    """Makes a KV cache of one group for each: full attention (``None``), or a window of so many tokens."""
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec

    shape: dict[str, Any] = {"block_size": 16, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float16}
    specs = [FullAttentionSpec(**shape) if w is None else SlidingWindowSpec(**shape, sliding_window=w) for w in windows]
    groups = [KVCacheGroupSpec([f"layer.{i}"], spec) for i, spec in enumerate(specs)]
    return KVCacheConfig(num_blocks=41, kv_cache_tensors=[], kv_cache_groups=groups)


@pytest.mark.parametrize(("windows", "plans"), [((None,), True), ((None, 32), False), ((32,), False)])
def test_plans_are_made_only_where_blocks_follow_from_tokens(
    build: Callable[..., Any],
    request_of: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    windows: tuple[int | None, ...],
    plans: bool,
) -> None:
    from sloserve.vllm_plugin.virtual import engine
    from sloserve.vllm_plugin.virtual.vllm_config import scheduler_arguments

    monkeypatch.setattr(
        engine,
        "scheduler_arguments",
        lambda *args: scheduler_arguments(*args) | {"kv_cache_config": layers(*windows)},
    )
    workload = [request_of(f"r{i}", 0.01 * i, 90, 40, e2e_s=4.0 - 0.3 * i) for i in range(10)]
    monkeypatch.setattr(logging.getLogger("sloserve"), "propagate", True)
    with caplog.at_level(logging.WARNING, logger="sloserve"):
        mine = build("edf:preempt_margin_s=0.1").run(workload)
    stock = build(None).run(workload)
    same = [r.token_times_s.tolist() for r in mine.requests] == [r.token_times_s.tolist() for r in stock.requests]
    assert (mine.counters.get("plans", 0) > 0, same) == (plans, not plans)
    assert ("--disable-hybrid-kv-cache-manager" in caplog.text) == (not plans)


@pytest.mark.parametrize(("subclass", "plans"), [("MLAAttentionSpec", True), ("RSWASpec", False), ("Unknown", False)])
def test_a_subclass_of_full_attention_may_count_its_blocks_otherwise(subclass: str, plans: bool) -> None:
    import torch
    from vllm.v1 import kv_cache_interface as interface

    from sloserve.vllm_plugin.engine.compat import blocks_follow_tokens

    class Unknown(interface.FullAttentionSpec):
        """One that a later vLLM adds."""

    shape: dict[str, Any] = {"block_size": 16, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float16}
    shape |= {"rswa_window": 32} if subclass == "RSWASpec" else {}
    layer = vars(interface).get(subclass, Unknown)(**shape)
    both = interface.UniformTypeKVCacheSpecs(block_size=16, kv_cache_specs={"layer.0": layer})
    for spec in (layer, both):
        assert blocks_follow_tokens([interface.KVCacheGroupSpec(["layer.0"], spec)]) == plans


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
