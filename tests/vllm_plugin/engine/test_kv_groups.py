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
