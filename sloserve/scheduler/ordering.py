"""Planning by one key: admit and serve in ascending key, take victims from the end, evict across a margin.

Most policies reduce to a number per request (a deadline, a priority, remaining work); this module turns such numbers
into a plan.
"""

import math
from dataclasses import dataclass

import numpy as np

from sloserve.kernels.rank import top_k
from sloserve.lso.eviction import Candidate, select_victims
from sloserve.scheduler.policy import NO_SLOTS, Plan, Snapshot
from sloserve.scheduler.rows import FloatArray, IntArray

EVICTION_COLUMNS = frozenset({"prompt_tokens", "output_tokens", "kv_blocks", "num_preemptions", "evictable"})
"""Columns that :func:`plan_by_key` reads when it may evict."""


@dataclass(frozen=True, slots=True)
class EvictionRule:
    """When a key policy may evict.

    margin: a victim's key must exceed the blocked request's by more than this. max_preemptions: a request that has been
    preempted so often is left alone, so that recomputation is bounded. keep_free: share of KV blocks left for decoding
    requests to grow into when room is made.
    """

    margin: float = 0.0
    max_preemptions: int = 3
    keep_free: float = 0.01


def plan_by_key(
    snapshot: Snapshot,
    waiting_key: FloatArray,
    running_key: FloatArray,
    *,
    evict: EvictionRule | None = None,
    may_evict_for: FloatArray | None = None,
) -> Plan:
    """Serves and admits in ascending key, ties by ``seq``.

    waiting_key: ``[len(snapshot.waiting)]``; running_key: ``[len(snapshot.running)]``; inf ranks last.
    may_evict_for: ``[len(snapshot.waiting)]`` of bool-like; requests for which nobody is evicted still keep their
    place.
    """
    rows, engine = snapshot.rows, snapshot.engine
    # No step can admit more than there are slots, so the rest of the queue needs no order.
    head = top_k(waiting_key, rows.seq[snapshot.waiting], min(snapshot.waiting.size, engine.max_num_seqs))
    waiting = snapshot.waiting[head]
    order = np.lexsort((rows.seq[snapshot.running], running_key))
    running = snapshot.running[order]
    victims = NO_SLOTS
    if evict is not None and waiting.size and running.size:
        wanted = waiting.size if may_evict_for is None else _leading(may_evict_for[head])
        if wanted:
            victims = _victims(
                snapshot, evict, waiting[:wanted], waiting_key[head][:wanted], running, running_key[order]
            )
    return Plan(
        running=running[~np.isin(running, victims)] if victims.size else running, waiting=waiting, evict=victims
    )


def _leading(flags: FloatArray) -> int:
    """How many leading entries are true."""
    false = np.flatnonzero(~flags.astype(bool))
    return int(false[0]) if false.size else flags.size


def _victims(
    snapshot: Snapshot,
    rule: EvictionRule,
    waiting: IntArray,
    waiting_key: FloatArray,
    running: IntArray,
    running_key: FloatArray,
) -> IntArray:
    rows, engine = snapshot.rows, snapshot.engine
    free_blocks = engine.free_blocks - math.ceil(rule.keep_free * engine.total_blocks)
    tokens = rows.prompt_tokens[waiting] + rows.output_tokens[waiting]
    needed = -(-(tokens + 1) // engine.block_size)
    if waiting.size <= engine.free_slots and int(needed.sum()) <= free_blocks:
        return NO_SLOTS
    allowed = rows.evictable[running] & (rows.num_preemptions[running] < rule.max_preemptions)
    expendable = running[allowed][::-1]
    if not expendable.size or not running_key[allowed][-1] - waiting_key[0] > rule.margin:
        return NO_SLOTS
    heads = [Candidate(int(s), float(k), int(b)) for s, k, b in zip(waiting, waiting_key, needed, strict=True)]
    candidates = [
        Candidate(int(s), float(k), int(b))
        for s, k, b in zip(expendable, running_key[allowed][::-1], rows.kv_blocks[expendable], strict=True)
    ]
    victims = select_victims(
        heads, candidates, free_slots=engine.free_slots, free_blocks=free_blocks, margin=rule.margin
    )
    return np.array(victims, np.int64) if victims else NO_SLOTS
