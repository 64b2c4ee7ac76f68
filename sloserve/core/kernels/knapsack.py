"""Which requests to serve together: the most gain that fits the KV cache and a batch size.

Gains are any finite numbers (for Andes: how much more QoE a request has if served), weights whole numbers of KV blocks
or tokens, 1 at least. Same arguments, same answer, on every platform.

:func:`pack_priced` is the one to use. :func:`pack_greedy` is the paper's, and loses a quarter where the batch size
binds instead of the cache. Tests and benchmarks measure both against :func:`pack_exact`.

Source: Andes, Algorithms 1 and 2. Differs: see csrc/include/sloserve/knapsack.h and knapsack_priced.h.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.kernels import _csrc

# How best_batch packs: PRICED as pack_priced, GREEDY as pack_greedy, PAPER as pack_greedy with stop_at_misfit.
PackRule = _csrc.PackRule


@dataclass(frozen=True, slots=True, eq=False)
class BatchChoice:
    """batch_size: the one that was best. chosen: indices, best first, at most so many. gain: theirs, summed."""

    batch_size: int
    chosen: IntArray
    gain: float


def pack_priced(gain: ArrayLike, weight: ArrayLike, seq: ArrayLike, capacity: int, max_items: int) -> IntArray:
    """Indices of at most ``max_items`` of n items of much gain, by descending gain / weight; O(n) a price tried.

    The chosen items are the best by gain - price * weight at the least price at which these fit, and what still fits by
    gain / weight; equals are chosen by weight, then ``seq``. Exact where the best by gain fit, since there the price is
    0, and never below half of exact. The gain may fall a little as the capacity grows.

    Args:
        gain: ``[n]``; an item with a gain of 0 or less is never chosen.
        weight: ``[n]``; 1 at least.
        seq: ``[n]``; breaks ties.
        capacity: most that the weights of the chosen may sum to.
        max_items: most items to choose.

    Raises: ValueError as :func:`pack_greedy`.
    """
    return _csrc.pack_priced(_floats("gain", gain), _ints("weight", weight), _ints("seq", seq), capacity, max_items)


def pack_greedy(
    gain: ArrayLike,
    weight: ArrayLike,
    seq: ArrayLike,
    capacity: int,
    max_items: int,
    *,
    stop_at_misfit: bool = False,
) -> IntArray:
    """Indices of at most ``max_items`` of n items in descending gain / weight, ties by ``seq``; O(n log n).

    By default an item that does not fit is passed over, which uses the room but lets lighter items overtake a heavy one
    for as long as they come.

    Args:
        gain: ``[n]``; an item with a gain of 0 or less is never chosen.
        weight: ``[n]``; 1 at least.
        seq: ``[n]``; breaks ties.
        capacity: most that the weights of the chosen may sum to.
        max_items: most items to choose.
        stop_at_misfit: the paper's rule: the first item that does not fit ends the search, although there may be room
            for what follows it.

    Raises: ValueError for a weight below 1, a gain that is not finite, a negative limit, or columns of unequal length.
    """
    return _csrc.pack_greedy(
        _floats("gain", gain),
        _ints("weight", weight),
        _ints("seq", seq),
        capacity,
        max_items,
        stop_at_misfit,
    )


def best_batch(
    gain_by_batch: ArrayLike,
    weight: ArrayLike,
    seq: ArrayLike,
    capacity: int,
    batch_sizes: ArrayLike,
    *,
    rule: PackRule = PackRule.PRICED,
) -> BatchChoice:
    """The batch size whose pack gains most, the first listed of equals, and that pack.

    gain_by_batch: ``[num_batch_sizes, n]``, what each item gains in a batch of that size. A pack may hold fewer items
    than its batch size; its gains are still those of the full batch. Fastest under PRICED if the sizes ascend and the
    best is near the middle: a size that cannot reach the best so far is given up early.

    Raises: ValueError as :func:`pack_greedy`, and without a batch size or for one below 1.
    """
    return BatchChoice(
        *_csrc.best_batch(
            _floats("gain_by_batch", gain_by_batch, ndim=2),
            _ints("weight", weight),
            _ints("seq", seq),
            capacity,
            _ints("batch_sizes", batch_sizes),
            rule,
        )
    )


def pack_exact(
    gain: ArrayLike, weight: ArrayLike, capacity: int, num_items: int, *, at_most: bool = False
) -> IntArray | None:
    """For tests and benchmarks: indices, ascending, of the ``num_items`` items of most gain that fit.

    Exactly ``num_items``, also where that takes items that gain nothing, and ``None`` where so many do not fit;
    at_most: up to so many, none of which could be left out without loss. O(n * num_items * capacity) time, as many
    bits of memory.

    Raises: ValueError as :func:`pack_greedy`, and for more than 2 GiB of tables.
    """
    return _csrc.pack_exact(_floats("gain", gain), _ints("weight", weight), capacity, num_items, at_most)


def _floats(name: str, values: ArrayLike, ndim: int = 1) -> FloatArray:
    found = np.ascontiguousarray(values, dtype=np.float64)
    _check_shape(name, found.shape, ndim)
    return found


def _ints(name: str, values: ArrayLike) -> IntArray:
    found = np.ascontiguousarray(values, dtype=np.int64)
    _check_shape(name, found.shape, 1)
    return found


def _check_shape(name: str, shape: tuple[int, ...], ndim: int) -> None:
    if len(shape) != ndim:
        raise ValueError(f"{name}: shape {shape} is not {'one' if ndim == 1 else 'two'}-dimensional")
