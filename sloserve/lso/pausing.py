"""Request pausing: when KV blocks are short, some requests skip a step and keep their KV, so that vLLM preempts none.

QLM and Andes do not pause. EconoServe does, under the name "offload-free preemption" (Sec. 2.3).
"""

import numpy as np

from sloserve.core.arrays import BoolArray, IntArray
from sloserve.core.kernels.kv_layout import KVLayout


def short_of_blocks(
    computed_tokens: IntArray,
    decodes: BoolArray,
    may_pause: BoolArray,
    *,
    layout: KVLayout,
    decode_tokens: int,
    free_blocks: int,
) -> IntArray:
    """Return the indices of the requests to pause for the next step, the last in the order of service first.

    A decoding request needs a new block when its tokens fill its last one: as many requests are paused as would take
    the blocks that are missing, as far as ``may_pause`` allows.

    Args:
        computed_tokens: Computed tokens of each request, in order of service, ``[n]``.
        decodes: Whether each request decodes, ``[n]``.
        may_pause: Whether each request may be paused, ``[n]``.
        layout: Layout of the KV cache.
        decode_tokens: Tokens that a decode takes of the step.
        free_blocks: KV blocks that are free.
    """
    if free_blocks >= computed_tokens.size * layout.most_growth(decode_tokens, 1):
        return np.empty(0, np.int64)
    growth = np.where(decodes, layout.growth(computed_tokens, decode_tokens), 0)
    missing = int(growth.sum()) - free_blocks
    if missing <= 0:
        return np.empty(0, np.int64)
    indices: IntArray = np.flatnonzero((growth > 0) & may_pause)[::-1]
    return indices[: 1 + int(np.searchsorted(np.cumsum(growth[indices]), missing))]
