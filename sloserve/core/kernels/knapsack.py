"""Choice of the requests to serve together: the most gain of a given number of requests that fit the KV cache.

Gains are any finite numbers (for Andes: how much more QoE a request has if served), weights whole numbers of KV blocks
or tokens, 1 at least. It serves ``andes-paper:solver=dp``, tests and benchmarks.

Source: Andes, Algorithm 2. Differs: see csrc/include/sloserve/knapsack_exact.h.
"""

import numpy as np
from numpy.typing import ArrayLike

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.kernels import _csrc


def pack_exact(
    gain: ArrayLike, weight: ArrayLike, capacity: int, num_items: int, *, at_most: bool = False
) -> IntArray | None:
    """Return the indices, ascending, of the ``num_items`` items of most gain that fit.

    The time is O(n * num_items * capacity), with a bit of memory for each of these.

    Args:
        gain: Gain of each item, ``[n]``.
        weight: Weight of each item, at least 1, ``[n]``.
        capacity: Greatest sum of the weights of the chosen items.
        num_items: Number of items to choose. Exactly that many are chosen, even if some of them gain nothing; the
            result is ``None`` if they do not fit.
        at_most: Whether fewer items may be chosen; then no chosen item could be left out without loss.

    Raises: ValueError for a weight below 1, a gain that is not finite, a negative limit, columns of unequal length, or
        more than 2 GiB of tables.
    """
    return _csrc.pack_exact(
        _floats("gain", gain), _ints("weight", weight), capacity=capacity, num_items=num_items, at_most=at_most
    )


def _floats(name: str, values: ArrayLike) -> FloatArray:
    found = np.ascontiguousarray(values, dtype=np.float64)
    _check_shape(name, found.shape)
    return found


def _ints(name: str, values: ArrayLike) -> IntArray:
    found = np.ascontiguousarray(values, dtype=np.int64)
    _check_shape(name, found.shape)
    return found


def _check_shape(name: str, shape: tuple[int, ...]) -> None:
    if len(shape) != 1:
        raise ValueError(f"{name}: shape {shape} is not one-dimensional")
