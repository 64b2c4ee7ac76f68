"""Blocks that a copy reads: known to have been given away, even if a request has written the same content to them."""

from typing import Any

import numpy as np
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


@pytest.mark.parametrize("seed", range(3))
def test_no_block_of_a_copy_is_handed_out_unnoticed(seed: int) -> None:
    """Random steps of requests that share prompts, against a record of the blocks that vLLM hands out to be written."""
    rng, cache = np.random.default_rng(seed), Cache()
    manager, pool = cache.manager, cache.manager.block_pool
    manager.free(cache.request("first", CACHED))
    written: set[int] = set()
    get_new_blocks = pool.get_new_blocks

    def noted(count: int) -> Any:
        blocks = get_new_blocks(count)
        written.update(block.block_id for block in blocks)
        return blocks

    pool.get_new_blocks = noted
    running: list[Any] = []
    copies: list[tuple[list[int], Any]] = []
    numbers = {"noticed": 0, "intact": 0, "same content": 0}
    for step in range(1000):
        for request in list(running):
            if rng.random() < 0.4:
                running.remove(request)
                (ids,) = manager.get_block_ids(request.request_id)
                if rng.random() < 0.7:
                    full = ids[: request.num_tokens // BLOCK]
                    copies.append((full, prefix_cache.watched(cache.scheduler, full)))
                    assert copies[-1][1]()
                manager.free(request)
        before = {block.block_id: block.block_hash for block in pool.blocks}
        manager.new_step_starts()
        for number in range(rng.integers(4)):
            request = cache.request(f"{step} {number}", BLOCK * int(rng.integers(1, 9)) + int(rng.choice((0, 0, 5))))
            hit, tokens, *_ = manager.get_computed_blocks(request)
            if manager.allocate_slots(request, request.num_tokens - tokens, tokens, hit) is not None:
                running.append(request)
        numbers["same content"] += any(pool.blocks[i].block_hash == before[i] is not None for i in written)
        for one in list(copies):
            ids, is_there = one
            if is_there():
                numbers["intact"] += 1
                assert written.isdisjoint(ids)
            else:
                numbers["noticed"] += 1
                copies.remove(one)
        written.clear()
    assert min(numbers.values()) > 10, numbers
