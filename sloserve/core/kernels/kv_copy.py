"""Copies of KV blocks between a cache in this machine's memory and a pool of packed blocks.

A cache is described by regions alone, so that one copy serves every layout (csrc/include/sloserve/kv_copy_plan.h). A
packed block is one run of bytes: the regions' bytes, in the regions' order. On a GPU csrc/cuda does the same.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sloserve.core.arrays import IntArray
from sloserve.core.kernels import _csrc

MOST_THREADS = _csrc.MOST_KV_THREADS


class Region(NamedTuple):
    """One run of bytes of every block: the bytes of block b begin at the address ``base + b * stride``."""

    base: int
    stride: int
    bytes: int


def block_bytes(regions: Sequence[Region]) -> int:
    """Return the bytes of a packed block."""
    return sum(region.bytes for region in regions)


def copy_blocks(
    regions: Sequence[Region],
    num_blocks: int,
    pool_base: int,
    pool_blocks: int,
    device_ids: ArrayLike,
    host_ids: ArrayLike,
    *,
    to_host: bool,
    threads: int = 1,
) -> None:
    """Copy block ``device_ids[i]`` of the cache to block ``host_ids[i]`` of the pool, or back, for each of n.

    The function returns when all bytes are written, and releases the GIL until then. The regions' memory and the pool's
    must stay allocated meanwhile, and no other copy may write the same blocks.

    Args:
        regions: Runs of bytes of which a block consists.
        num_blocks: Number of blocks of the cache.
        pool_base: Address of the pool.
        pool_blocks: Number of packed blocks that the pool holds.
        device_ids: Ids of the cache's blocks, each at most once, ``[n]``.
        host_ids: Ids of the pool's blocks, each at most once, ``[n]``.
        to_host: Whether to copy to the pool; else the copy goes back to the cache.
        threads: Most threads to use, 1 to :data:`MOST_THREADS`; few bytes take fewer.

    Raises: ValueError, before a byte moves, for ids out of range or given twice, overlapping blocks, or no region.
    """
    _csrc.copy_blocks(
        np.array(regions, np.int64).reshape(-1, 3),
        num_blocks=num_blocks,
        pool_base=pool_base,
        pool_blocks=pool_blocks,
        device_ids=_ids("device_ids", device_ids),
        host_ids=_ids("host_ids", host_ids),
        to_host=to_host,
        threads=threads,
    )


def _ids(name: str, ids: ArrayLike) -> IntArray:
    column = np.ascontiguousarray(ids, dtype=np.int64)
    if column.ndim != 1:
        raise ValueError(f"{name}: shape {column.shape} is not one-dimensional")
    return column
