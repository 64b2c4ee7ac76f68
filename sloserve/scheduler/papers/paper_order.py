"""EconoServe's order of tasks (Sec. 3.4), and the search for the task that fills the rest of a resource.

Tasks are ordered by three factors, each divided into ranges: time left to the deadline (nearest first), then occupied
KV (most first), then length (longest first): the predicted tokens of a generation task, the prompt of a prompt task.
Ties end in ``seq``. A task with a missed deadline ranks with the tasks that have most time left. A task without a
deadline ranks behind all. The paper does not say where either stands.
"""

from bisect import bisect_left, bisect_right

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.rows import Rows

DEADLINE_EDGES_S: FloatArray = np.array([0.2, 0.5, 2.0])
"""Sec. 3.4, e.g. 0.2-0.5 s, 0.5-2 s, > 2 s."""
RANGE_TOKENS = 128
"""Width in tokens of the ranges of lengths (Sec. 3.4) and of occupied KV; the paper names no width for the latter."""

ORDER_COLUMNS = frozenset({"arrival_s", "e2e_s"})
"""Columns that a deadline is read from."""


def deadline_ranges(rows: Rows, slots: IntArray, now_s: float) -> IntArray:
    """Return the rank of each task's range of time left, 0 the most urgent, ``[len(slots)]``."""
    left_s = rows.arrival_s[slots] + rows.e2e_s[slots] - now_s
    lax = DEADLINE_EDGES_S.size
    ranges: IntArray = np.searchsorted(DEADLINE_EDGES_S, left_s, side="right")
    ranges[left_s < 0.0] = lax
    ranges[np.isnan(left_s)] = lax + 1
    return ranges


def paper_order(rows: Rows, slots: IntArray, held_tokens: IntArray, length_tokens: IntArray, now_s: float) -> IntArray:
    """Return indices in ``slots``, the first to be served first.

    Args:
        rows: The request table.
        slots: Slots of the tasks, ``[n]``.
        held_tokens: Tokens in the KV cache, ``[n]``.
        length_tokens: Predicted tokens of generation tasks, prompt tokens of prompt tasks, ``[n]``.
        now_s: The present time, in epoch seconds.
    """
    longest, fullest = -(length_tokens // RANGE_TOKENS), -(held_tokens // RANGE_TOKENS)
    order: IntArray = np.lexsort((rows.seq[slots], longest, fullest, deadline_ranges(rows, slots, now_s)))
    return order


def grouped(order: IntArray, bucket: IntArray) -> IntArray:
    """Return ``order`` with the tasks of each bucket together, where the first of them stood.

    Args:
        order: Indices of the tasks, in order.
        bucket: Bucket of each task, by index.
    """
    _, first, of = np.unique(bucket[order], return_index=True, return_inverse=True)
    together: IntArray = order[np.argsort(first[of], kind="stable")]
    return together


class BestFit:
    """Takes the largest size that fits, the first of equals, by binary search."""

    def __init__(self, sizes: IntArray) -> None:
        places = np.argsort(sizes, kind="stable")
        self._sizes: list[int] = sizes[places].tolist()
        self._places: list[int] = places.tolist()

    def take(self, most: int) -> int | None:
        """Remove the largest size up to ``most`` and return its index; ``None`` if all are larger."""
        beyond = bisect_right(self._sizes, most)
        if not beyond:
            return None
        at = bisect_left(self._sizes, self._sizes[beyond - 1])
        del self._sizes[at]
        return self._places.pop(at)
