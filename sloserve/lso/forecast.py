"""Forecast of the KV cache's occupancy at future steps, and the requests that fit beside it.

EconoServe reserves blocks for each request's predicted length (exact allocation), and lends what is not used yet (KVC
pipelining). Both trust one figure per request, and must pad it. With a distribution of lengths neither is needed:
occupancy at a future step is a sum over many requests, and their errors even out. Its mean and variance follow from the
chance of each that it still runs by then, and admission leaves room for some standard deviations. With lengths that are
known this is the step function of :class:`sloserve.core.kernels.kv_reservation.KvReservation`, looked at on a grid. To
lend KV on top of it gains nothing (docs/benchmarks/econo.md, "Hosting in econo").
"""

from typing import Final

import numpy as np

from sloserve.core import kernels
from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.kernels.kv_layout import KVLayout
from sloserve.core.kernels.survival import Chances
from sloserve.core.rows import Rows
from sloserve.lso.lengths import LENGTH_COLUMNS, Lengths
from sloserve.lso.plan import Snapshot

AHEAD: Final[IntArray] = np.unique(np.append(0, np.geomspace(4, 8192, 36).astype(np.int64)))
"""Steps ahead at which occupancy is foreseen, ``[t]``."""


def _grown(ahead: IntArray) -> FloatArray:
    """Return the tokens that come until then; a request that runs at one such step ends halfway to the next."""
    grown: FloatArray = (ahead + np.append(ahead[1:], ahead[-1])) / 2.0
    return grown


_GROWN: Final[FloatArray] = _grown(AHEAD)

OCCUPANCY_COLUMNS = LENGTH_COLUMNS | {"prompt_tokens"}
"""Columns that :func:`occupancy` reads."""


def occupancy(
    lengths: Lengths,
    rows: Rows,
    slots: IntArray,
    layout: KVLayout,
    ahead: IntArray = AHEAD,
    context_tokens: IntArray | None = None,
) -> tuple[FloatArray, FloatArray]:
    """Return mean and variance of the blocks that each request will hold after ``ahead`` steps, ``[n, t]`` each.

    Args:
        lengths: Predictor of the tokens to come.
        rows: The request table.
        slots: Slots of the requests, ``[n]``.
        layout: Layout of the KV cache.
        ahead: Numbers of steps from now, ascending, ``[t]``.
        context_tokens: Tokens of prompt and output that count of each request, ``[n]``; ``None`` counts all.
    """
    if context_tokens is None:
        context_tokens = rows.prompt_tokens[slots] + rows.output_tokens[slots]
    runs = lengths.survival(rows, slots, ahead)
    blocks = layout.mean(context_tokens[:, None] + _grown(ahead))
    mean = blocks * runs
    return mean, mean * (blocks - mean)


def counted_once(snapshot: Snapshot, context_tokens: IntArray, slots: IntArray) -> IntArray:
    """Return the context of each running request less its share of the KV that others count as well, ``[n]``.

    Which requests share is not known without a look at every block, but how many blocks they share in all is. Each
    request takes off a part of these that is proportional to the blocks that it holds. The sum is right now, and stays
    so while holders of a prefix end and others come.

    Args:
        snapshot: The engine.
        context_tokens: Tokens of prompt and output of each running request, ``[n]``.
        slots: Slots of all running requests, in any order, ``[n]``.
    """
    if not snapshot.shared_blocks or not context_tokens.size:
        return context_tokens
    held = snapshot.rows.kv_blocks[slots]
    if not held.any():
        return context_tokens
    layout, total = snapshot.engine.layout, max(snapshot.engine.total_blocks, 1)
    block_tokens = layout.capacity_tokens(total, float(context_tokens.mean())) / total
    shared = held * (snapshot.shared_blocks / held.sum() * block_tokens)
    once: IntArray = np.maximum(context_tokens - shared.astype(np.int64), 0)
    return once


def how_many_fit_to_the_end(
    runs: Chances,
    context_tokens: IntArray,
    layout: KVLayout,
    held: IntArray,
    asked: IntArray,
    capacity_blocks: float,
    sigmas: float,
) -> int:
    """Return :func:`how_many_fit` of the :func:`occupancy` of both, if the chances that each still runs are known.

    Args:
        runs: Chance that each of n requests still runs AHEAD steps from now.
        context_tokens: Tokens of prompt and output, ``[n]``.
        layout: Layout of the KV cache.
        held: Places of the running requests among the n.
        asked: Places of the requests that ask for admission, in order.
        capacity_blocks: Number of blocks of the cache.
        sigmas: Standard deviations to keep free.
    """
    held, asked = np.ascontiguousarray(held, np.int64), np.ascontiguousarray(asked, np.int64)
    return kernels.how_many_fit(
        runs,
        layout,
        tokens=context_tokens,
        grown=_GROWN,
        held=held,
        asked=asked,
        capacity=capacity_blocks,
        sigmas=sigmas,
    )


def how_many_fit(
    held: tuple[FloatArray, FloatArray], asked: tuple[FloatArray, FloatArray], capacity_blocks: float, sigmas: float
) -> int:
    """Return how many of ``asked``, in order, fit beside ``held``: none after the first that does not fit.

    Args:
        held: Mean and variance of the blocks that all running requests will hold together, ``[t]`` each.
        asked: Mean and variance of the blocks that each request asks for, ``[m, t]`` each.
        capacity_blocks: Number of blocks of the cache.
        sigmas: Standard deviations to keep free.
    """
    mean = held[0] + np.cumsum(asked[0], axis=0)
    variance = held[1] + np.cumsum(asked[1], axis=0)
    over = (mean + sigmas * np.sqrt(variance) > capacity_blocks).any(axis=1)
    return int(np.argmax(over)) if over.any() else over.size
