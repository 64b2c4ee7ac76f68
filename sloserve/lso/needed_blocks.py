"""KV blocks of a request that its next token reads: swap space keeps them of a preempted request, and loads them again.

Full attention reads all computed tokens, a window its last ones, a local chunk the tokens since the last multiple of
the chunk, and a Mamba layer the state at the last token. What is before that vLLM has given back, and a request that is
admitted with KV from a connector gets no blocks for it.

Source: ``get_num_skipped_tokens`` of the managers in vLLM's v1/core/single_type_kv_cache_manager.py.
"""

from collections.abc import Sequence
from typing import overload

import numpy as np

from sloserve.core.arrays import IntArray
from sloserve.core.kernels.kv_layout import STATE_WINDOW, KVGroups, KVLayout
from sloserve.lso.blocks import blocks_of


def keeps_state(groups: KVGroups) -> bool:
    """Return whether a block holds the state at one token (Mamba), which serves no earlier token."""
    return bool(groups.states) or groups.window_tokens == STATE_WINDOW


@overload
def unneeded_blocks(groups: KVGroups, tokens: int) -> int: ...
@overload
def unneeded_blocks(groups: KVGroups, tokens: IntArray) -> IntArray: ...
def unneeded_blocks(groups: KVGroups, tokens: int | IntArray) -> int | IntArray:
    """Return how many blocks of one group, from the first, the token after ``tokens`` computed ones does not read."""
    if groups.states:
        first = tokens - 1
    elif groups.window_tokens:
        first = tokens - groups.window_tokens + 1
    else:
        first = tokens - tokens % groups.chunk_tokens if groups.chunk_tokens else tokens * 0
    return first * (first > 0) // groups.block_size


def needed_blocks(layout: KVLayout, tokens: IntArray) -> IntArray:
    """Return how many blocks of all groups the token after ``tokens`` computed ones reads, in the shape of ``tokens``.

    Args:
        layout: Layout of the KV cache.
        tokens: Computed tokens, at least 0 each, ``[n]``.
    """
    found: IntArray = np.zeros_like(tokens)
    for one in layout.groups:
        found += one.num_groups * (blocks_of(tokens, one.block_size) - unneeded_blocks(one, tokens))
    return found


class NeededBlocks:
    """The places of blocks in the block tables of a request, one table for each KV cache group.

    Args:
        groups: The KV cache groups, in the order of the block tables.
    """

    def __init__(self, groups: Sequence[KVGroups]) -> None:
        self._groups = tuple(one for one in groups for _ in range(one.num_groups))
        self._has_states = any(map(keeps_state, self._groups))
        self._gives_back = any(one.window_tokens or one.chunk_tokens or one.states for one in self._groups)

    @property
    def keeps_all(self) -> bool:
        """Whether a request reads all of its blocks, so that kept blocks serve any fewer tokens as well."""
        return not self._gives_back

    def full_blocks(self, tokens: int) -> list[int]:
        """Return how many blocks ``tokens`` tokens fill, in each group."""
        return [tokens // one.block_size for one in self._groups]

    def least(self, tokens: int, least: int) -> int:
        """Return the fewest computed tokens that kept blocks can serve.

        A state serves the tokens that it was computed from and no fewer; full attention serves any.

        Args:
            tokens: Computed tokens of the request.
            least: The fewest computed tokens with which the request may go on.
        """
        if not self._gives_back:
            return 0
        return tokens if self._has_states else min(least, tokens)

    def places(self, least: int, tokens: int, hit: int = 0) -> list[range]:
        """Return the places, in each group, of the blocks that a request reads which goes on after ``least`` tokens.

        Args:
            least: The fewest computed tokens with which it may go on.
            tokens: The most.
            hit: Tokens, at the front, of which the request has the blocks already. A multiple of each block size.
        """
        return [
            range(max(unneeded_blocks(one, least), hit // one.block_size), blocks_of(tokens, one.block_size))
            for one in self._groups
        ]


def count(places: Sequence[range]) -> int:
    """Return how many blocks these are."""
    return sum(map(len, places))
