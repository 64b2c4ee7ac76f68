"""Ranking of requests: the first few by a policy's key, without sorting them all, and the place of class rank.

A policy ranks thousands of waiting requests in each plan, of which a step admits at most ``max_num_seqs``.

``by_class``, ``first_places`` and ``ranked`` are the arithmetic of the functions of these names in
:mod:`sloserve.lso.ordering`, on contiguous columns; the columns of ``ranked`` are by slot, and ``None`` for
``class_rank`` takes all requests for one class. They raise ValueError for columns of different lengths, more queued
requests than rows, or a negative ``most``.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sloserve.core.kernels import _csrc
from sloserve.core.kernels._csrc import by_class, first_places, ranked

__all__ = ["by_class", "first_places", "ranked", "top_k"]


def top_k(keys: ArrayLike, seqs: ArrayLike, k: int) -> NDArray[np.int64]:
    """Return the indices ``[min(k, n)]`` of the ``k`` smallest of ``n`` requests by (key, seq), ascending.

    The time is O(n + k).

    Args:
        keys: Any real numbers, ``[n]``; infinities rank where they belong, NaN last.
        seqs: Integers that break ties, ``[n]``.
        k: Number of indices to return.

    Raises: ValueError for a negative ``k``, or when the two are not one-dimensional and of one length.
    """
    key_column = np.ascontiguousarray(keys, dtype=np.float64)
    seq_column = np.ascontiguousarray(seqs, dtype=np.int64)
    for name, column in (("keys", key_column), ("seqs", seq_column)):
        if column.ndim != 1:
            raise ValueError(f"{name}: shape {column.shape} is not one-dimensional")
    return _csrc.top_k(key_column, seq_column, k)
