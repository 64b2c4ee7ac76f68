"""Places of the bytes of a KV block in vLLM's cache, for each of its layouts; and the blocks that fit into the pool."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sloserve.core.errors import ConfigError
from sloserve.core.kernels.kv_copy import Region
from sloserve.engine.swap.host.memory_limits import GIB

SPACE_KEY: Final = "swap_space_gib"
ENGINES_KEY: Final = "engines_of_host"
"""Keys of the connector's extra config: GiB for all ranks of a host; number of engines that share it, 1 by default."""


@dataclass(frozen=True)
class PoolSize:
    """The pool of one rank.

    Args:
        blocks: Host blocks, the same number on every rank.
        block_bytes: Bytes of one block of this rank's cache.
        ranks: Ranks of this engine, each with a pool of its own.
    """

    blocks: int
    block_bytes: int
    ranks: int

    @classmethod
    def of(cls, vllm_config: Any, kv_cache_config: Any) -> "PoolSize":
        """Return the size of the pool of one rank.

        Raises: ConfigError if the space is no number above 0, or holds no block.
        """
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        space_gib, engines = space_gib_of(extra), extra.get(ENGINES_KEY, 1)
        parallel = vllm_config.parallel_config
        ranks_here = max(parallel.world_size // max(parallel.nnodes_within_dp, 1), 1) * engines
        block_bytes = block_bytes_of(kv_cache_config)
        blocks = int(space_gib * GIB) // ranks_here // block_bytes
        if not blocks:
            raise ConfigError(
                f"{SPACE_KEY} {space_gib:g}: too small for one KV block; each of the {ranks_here} ranks of a host "
                f"needs {block_bytes / GIB:.3g} GiB for one. Give at least {block_bytes * ranks_here / GIB:.3g}"
            )
        return cls(blocks, block_bytes, parallel.world_size)


def space_gib_of(extra: Mapping[str, Any]) -> float:
    """Return the GiB of swap space that the connector's extra config gives. Raises: ConfigError where it gives none."""
    space_gib = extra.get(SPACE_KEY)
    if isinstance(space_gib, bool) or not isinstance(space_gib, int | float) or not space_gib > 0:
        raise ConfigError(f"{SPACE_KEY} of SwapConnector: {space_gib!r} is not a number of GiB above 0")
    return space_gib


def block_bytes_of(kv_cache_config: Any) -> int:
    """Return the bytes of one block in one rank's cache, over all layers, padding included."""
    return int(kv_cache_config.kv_cache_tensors[0].size) // int(kv_cache_config.num_blocks)


def regions_of(kv_cache_config: Any, kv_caches: Mapping[str, Any]) -> list[Region]:
    """Return the runs of bytes that make up a block.

    It is one run in a cache with the block as its outermost dimension, else one a layer, or one a layer and head where
    the heads lie outside the blocks.

    Args:
        kv_cache_config: vLLM's configuration of the cache.
        kv_caches: A view of each layer's cache, all of one allocation.

    Raises: ValueError for a cache that is laid out otherwise.
    """
    num_blocks, found = int(kv_cache_config.num_blocks), list[Region]()
    for place in kv_cache_config.kv_cache_tensors:
        first = kv_caches[place.layers[0]]
        base, span = int(first.untyped_storage().data_ptr()), num_blocks * place.block_stride
        if first.data_ptr() != base + place.offset:
            raise ValueError(f"the KV cache of {place.layers[0]} does not begin where vLLM's configuration says")
        if place.layer_stride < span:
            # Blocks hold all layers, other places included: one run, from the allocation's first byte.
            runs = [Region(base, place.block_stride, place.block_stride)]
        else:
            if place.layer_stride % span:
                raise ValueError(f"a layer's KV cache of {place.layer_stride} bytes is not {num_blocks} blocks a head")
            heads = place.layer_stride // span
            runs = [
                Region(base + place.offset + run * span, place.block_stride, place.block_stride)
                for run in range(len(place.layers) * heads)
            ]
        found += [run for run in runs if run not in found]
    return found
