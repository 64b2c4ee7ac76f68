"""Blocks that a copy reads: known to have been given away, even if a request has written the same content to them."""

from typing import Any

import pytest

from sloserve.vllm_plugin.engine import prefix_cache
from tests.vllm_plugin.engine.test_eagle_hits import BLOCK, CACHED, Cache

pytestmark = pytest.mark.vllm


@pytest.fixture
def cache() -> Any:
    """A cache with a full prompt that ended; nothing else is free."""
    made = Cache()
    pool = made.manager.block_pool
    pool.get_new_blocks(pool.get_num_free_blocks())
    return made


def watched(cache: Any) -> tuple[Any, Any]:
    """Return the request that holds the cache's blocks, and what watches them."""
    first = cache.request("first", CACHED)
    (ids,) = cache.manager.get_block_ids("first")
    return first, prefix_cache.watched(cache.scheduler, ids)


def test_blocks_that_are_found_again_are_there(cache: Any) -> None:
    first, is_there = watched(cache)
    cache.manager.free(first)
    assert is_there()
    cache.manager.block_pool.touch(cache.manager.block_pool.blocks[1:3])
    assert is_there()


def test_a_block_that_gets_the_same_content_again_within_one_step_is_not_there(cache: Any) -> None:
    """A prompt of whole blocks computes its last block again; it gets this very block, and writes to it."""
    first, is_there = watched(cache)
    (before,) = cache.manager.get_block_ids("first")
    cache.manager.free(first)
    again = cache.request("again", CACHED)
    blocks, tokens, *_ = cache.manager.get_computed_blocks(again)
    assert tokens == CACHED - BLOCK
    assert cache.manager.allocate_slots(again, BLOCK, tokens, blocks) is not None
    assert cache.manager.get_block_ids("again") == (before,)
    assert cache.manager.block_pool.blocks[before[-1]].block_hash is not None
    assert not is_there()


def test_blocks_without_content_are_never_there(cache: Any) -> None:
    cache.manager.block_pool.evict_blocks({cache.manager.get_block_ids("first")[0][2]})
    assert not watched(cache)[1]()


def test_blocks_are_not_there_after_a_reset(cache: Any) -> None:
    is_there = watched(cache)[1]
    for block in cache.manager.block_pool.blocks:
        block.reset_hash()  # what reset_prefix_cache does once nothing holds a block
    assert not is_there()
