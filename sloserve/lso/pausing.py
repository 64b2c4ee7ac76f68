"""Request pausing: who sits out, KV kept, when the next block is short, so that vLLM need not evict anybody for it.

QLM and Andes do not have it; EconoServe has it as "offload-free preemption" (Sec. 2.3).
"""

import numpy as np

from sloserve.core.arrays import BoolArray, IntArray


def short_of_blocks(
    computed_tokens: IntArray, prompt_tokens: IntArray, may_pause: BoolArray, *, block_size: int, free_blocks: int
) -> IntArray:
    """Places of those who sit out the next step, all ``[n]`` in order of service: the last served first.

    A decoding request needs a block where its tokens fill the last one; as many sit out as blocks are missing.
    """
    if free_blocks >= computed_tokens.size:
        return np.empty(0, np.int64)
    grows = (computed_tokens >= prompt_tokens) & (computed_tokens % block_size == 0)
    missing = max(int(grows.sum()) - free_blocks, 0)
    places: IntArray = np.flatnonzero(grows & may_pause)[::-1][:missing]
    return places
