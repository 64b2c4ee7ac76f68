"""How many blocks of the KV cache a request takes, whatever its layers keep.

vLLM gives layers that keep the same tokens a group of their own, and all groups blocks of one pool. So a token may take
a block in each group, and a request's blocks do not follow from its tokens and one block size: layers with a window
give back what has left it, Mamba layers keep a state.

Source: vLLM's v1/core/single_type_kv_cache_manager.py and kv_cache_manager.py (``allocate_slots``).
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from sloserve.core.kernels import _csrc

MOST_TOKENS = 2**32 - 1
"""The longest context that is counted."""


STATE_WINDOW = 2
"""Window of a Mamba layer, which needs the state at the last token alone."""

RING_WINDOW = 1
"""Window of a ring buffer (vLLM's ``CircularBufferSpec``), which takes one block as long as the longest context."""


class KVGroups(NamedTuple):
    """KV cache groups that are counted alike.

    At most one of ``window_tokens``, ``chunk_tokens`` and ``states`` is set; if none is, all tokens are kept.

    Args:
        num_groups: Number of groups.
        block_size: Tokens in a block.
        window_tokens: Tokens that the next token sees, itself included; the block of a token beyond them is given back.
            STATE_WINDOW for a Mamba layer, RING_WINDOW for a ring.
        chunk_tokens: Size of a chunk in tokens; tokens before the last multiple of it are given back.
        states: Number of steps of which a state is kept at the same time, for Mamba layers that keep a state at the end
            of each chunk (``align``).
        checkpoints: 1 if a chunk also keeps a state inside it: only the last chunk of a prompt, or each chunk, as
            ``--prefix-cache-retention-interval`` has the prefix cache keep them.
        spare_blocks: Blocks beside the blocks of tokens, for the states of draft tokens.
        most_blocks: Most blocks that vLLM wants free to admit a request; 0 for no limit.
        copied_blocks: 1 if a prefix that ends inside a block is copied into a block of the request's own.
    """

    num_groups: int
    block_size: int
    window_tokens: int = 0
    chunk_tokens: int = 0
    states: int = 0
    checkpoints: int = 0
    spare_blocks: int = 0
    most_blocks: int = 0
    copied_blocks: int = 0

    @property
    def keeps_all(self) -> bool:
        """Whether a request of n tokens holds n / block size blocks in each group."""
        return not any(self[2:])


@dataclass(frozen=True)
class KVLayout(_csrc.KvLayout):
    """The groups of one KV cache. Tokens and blocks are counted for one request, over all groups.

    Counts are vLLM's own, with two exceptions: counts of Mamba states at chunk ends may be above vLLM's, and of drafts
    that were rejected the request may hold the blocks besides, and take as many less. The compiled class counts; its
    methods that take counts, ``[n]``, take contiguous arrays of int64 alone:

    - ``held(computed, in_flight)``: blocks held, ``[n]``, once vLLM has given back what computed tokens no longer need
      that are not in flight; it does so when it next schedules the request.
    - ``growth(computed, tokens)``: blocks that each request takes in a step of ``tokens`` beyond the computed ones,
      ``[n]``. What a window gives back in the same step is not taken off, so a sum may be above what the step takes.
    - ``most_growth(tokens, requests)``: most blocks that ``requests`` requests take in a step of ``tokens`` tokens in
      all.
    - ``to_admit(tokens)``: blocks that must be free to admit requests of which the prefix cache has nothing, ``[n]``.

    Args:
        groups: The groups of the cache, at least one.
        lookahead_tokens: Slots beyond the tokens of a step, for drafts.
        max_model_len: Context length in tokens beyond which no slots are taken.

    Raises:
        ValueError: a field is out of its range.
    """

    groups: tuple[KVGroups, ...]
    lookahead_tokens: int = 0
    max_model_len: int = MOST_TOKENS

    def __post_init__(self) -> None:
        groups = [_csrc.KvGroups(**group._asdict()) for group in self.groups]
        super().__init__(groups, self.lookahead_tokens, self.max_model_len)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.groups, self.lookahead_tokens, self.max_model_len)

    @classmethod
    def full(cls, block_size: int) -> Self:
        """Return the layout of full attention in all layers."""
        return cls((KVGroups(1, block_size),))

    @property
    def block_size(self) -> int:
        """Tokens in a block, where a request of n tokens holds n / block size blocks.

        Raises: ValueError for a layout in which blocks do not follow from tokens in this way.
        """
        if not self.is_full:
            raise ValueError(f"there is no single block size for the groups {self.groups}")
        return self.groups[0].block_size

    @property
    def is_full(self) -> bool:
        """Whether there is one group, of full attention."""
        return len(self.groups) == 1 and self.groups[0].num_groups == 1 and self.groups[0].keeps_all

    def capacity_tokens(self, blocks: int, tokens: float) -> float:
        """Return how many tokens ``blocks`` blocks hold, if each request has ``tokens`` tokens."""
        if self.is_full:
            return blocks * self.block_size
        each = float(self.filled(np.array([tokens], np.float64))[0])
        return blocks * tokens / each if each > 0.0 else float(blocks)

    @property
    def chunk_multiple(self) -> int:
        """Tokens of which the chunks of a prompt, except for the last chunk, must end at a multiple; 1 for any end."""
        return max((one.block_size for one in self.groups if one.states), default=1)

    def filled(self, tokens: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the blocks that tokens fill, in the shape of ``tokens``: fractions, on average over a long output."""
        return super().filled(np.ascontiguousarray(tokens, np.float64).ravel()).reshape(np.shape(tokens))

    def mean(self, tokens: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the blocks held on average, in the shape of ``tokens``: half of each group's last block is empty."""
        return super().mean(np.ascontiguousarray(tokens, np.float64).ravel()).reshape(np.shape(tokens))
