"""KV caches as vLLM groups the layers of DeepSeek-V4 and of models with rings, and decode context parallelism."""

import copy
import dataclasses
import math
from collections.abc import Callable
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sloserve.core.kernels.kv_layout import RING_WINDOW, STATE_WINDOW, KVGroups, KVLayout
from tests.other_vllm import IS_0_33, not_with_0_30
from tests.vllm_plugin.engine.test_kv_layout import POLICIES, Watched

pytestmark = pytest.mark.vllm

MAX_LEN = 4096
RANKS = 4
REQUESTS = 24
Specs = dict[str, Any]


def deepseek_v4(**more: Any) -> Specs:
    """Return the caches of DeepSeek-V4's layers, whose compression ratios are 1, 4 and 128.

    Source: vLLM's models/deepseek_v4/attention.py and compressor.py. more: fields of the windows of its attention.
    """
    import torch
    from vllm.v1.kv_cache_interface import MLAAttentionSpec, SlidingWindowMLASpec

    latent: dict[str, Any] = {
        "num_kv_heads": 1, "head_size": 512, "dtype": torch.uint8, "cache_dtype_str": "fp8_ds_mla",
        "model_version": "deepseek_v4", "state_content_bytes": 584, "alignment": 576,
    }  # fmt: skip
    state: dict[str, Any] = {"num_kv_heads": 1, "dtype": torch.float32, "alignment": 576}
    found: Specs = {}
    for layer, ratio in enumerate([1, 1] + [4, 128] * 6):
        found[f"{layer}.window"] = SlidingWindowMLASpec(block_size=64, sliding_window=128, **latent, **more)
        if ratio == 1:
            continue
        found[f"{layer}.compressed"] = MLAAttentionSpec(block_size=256, tokens_per_state=ratio, **latent)
        size, width, window = {4: (4, 2048, 8), 128: (8, 1024, 128)}[ratio]
        found[f"{layer}.compressor"] = SlidingWindowMLASpec(
            block_size=size, head_size=width, sliding_window=window, **state
        )
        if ratio == 4:
            index = {"num_kv_heads": 1, "head_size": 132, "dtype": torch.uint8, "alignment": 576}
            found[f"{layer}.index"] = MLAAttentionSpec(block_size=256, tokens_per_state=4, **index)
            found[f"{layer}.index_compressor"] = SlidingWindowMLASpec(
                block_size=4, head_size=512, sliding_window=8, **state
            )
    return found


def with_rings() -> Specs:
    """Return full attention, windows, compressed indexes, and rings as of Qwen4, GLM-5.3 and DeepSeek-V4.1."""
    import torch
    from vllm.v1.kv_cache_interface import (
        CircularBufferSpec,
        FullAttentionSpec,
        MLAAttentionSpec,
        SlidingWindowSpec,
    )

    shape: dict[str, Any] = {"num_kv_heads": 1, "head_size": 128, "dtype": torch.float16}
    found: Specs = {}
    for layer in range(4):
        found[f"{layer}.attention"] = FullAttentionSpec(block_size=256, **shape)
        found[f"{layer}.index"] = MLAAttentionSpec(block_size=256, tokens_per_state=4, **shape)
        found[f"{layer}.ring"] = CircularBufferSpec(block_size=16, head_size_v=0, **shape)
        found[f"{layer}.window"] = SlidingWindowSpec(block_size=256, sliding_window=512, **shape)
    return found


def latent_attention() -> Specs:
    """Return the caches of four layers of multi-head latent attention (DeepSeek-V3, Kimi-K2)."""
    import torch
    from vllm.v1.kv_cache_interface import MLAAttentionSpec

    shape: dict[str, Any] = {"num_kv_heads": 1, "head_size": 576, "dtype": torch.float16}
    return {f"{layer}.attention": MLAAttentionSpec(block_size=64, **shape) for layer in range(4)}


def grouped(config: Any, specs: Specs) -> list[Any]:
    """Return vLLM's KV cache groups of these layers in the memory layout of its GPU kernels, blocks outermost."""
    from vllm.v1.kv_cache_interface import KVCacheGroupSpec

    module = import_module(f"vllm.v1.core.{'kv_cache_planning' if IS_0_33 else 'kv_cache_utils'}")

    config = copy.copy(config)
    config.cache_config = SimpleNamespace(
        get_resolved_kv_cache_layout=lambda: SimpleNamespace(is_block_outermost=True),
        mamba_cache_mode="none",
    )
    groups = module._get_packed_kv_cache_groups(config, specs)
    if groups is None:  # all layers take pages of one size
        return [KVCacheGroupSpec(list(specs), next(iter(specs.values())))]
    firsts = (next(iter(getattr(g.kv_cache_spec, "kv_cache_specs", {}).values()), g.kv_cache_spec) for g in groups)
    return [KVCacheGroupSpec(g.layer_names, first) for g, first in zip(groups, firsts, strict=True)]


@pytest.fixture
def build_model(build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Builds an engine whose layers have these caches. ranks: of decode context parallelism."""
    from sloserve.vllm_plugin.virtual import engine, vllm_config

    def make(specs: Specs, policy: str | None, blocks: int, ranks: int = 1) -> Any:
        def arguments(*args: Any, **kwargs: Any) -> dict[str, Any]:
            found = vllm_config.scheduler_arguments(*args, **kwargs)
            groups = grouped(found["vllm_config"], specs)
            # As vLLM's resolve_kv_cache_block_sizes does.
            sizes = [ranks * g.kv_cache_spec.block_size for g in groups if g.kv_cache_spec.prefix_cacheable]
            config = found["vllm_config"] = copy.copy(found["vllm_config"])
            config.parallel_config = copy.copy(config.parallel_config)
            config.parallel_config.decode_context_parallel_size = ranks
            found["kv_cache_config"] = dataclasses.replace(found["kv_cache_config"], kv_cache_groups=groups)
            return found | {"block_size": math.lcm(*sizes), "hash_block_size": math.gcd(*sizes)}

        monkeypatch.setattr(engine, "scheduler_arguments", arguments)
        size = {"block_size": 256, "max_num_seqs": 16, "max_num_batched_tokens": 256, "max_model_len": MAX_LEN}
        # The settings' own check of the size knows one group of full attention: blocks are given to vLLM alone.
        made = build(policy, section={"plan_share": 1.0}, kv_blocks=blocks, enable_prefix_caching=True, **size)
        assert made.scheduler.kv_cache_manager.block_pool.num_gpu_blocks == blocks + 1
        return made

    return make


def serve(engine: Any, request_of: Callable[..., Any], layout: KVLayout) -> tuple[Watched, Any]:
    """Serve requests, half of which share prefixes. Returns what was watched, and the log."""
    watched = Watched(engine, layout)
    rng, workload = np.random.default_rng(5), []
    for i in range(REQUESTS):
        prompt = int(rng.integers(20, 2500))
        targets = {"e2e_s": (9.0, 30.0, 2.5, 60.0)[i % 4], "ttft_s": 2.0}
        shared = {"prefix_ids": tuple(range(-(-prompt // 16)))} if i % 2 else {}
        workload.append(request_of(f"r{i}", 0.02 * i, prompt, int(rng.integers(4, 300)), **targets, **shared))
    log = engine.run(workload)
    assert [r.outcome.name for r in log.requests] == ["COMPLETED"] * REQUESTS
    assert not log.counters.get("plan_errors", 0) and not log.counters.get("internal_errors", 0)
    pool = engine.scheduler.kv_cache_manager.block_pool
    assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1  # all came back
    return watched, log


def serve_scarce(
    build_model: Callable[..., Any], request_of: Callable[..., Any], specs: Specs, ranks: int = 1
) -> tuple[KVLayout, list[Watched]]:
    """Serve the workload under stock, fcfs and planning policies with few blocks; returns what was watched of each."""
    from sloserve.vllm_plugin.kv_groups import layout_of

    layout = layout_of(build_model(specs, None, 20_000, ranks).scheduler)
    blocks = int(layout.to_admit(np.array([MAX_LEN]))[0]) + 40
    found = []
    for policy in (None, "fcfs", *POLICIES):
        engine = build_model(specs, policy, blocks, ranks)
        if policy is not None:
            assert engine.scheduler.status()["plans_off"] is None
        watched, log = serve(engine, request_of, layout)
        assert watched.checked > 2500
        assert policy in (None, "fcfs") or log.counters["plans"] > 100
        found.append(watched)
    assert found[1].steps == found[0].steps, "fcfs is not stock"
    assert sum(watched.preempted for watched in found) > 20
    return layout, found


def test_deepseek_v4_is_counted_as_vllm_counts_it(
    build_model: Callable[..., Any], request_of: Callable[..., Any]
) -> None:
    layout, found = serve_scarce(build_model, request_of, deepseek_v4())
    assert [(g.num_groups, g.block_size, g.window_tokens) for g in layout.groups] == [
        (2, 64, 128), (1, 256, 0), (1, 4, 8), (1, 8, 128),
    ]  # fmt: skip
    assert [watched.above for watched in found] == [0] * len(found)


@pytest.mark.whole
@not_with_0_30("it has no bounded replay")
def test_deepseek_v4_with_bounded_replay_never_holds_more_than_is_counted(
    build_model: Callable[..., Any], request_of: Callable[..., Any]
) -> None:
    """Of a prefix that was found its windows hold less, at most two blocks a group, until they have been passed."""
    _, found = serve_scarce(build_model, request_of, deepseek_v4(bounded_replay=True))
    assert all(watched.above <= 1.2 * watched.checked for watched in found)


def test_a_ring_is_one_block_of_each_request(build_model: Callable[..., Any], request_of: Callable[..., Any]) -> None:
    layout, found = serve_scarce(build_model, request_of, with_rings())
    assert KVGroups(1, MAX_LEN, window_tokens=RING_WINDOW) in layout.groups
    assert [watched.above for watched in found] == [0] * len(found)


def test_decode_context_parallelism_is_counted_in_blocks_of_all_ranks(
    build_model: Callable[..., Any], request_of: Callable[..., Any]
) -> None:
    layout, found = serve_scarce(build_model, request_of, latent_attention(), RANKS)
    assert layout == dataclasses.replace(KVLayout.full(64 * RANKS), max_model_len=MAX_LEN)
    assert [watched.above for watched in found] == [0] * len(found)


def test_a_ring_counts_one_block_at_every_length() -> None:
    """Beside a state of Mamba, which is counted alike but for its window."""
    ring, state = (KVLayout((KVGroups(3, MAX_LEN, window_tokens=w),), 4, MAX_LEN) for w in (RING_WINDOW, STATE_WINDOW))
    computed = np.array([1, 16, 17, MAX_LEN - 1])
    for layout in (ring, state):
        assert layout.held(computed, np.zeros(4, np.int64)).tolist() == [3] * 4
        assert layout.growth(computed - 1, 1).tolist() == [3, 0, 0, 0]
        assert layout.to_admit(computed).tolist() == [3] * 4


@pytest.mark.parametrize("kind", ["ring", pytest.param("replay", marks=not_with_0_30("it has no bounded replay"))])
def test_hits_are_asked_of_the_groups_that_the_cache_keeps(
    build_model: Callable[..., Any], request_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A ring keeps nothing for others; what bounded replay computes again is no part of a hit."""
    from sloserve.vllm_plugin.engine import prefix_cache
    from sloserve.vllm_plugin.kv_groups import layout_of

    engine = build_model(with_rings() if kind == "ring" else deepseek_v4(bounded_replay=True), "auto", 1000)
    scheduler, kept = engine.scheduler, {}
    monkeypatch.setattr(scheduler, "add_request", lambda request: kept.setdefault(request.request_id, request))
    engine._add([request_of("again", 0.0, 2600, 4, prefix_ids=(1, 2))], 0.0)
    monkeypatch.undo()
    layout, request = layout_of(scheduler), kept["again"]
    engine.run([request_of("first", 0.0, 2600, 4, prefix_ids=(1, 2))])
    hit = prefix_cache.hit_tokens(scheduler, layout, request, 0)
    assert hit == prefix_cache.hit_tokens(scheduler, layout, request, hit) == (2560 if kind == "ring" else 2560 - 128)
    scheduler.add_request(request)
    taken = scheduler.schedule().num_scheduled_tokens["again"]
    assert request.num_computed_tokens - taken == hit
