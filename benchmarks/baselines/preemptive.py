"""Ranked service with max-allocation: the first by rank are served, whether they run or wait; others make room.

A request alone always fits, so each plan serves at least one. The papers' engines compute a batch whole, where vLLM
cuts it at the step's token budget: of the served requests decodes come before unfinished prompts.
"""

from dataclasses import dataclass

import numpy as np

from benchmarks.baselines.allocation import RESERVATION_COLUMNS, leading, max_blocks
from sloserve.core.arrays import BoolArray, FloatArray, IntArray
from sloserve.core.kernels.rank import top_k
from sloserve.lso.decode_first import PREFILL_COLUMNS, decode_first
from sloserve.lso.ordering import woven_places
from sloserve.scheduler.policy import NO_SLOTS, EngineFacts, Plan, Snapshot

RANKED_COLUMNS = RESERVATION_COLUMNS | PREFILL_COLUMNS
"""Columns that :func:`plan_ranked` reads, and ``kv_blocks`` where it pauses."""


@dataclass(frozen=True, slots=True, eq=False)
class Division:
    """Which requests, in order of rank, are served, and which other running ones keep their KV; ``[n]`` each."""

    served: BoolArray
    stays: BoolArray


def divide(
    blocks: IntArray, held: IntArray, runs: BoolArray, engine: EngineFacts, *, batch: int | None = None
) -> Division:
    """Divides ranked requests, running and waiting alike: the first that fit are served.

    Of the other running ones those keep their KV that fit beside them, the better ranked first.

    Args:
        blocks: ``[n]``; blocks that each request reserves when it is served.
        held: ``[n]``; blocks that it takes when it keeps its KV.
        runs: ``[n]``; whether it runs now.
        engine: the engine's limits.
        batch: most requests to serve; ``None`` for as many as may run.
    """
    capacity, slots = engine.capacity_blocks, engine.max_num_seqs
    first = leading(blocks, capacity, slots if batch is None else min(batch, slots))
    served = np.arange(blocks.size) < first
    others = np.flatnonzero(runs & ~served)
    # A prompt that has not begun may hold no block yet; it takes a slot all the same.
    fit = leading(np.maximum(held[others], 1), capacity - int(blocks[:first].sum()), slots - first)
    stays = np.zeros(blocks.size, np.bool_)
    stays[others[:fit]] = True
    return Division(served, stays)


def plan_ranked(
    snapshot: Snapshot,
    waiting_key: FloatArray,
    running_key: FloatArray,
    *,
    batch: int | None = None,
    pause: bool = False,
) -> Plan:
    """Serves the requests whose max-allocation fits, in ascending key, ties by ``seq``; the others make room.

    Args:
        snapshot: the engine.
        waiting_key: ``[len(snapshot.waiting)]``.
        running_key: ``[len(snapshot.running)]``.
        batch: most requests to serve.
        pause: whether running requests that are not served, but for which there is room, are paused with their KV;
            else they go on.
    """
    rows, engine = snapshot.rows, snapshot.engine
    waiting = snapshot.waiting
    # No step can serve more than there are slots, so the rest of the queue needs no rank.
    head = top_k(waiting_key, rows.seq[waiting], min(waiting.size, engine.max_num_seqs))
    ranked = np.concatenate((snapshot.running, waiting[head]))
    if not ranked.size:
        return Plan.IDENTITY
    order = np.lexsort((rows.seq[ranked], np.concatenate((running_key, waiting_key[head]))))
    slots = np.concatenate((snapshot.running, waiting[woven_places(snapshot, head)]))[order]
    runs = order < snapshot.running.size
    blocks = max_blocks(rows, slots, engine)
    division = divide(blocks, rows.kv_blocks[slots] if pause else blocks, runs, engine, batch=batch)
    served, stays = division.served, division.stays
    return Plan(
        running=np.concatenate((decode_first(rows, slots[served & runs]), slots[stays])),
        waiting=slots[served & ~runs],
        preempt=slots[runs & ~served & ~stays],
        pause=slots[stays] if pause else NO_SLOTS,
        max_running=int(served.sum()) + int(stays.sum()),
    )
