"""Choice of the requests to serve together: the most gain that fits the KV cache and a batch size.

Gains are any finite numbers (for Andes: how much more QoE a request has if served), weights whole numbers of KV blocks
or tokens, 1 at least. The same arguments give the same choice, on every platform.

Use :func:`pack_priced`. :func:`pack_greedy` is the paper's algorithm, and loses a quarter of the gain where the batch
size binds instead of the cache. Tests and benchmarks measure both against :func:`pack_exact`.

Source: Andes, Algorithms 1 and 2. Differs: see csrc/include/sloserve/knapsack.h and knapsack_priced.h.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.kernels import _csrc

# The rule by which best_batch packs: PRICED as pack_priced, GREEDY as pack_greedy, PAPER as pack_greedy with
# stop_at_misfit.
PackRule = _csrc.PackRule


@dataclass(frozen=True, slots=True, eq=False)
class BatchChoice:
    """The batch size with the most gain, and its items.

    Args:
        batch_size: The batch size that was best.
        chosen: Indices of the items, best first, at most ``batch_size``.
        gain: Sum of the gains of the chosen items.
    """

    batch_size: int
    chosen: IntArray
    gain: float


def pack_priced(gain: ArrayLike, weight: ArrayLike, seq: ArrayLike, capacity: int, max_items: int) -> IntArray:
    """Return the indices of at most ``max_items`` of n items of high gain, by descending gain / weight.

    The chosen items are the best by gain - price * weight at the least price at which these fit, and what still fits by
    gain / weight; equals are chosen by weight, then ``seq``. Exact where the best by gain fit, since there the price is
    0, and never below half of exact. The gain may fall a little as the capacity grows. Each price that is tried takes
    O(n).

    Args:
        gain: Gain of each item, ``[n]``; an item with a gain of 0 or less is never chosen.
        weight: Weight of each item, at least 1, ``[n]``.
        seq: Numbers that break ties, ``[n]``.
        capacity: Greatest sum of the weights of the chosen items.
        max_items: Most items to choose.

    Raises: ValueError as :func:`pack_greedy`.
    """
    return _csrc.pack_priced(
        _floats("gain", gain), _ints("weight", weight), _ints("seq", seq), capacity=capacity, max_items=max_items
    )


def pack_greedy(
    gain: ArrayLike,
    weight: ArrayLike,
    seq: ArrayLike,
    capacity: int,
    max_items: int,
    *,
    stop_at_misfit: bool = False,
) -> IntArray:
    """Return the indices of at most ``max_items`` of n items in descending gain / weight, ties by ``seq``.

    By default an item that does not fit is passed over, which uses the room but lets lighter items overtake a heavy one
    for as long as they come. The time is O(n log n).

    Args:
        gain: Gain of each item, ``[n]``; an item with a gain of 0 or less is never chosen.
        weight: Weight of each item, at least 1, ``[n]``.
        seq: Numbers that break ties, ``[n]``.
        capacity: Greatest sum of the weights of the chosen items.
        max_items: Most items to choose.
        stop_at_misfit: Whether the first item that does not fit ends the search, as in the paper, although there may be
            room for what follows it.

    Raises: ValueError for a weight below 1, a gain that is not finite, a negative limit, or columns of unequal length.
    """
    return _csrc.pack_greedy(
        _floats("gain", gain),
        _ints("weight", weight),
        _ints("seq", seq),
        capacity=capacity,
        max_items=max_items,
        stop_at_misfit=stop_at_misfit,
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
    """Return the batch size with the items that gain most, the first listed of equals, and these items.

    A choice may hold fewer items than its batch size; its gains are still the gains in a full batch. The search is
    fastest under PRICED if the sizes ascend and the best is near the middle: a size that cannot reach the best so far
    is given up early.

    Args:
        gain_by_batch: Gain of each item in a batch of each size, ``[num_batch_sizes, n]``.
        weight: Weight of each item, at least 1, ``[n]``.
        seq: Numbers that break ties, ``[n]``.
        capacity: Greatest sum of the weights of the chosen items.
        batch_sizes: Batch sizes to try, at least 1 each, ``[num_batch_sizes]``.
        rule: The rule by which items are chosen.

    Raises: ValueError as :func:`pack_greedy`, and without a batch size or for a size below 1.
    """
    return BatchChoice(
        *_csrc.best_batch(
            _floats("gain_by_batch", gain_by_batch, ndim=2),
            _ints("weight", weight),
            _ints("seq", seq),
            capacity=capacity,
            batch_sizes=_ints("batch_sizes", batch_sizes),
            rule=rule,
        )
    )


def pack_exact(
    gain: ArrayLike, weight: ArrayLike, capacity: int, num_items: int, *, at_most: bool = False
) -> IntArray | None:
    """Return the indices, ascending, of the ``num_items`` items of most gain that fit; it serves tests and benchmarks.

    The time is O(n * num_items * capacity), with a bit of memory for each of these.

    Args:
        gain: Gain of each item, ``[n]``.
        weight: Weight of each item, at least 1, ``[n]``.
        capacity: Greatest sum of the weights of the chosen items.
        num_items: Number of items to choose. Exactly that many are chosen, even if some of them gain nothing; the
            result is ``None`` if they do not fit.
        at_most: Whether fewer items may be chosen; then no chosen item could be left out without loss.

    Raises: ValueError as :func:`pack_greedy`, and for more than 2 GiB of tables.
    """
    return _csrc.pack_exact(
        _floats("gain", gain), _ints("weight", weight), capacity=capacity, num_items=num_items, at_most=at_most
    )


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
