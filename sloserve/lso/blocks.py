"""How many KV blocks tokens take: the one place that rounds up to whole blocks."""

from typing import overload

from sloserve.core.arrays import IntArray


@overload
def blocks_of(tokens: int, block_size: int) -> int: ...
@overload
def blocks_of(tokens: IntArray, block_size: int) -> IntArray: ...
def blocks_of(tokens: int | IntArray, block_size: int) -> int | IntArray:
    """Return how many KV blocks hold ``tokens`` tokens: one number, or ``[n]`` for ``[n]``.

    Args:
        tokens: Number of tokens, or ``[n]`` of them.
        block_size: Tokens in a block.
    """
    return -(-tokens // block_size)
