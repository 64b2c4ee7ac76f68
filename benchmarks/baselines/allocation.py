"""Reservations: the KV blocks that an admission rule counts for a request's whole life.

vLLM allocates blocks as tokens come, so a reservation is an entry in a ledger, not memory. While the running requests
have reserved no more blocks than there are, no allocation fails. *Max-allocation* reserves prompt + max_tokens; a
request without a ``max_tokens`` of its own has the engine's, which is all that the context leaves, and so reserves a
whole context. *Exact* allocation reserves prompt + predicted output, padded. Neither reserves more than the whole
cache, so a request alone can always be admitted.

Each plan computes the reservations anew. A request that outlives its prediction reserves what the new prediction says.
Reservations may then exceed the cache until a request ends; vLLM preempts meanwhile, as it does by itself.

Source: EconoServe, Sec. 1 and 2.1 (max-allocation of ORCA, exact-allocation of [23]). Differs: the paper sets an exact
allocation once, at admission.
"""

from collections.abc import Callable

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.kernels.rank import top_k
from sloserve.core.rows import Rows
from sloserve.lso.blocks import blocks_of
from sloserve.scheduler.policy import EngineFacts, Plan, Snapshot

RESERVATION_COLUMNS = frozenset({"prompt_tokens", "output_tokens", "max_tokens"})
"""Columns that a reservation is computed from."""


def max_blocks(rows: Rows, slots: IntArray, engine: EngineFacts) -> IntArray:
    """Blocks of prompt + max_tokens, ``[len(slots)]``."""
    return _blocks(rows.prompt_tokens[slots] + rows.max_tokens[slots], engine)


def exact_blocks(rows: Rows, slots: IntArray, left: FloatArray, padding: float, engine: EngineFacts) -> IntArray:
    """Blocks of prompt + predicted output, ``[len(slots)]``.

    Args:
        rows: the request table.
        slots: row indices.
        left: ``[len(slots)]``; predicted output tokens still to come.
        padding: share of the whole predicted output that is added to it.
        engine: the engine's limits.
    """
    output = np.ceil((rows.output_tokens[slots] + left) * (1.0 + padding)).astype(np.int64)
    return _blocks(rows.prompt_tokens[slots] + np.minimum(output, rows.max_tokens[slots]), engine)


def _blocks(tokens: IntArray, engine: EngineFacts) -> IntArray:
    blocks: IntArray = np.minimum(blocks_of(tokens, engine.layout.block_size), engine.capacity_blocks)
    return blocks


def oldest(rows: Rows, slots: IntArray, most: int) -> IntArray:
    """The first ``most`` of ``slots`` in order of arrival."""
    seq = rows.seq[slots]
    return slots[top_k(seq, seq, min(slots.size, most))]


def leading(blocks: IntArray, free_blocks: int, most: int) -> int:
    """How many of an ordered list fit, each of which needs at least one block; none after the first that does not."""
    return max(min(int(np.searchsorted(np.cumsum(blocks), free_blocks, side="right")), most), 0)


def admit(
    snapshot: Snapshot, order: IntArray, reserves: Callable[[IntArray], IntArray], reserved: int, batch: int = 0
) -> Plan:
    """Admits the waiting requests of ``order`` that fit beside what is reserved already.

    While no request runs, the first always fits.

    Args:
        order: slots of waiting requests, the first to be admitted first.
        reserves: blocks that each of some slots reserves.
        reserved: blocks that all running requests have reserved.
        batch: most requests that may run; 0 for no such limit.
    """
    running, engine = snapshot.running.size, snapshot.engine
    if not running and not order.size:
        return Plan.IDENTITY
    order = snapshot.woven(order)
    most = min(engine.free_slots, batch - running) if batch else engine.free_slots
    fit = leading(reserves(order), engine.capacity_blocks - reserved, most)
    return Plan(waiting=order, max_running=max(running + fit, 1))
