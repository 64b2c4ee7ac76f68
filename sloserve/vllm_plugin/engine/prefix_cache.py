"""What vLLM's prefix cache knows of requests: the contents of their blocks, and how much of a waiting one is cached."""

from collections.abc import Callable, Sequence
from operator import attrgetter, is_
from typing import Any, Final

from vllm.v1.request import Request

from sloserve.core.kernels.kv_layout import KVLayout
from sloserve.engine.prefix_hit import blocks_hit, is_unchanged
from sloserve.vllm_plugin.kv_groups import keeps_all_tokens, keeps_states, shares_prefixes

# Steps look at all blocks of copies beside them, and the property takes twice as long as this.
_content_of: Final = attrgetter("_block_hash")


def prompt_contents(scheduler: Any, request: Request, stretch_tokens: int) -> Sequence[Any]:
    """Return the hash of the last block of each whole stretch of a request's prompt; none without a prefix cache.

    Args:
        scheduler: vLLM's scheduler.
        request: The request.
        stretch_tokens: Tokens of a stretch, see :meth:`sloserve.engine.port.EnginePort.prompt_contents`.
    """
    kv_cache_manager = scheduler.kv_cache_manager
    if not kv_cache_manager.enable_caching or request.skip_reading_prefix_cache:
        return ()
    size = kv_cache_manager.block_pool.hash_block_size
    full, stretch = request.num_prompt_tokens // size, max(stretch_tokens // size, 1)
    found: Sequence[Any] = request.block_hashes[stretch - 1 : full : stretch]
    return found


def block_contents(scheduler: Any, request: Request, tokens: int) -> tuple[Sequence[Any], int]:
    """Return the hashes of the full blocks of a request's first tokens, and the tokens of each block.

    There are none without a prefix cache, and where vLLM hashes other blocks than it allocates.

    Args:
        scheduler: vLLM's scheduler.
        request: The request.
        tokens: Number of first tokens.
    """
    kv_cache_manager, block_size = scheduler.kv_cache_manager, int(scheduler.block_size)
    is_usual = kv_cache_manager.enable_caching and kv_cache_manager.block_pool.hash_block_size == block_size
    if not is_usual or request.skip_reading_prefix_cache:
        return (), block_size
    return request.block_hashes[: tokens // block_size], block_size


def hit_tokens(scheduler: Any, layout: KVLayout, request: Request, before: int) -> int:
    """Return the tokens that a waiting request would find in the prefix cache.

    See :func:`sloserve.engine.prefix_hit.blocks_hit`. (``get_computed_blocks`` of vLLM's looks up every block, and may
    emit events.)
    """
    kv_cache_manager, block_size = scheduler.kv_cache_manager, int(scheduler.block_size)
    if not kv_cache_manager.enable_caching or request.skip_reading_prefix_cache:
        return 0
    coordinator, block_pool, hashes = kv_cache_manager.coordinator, kv_cache_manager.block_pool, request.block_hashes
    if not layout.is_full or block_pool.hash_block_size != block_size:
        # vLLM computes the end of a prefix again for layers with a window that the cache does not keep.
        again = int(getattr(scheduler, "prefix_replay_tokens", 0))
        # Only all groups together know, and each may have given up another part of a prefix.
        if before and _still_hit(coordinator, block_pool, hashes, request.num_tokens, before + again):
            return before
        found = int(coordinator.find_longest_cache_hit(hashes, request.num_tokens - 1)[1])
        return max(found - again, 0)
    dropped = unfound_blocks(scheduler)
    most = min((request.num_tokens - 1) // block_size, len(hashes))
    found = blocks_hit(lambda i: block_pool.get_cached_block(hashes[i], [0]), most, before // block_size + dropped)
    return max(found - dropped, 0) * block_size


def _still_hit(coordinator: Any, block_pool: Any, hashes: Sequence[Any], tokens: int, before: int) -> bool:
    """Return whether the hit of ``before`` tokens, of ``tokens``, is there still and no longer one can be.

    vLLM's own look-up asks for each block of a prefix: 1.2 ms for one of 32k tokens.
    """
    size = block_pool.hash_block_size
    places = [place for place, group in enumerate(coordinator.single_type_managers) if shares_prefixes(group)]
    groups = [coordinator.single_type_managers[place] for place in places]
    if any(group.block_size != size for group in groups):
        return False

    def cached(kind: int, block: int) -> bool:
        return block_pool.get_cached_block(hashes[block], [places[kind]]) is not None

    whole = [kind for kind, group in enumerate(groups) if keeps_all_tokens(group)]
    # Of Mamba's states vLLM drops none: no draft head has any.
    dropping = [kind for kind, group in enumerate(groups) if group.use_eagle and not keeps_states(group)]
    # Where there are several groups vLLM looks a block further, and drops that one.
    most = tokens if dropping and len(coordinator.single_type_managers) > 1 else tokens - 1
    return is_unchanged(cached, len(groups), whole, min(most // size, len(hashes)), before // size, dropping)


def watched(scheduler: Any, block_ids: Sequence[int]) -> Callable[[], bool]:
    """Return a function that says whether full blocks still have the content that they have now.

    vLLM takes its content from a block before a request may write it. One that the cache does not know says ``False``.
    A block may get an equal content again in the same step, which then writes it; but that is another object.
    """
    all_blocks = scheduler.kv_cache_manager.block_pool.blocks
    blocks = [all_blocks[block] for block in block_ids]
    contents = list(map(_content_of, blocks))
    if None in contents:
        return lambda: False
    return lambda: all(map(is_, map(_content_of, blocks), contents))  # 30 ns a block


def unfound_blocks(scheduler: Any) -> int:
    """Return how many of the last blocks that the cache has of a prompt are computed again.

    Drafts of EAGLE and MTP want the last one computed again; since 0.33 most of them do not.
    """
    return int(scheduler.kv_cache_manager.coordinator.single_type_managers[0].use_eagle)
