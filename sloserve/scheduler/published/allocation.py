"""What an admission rule promises: the KV blocks of a request's whole life, as far as they are known beforehand.

vLLM hands out blocks as tokens come, so a promise is no memory but an entry in a ledger: while all that run are
promised no more than there is, no allocation fails. *Max-allocation* promises prompt + max_tokens; a request without a
``max_tokens`` of its own has the engine's, all that the context leaves, and is promised a whole context. *Exact*
allocation promises prompt + predicted output, padded. Neither promises more than the whole cache, so that a request
alone can always be admitted.

A promise is made anew in each plan: whoever outlives its prediction is promised what the new one says, and then more
may be promised than there is until somebody ends. vLLM then preempts, as it does by itself.

Source: EconoServe, Sec. 1 and 2.1 (max-allocation of ORCA, exact-allocation of [23]). Differs: the paper sets an exact
allocation once, at admission.
"""

from collections.abc import Callable

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.rows import Rows
from sloserve.kernels.rank import top_k
from sloserve.lso.blocks import blocks_of
from sloserve.scheduler.policy import EngineFacts, Plan, Snapshot

PROMISE_COLUMNS = frozenset({"prompt_tokens", "output_tokens", "max_tokens"})
"""Columns that a promise is read from."""


def capacity_blocks(engine: EngineFacts) -> int:
    """Blocks that requests can have: vLLM keeps one for itself."""
    return max(engine.total_blocks - 1, 1)


def max_blocks(rows: Rows, slots: IntArray, engine: EngineFacts) -> IntArray:
    """Blocks of prompt + max_tokens, ``[len(slots)]``."""
    return _blocks(rows.prompt_tokens[slots] + rows.max_tokens[slots], engine)


def exact_blocks(rows: Rows, slots: IntArray, left: FloatArray, padding: float, engine: EngineFacts) -> IntArray:
    """Blocks of prompt + predicted output, ``[len(slots)]``.

    left: predicted output tokens still to come. padding: share of the whole predicted output added to it.
    """
    output = np.ceil((rows.output_tokens[slots] + left) * (1.0 + padding)).astype(np.int64)
    return _blocks(rows.prompt_tokens[slots] + np.minimum(output, rows.max_tokens[slots]), engine)


def _blocks(tokens: IntArray, engine: EngineFacts) -> IntArray:
    blocks: IntArray = np.minimum(blocks_of(tokens, engine.block_size), capacity_blocks(engine))
    return blocks


def oldest(rows: Rows, slots: IntArray, most: int) -> IntArray:
    """The first ``most`` of ``slots`` in order of arrival."""
    seq = rows.seq[slots]
    return slots[top_k(seq, seq, min(slots.size, most))]


def leading(blocks: IntArray, free_blocks: int, most: int) -> int:
    """How many of an ordered list, each of which needs at least one block, fit: none behind the first that does not."""
    return max(min(int(np.searchsorted(np.cumsum(blocks), free_blocks, side="right")), most), 0)


def admit(
    snapshot: Snapshot, order: IntArray, promise: Callable[[IntArray], IntArray], promised: int, batch: int = 0
) -> Plan:
    """Admits those of ``order``, waiting slots, that fit beside what is promised already.

    promise: blocks promised to each of some slots. promised: to all that run. batch: most that may run, 0 for no
    such limit. While nobody runs, the first always fits.
    """
    running, engine = snapshot.running.size, snapshot.engine
    if not running and not order.size:
        return Plan.IDENTITY
    order = snapshot.woven(order)
    most = min(engine.free_slots, batch - running) if batch else engine.free_slots
    fit = leading(promise(order), capacity_blocks(engine) - promised, most)
    return Plan(waiting=order, max_running=max(running + fit, 1))
