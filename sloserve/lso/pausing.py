"""Request pausing: when KV blocks are short, some requests skip a step and keep their KV, so that vLLM preempts none.

QLM and Andes do not pause. EconoServe does, under the name "offload-free preemption" (Sec. 2.3).
"""

import numpy as np

from sloserve.core.arrays import BoolArray, IntArray


def short_of_blocks(
    computed_tokens: IntArray, decodes: BoolArray, may_pause: BoolArray, *, block_size: int, free_blocks: int
) -> IntArray:
    """Indices of the requests to pause for the next step, the last in the order of service first.

    A decoding request needs a new block when its tokens fill its last one. One request is paused for each block that is
    missing, as far as ``may_pause`` allows.

    Args:
        computed_tokens: ``[n]``, in order of service, as the next two.
        decodes: ``[n]``; which requests decode.
        may_pause: ``[n]``; which requests may be paused.
        block_size: tokens in a KV block.
        free_blocks: KV blocks that are free.
    """
    if free_blocks >= computed_tokens.size:
        return np.empty(0, np.int64)
    grows = decodes & (computed_tokens % block_size == 0)
    missing = max(int(grows.sum()) - free_blocks, 0)
    indices: IntArray = np.flatnonzero(grows & may_pause)[::-1][:missing]
    return indices
