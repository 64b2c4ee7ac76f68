"""What ``sloserve profile`` says of the KV cache of models whose layers keep it in several ways."""

from collections.abc import Callable
from typing import Any

import pytest

from sloserve.core.errors import ConfigError
from sloserve.core.kernels.kv_layout import STATE_WINDOW, KVGroups

pytestmark = pytest.mark.vllm

BLOCKS, MAX_LEN = 1000, 1024
PAGE_BYTES = 2 * 16 * 2
"""Of a block of 16 tokens in a layer of the virtual engine: keys and values of one number of 2 bytes."""


def facts_of(build: Callable[..., Any], groups: tuple[KVGroups, ...], layers: int) -> Any:
    """Of a virtual engine's KV cache, whose groups have so many layers each."""
    from sloserve.vllm_plugin.kv_facts import KVFacts

    scheduler = build(
        None,
        kv_blocks=BLOCKS,
        block_size=groups[0].block_size,
        kv_groups=groups,
        max_num_seqs=16,
        max_num_batched_tokens=160,
        max_model_len=MAX_LEN,
    ).scheduler
    for i, group in enumerate(scheduler.kv_cache_config.kv_cache_groups):
        group.layer_names = [f"layer.{i}.{j}" for j in range(layers)]
    return KVFacts(scheduler)


def test_a_model_of_full_attention_has_a_profile_as_ever(build: Callable[..., Any]) -> None:
    facts = facts_of(build, (KVGroups(1, 16),), 4).fields(1)
    assert facts["kv_cache"] is None
    assert (facts["kv_capacity_tokens"], facts["block_size"]) == (BLOCKS * 16, 16)
    assert facts["kv_bytes_per_token"] == 4 * PAGE_BYTES // 16


def test_windows_are_told_in_groups_and_blocks(build: Callable[..., Any]) -> None:
    groups = (KVGroups(1, 16), KVGroups(5, 16, window_tokens=128))
    facts = facts_of(build, groups, 4).fields(2)
    assert facts["kv_cache"] == {
        "groups": [{"num_groups": 1, "block_size": 16}, {"num_groups": 5, "block_size": 16, "window_tokens": 128}],
        "blocks": BLOCKS,
        "block_bytes": 2 * 4 * PAGE_BYTES,
        "context_tokens": MAX_LEN,
    }
    # 64 blocks of the whole context, and 5 windows of 127 tokens and half a block.
    assert facts["kv_capacity_tokens"] == int(BLOCKS * MAX_LEN / (64 + 5 * (127 / 16 + 0.5)))
    assert facts["kv_bytes_per_token"] == round(2 * 4 * PAGE_BYTES * BLOCKS / facts["kv_capacity_tokens"])


def test_states_take_one_block_of_any_length(build: Callable[..., Any]) -> None:
    """vLLM's own block size is then the longest context: so many tokens a block would be far too much."""
    groups = (KVGroups(1, 64), KVGroups(3, MAX_LEN, window_tokens=STATE_WINDOW))
    facts = facts_of(build, groups, 1).fields(1)
    assert facts["kv_capacity_tokens"] == int(BLOCKS * MAX_LEN / (16 + 3 * 0.5))
    assert facts["block_size"] == 64
    # As they are with a prefix cache; an engine without one makes blocks of any length of them again.
    assert facts["kv_cache"]["groups"][1] == {"num_groups": 3, "block_size": 64, "states": 2}


def test_a_kind_of_layer_that_cannot_be_counted_is_refused(
    build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sloserve.vllm_plugin import kv_facts

    def unknown(scheduler: Any) -> Any:
        raise LookupError("CircularBufferSpec")

    monkeypatch.setattr(kv_facts, "layout_of", unknown)
    with pytest.raises(
        ConfigError, match="CircularBufferSpec: how many KV blocks layers of this kind take is not known"
    ):
        facts_of(build, (KVGroups(1, 16),), 1)
