"""Prefix hits under drafts that want the last block that is found computed again, against vLLM's own look-up."""

from types import SimpleNamespace
from typing import Any

import pytest

from sloserve.core.kernels.kv_layout import KVGroups, KVLayout
from sloserve.vllm_plugin.engine import prefix_cache
from tests.other_vllm import IS_0_33

pytestmark = pytest.mark.vllm

BLOCK = 16
CACHED = 80
"""Tokens of the prompt that was computed before."""


class Cache:
    """vLLM's KV cache manager of one full attention group, which holds a prompt of ``CACHED`` tokens."""

    def __init__(self, **how: Any) -> None:
        import torch
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_manager import KVCacheManager
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

        init_none_hash(sha256)
        lookahead = [how["num_hash_lookahead_tokens"]] if "num_hash_lookahead_tokens" in how else []
        self.hasher = get_request_block_hasher(BLOCK, sha256, *lookahead)
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float16)
        config = KVCacheConfig(
            num_blocks=40, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer.0"], spec)]
        )
        sizes = {"scheduler_block_size": BLOCK, "hash_block_size": BLOCK}
        self.manager = KVCacheManager(config, max_model_len=200, max_in_flight_tokens=200, **sizes, **how)
        self.scheduler = SimpleNamespace(kv_cache_manager=self.manager, block_size=BLOCK)
        self.layout = KVLayout((KVGroups(1, BLOCK),), 0, 200)
        first = self.request("first", CACHED)
        self.manager.new_step_starts()
        assert self.manager.allocate_slots(first, CACHED) is not None

    def request(self, name: str, tokens: int) -> Any:
        from vllm import SamplingParams
        from vllm.v1.request import Request

        return Request(name, [7] * tokens, SamplingParams(max_tokens=9), None, block_hasher=self.hasher)


@pytest.mark.parametrize("before", [0, BLOCK, 3 * BLOCK, 5 * BLOCK])
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"use_eagle": True},
        pytest.param(
            {"num_hash_lookahead_tokens": 1},
            marks=pytest.mark.skipif(not IS_0_33, reason="hashes of blocks cover tokens after them since 0.33"),
        ),
    ],
    ids=["no drafts", "drops a block", "hashes that look ahead"],
)
def test_a_hit_is_as_long_as_vllm_finds_it(how: dict[str, Any], before: int) -> None:
    cache = Cache(**how)
    hits = []
    for tokens in (1, BLOCK, BLOCK + 1, 3 * BLOCK, 3 * BLOCK + 1, CACHED, CACHED + 1, CACHED + 2 * BLOCK):
        request = cache.request(f"again{tokens}", tokens)
        hits.append(int(cache.manager.get_computed_blocks(request)[1]))
        assert prefix_cache.hit_tokens(cache.scheduler, cache.layout, request, before) == hits[-1]
    assert max(hits) == (CACHED if not how else CACHED - BLOCK)
