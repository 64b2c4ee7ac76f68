"""Ranking of requests: the first few by a policy's key, without sorting them all, and where class rank stands in it.

A policy ranks thousands of waiting requests in each plan, of which a step admits at most ``max_num_seqs``.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sloserve.kernels import _csrc


def top_k(keys: ArrayLike, seqs: ArrayLike, k: int) -> NDArray[np.int64]:
    """Indices ``[min(k, n)]`` of the ``k`` smallest of ``n`` requests by (key, seq), ascending.

    Takes O(n + k).

    Args:
        keys: ``[n]``, any real numbers; infinities rank where they belong, NaN last.
        seqs: ``[n]``, integers that break ties.
        k: how many.

    Raises: ValueError for a negative ``k``, or when the two are not one-dimensional and of one length.
    """
    key_column = np.ascontiguousarray(keys, dtype=np.float64)
    seq_column = np.ascontiguousarray(seqs, dtype=np.int64)
    for name, column in (("keys", key_column), ("seqs", seq_column)):
        if column.ndim != 1:
            raise ValueError(f"{name}: shape {column.shape} is not one-dimensional")
    return _csrc.top_k(key_column, seq_column, k)


def by_class(
    key: NDArray[np.float64], rank: NDArray[np.int64], undecided: NDArray[np.bool_] | None = None
) -> NDArray[np.float64]:
    """See :func:`sloserve.lso.ordering.by_class`. Raises: ValueError for columns of several lengths."""
    return _csrc.by_class(np.ascontiguousarray(key, np.float64), np.ascontiguousarray(rank, np.int64), undecided)


def first_places(
    key: NDArray[np.float64],
    lowered: NDArray[np.float64],
    rank: NDArray[np.int64],
    seq: NDArray[np.int64],
    most: int,
) -> NDArray[np.int64]:
    """See :func:`sloserve.lso.ordering.first_places`.

    Raises: ValueError for columns of several lengths, or a negative ``most``.
    """
    return _csrc.first_places(
        np.ascontiguousarray(key, np.float64),
        np.ascontiguousarray(lowered, np.float64),
        np.ascontiguousarray(rank, np.int64),
        np.ascontiguousarray(seq, np.int64),
        most,
    )


def ranked(
    key: NDArray[np.float64],
    slots: NDArray[np.int64],
    queued: int,
    class_rank: NDArray[np.int64] | None,
    seq: NDArray[np.int64],
    undecided: NDArray[np.bool_] | None,
    most: int,
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """See :func:`sloserve.lso.ordering.ranked`. class_rank, seq: columns, by slot; ``None``: all are of one class.

    Raises: ValueError for columns of several lengths, more queued than there are, or a negative ``most``.
    """
    return _csrc.ranked(np.ascontiguousarray(key, np.float64), slots, queued, class_rank, seq, undecided, most)
