"""How Andes makes room: which requests it preempts for urgent ones, and which it pauses when KV blocks are short."""

from dataclasses import dataclass

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.rows import Rows
from sloserve.lso import pausing
from sloserve.lso.preemption import Candidate, Head, select_victims
from sloserve.scheduler.andes.outlook import Outlook
from sloserve.scheduler.policy import NO_SLOTS, EngineFacts, Snapshot

PAUSING_LEAD_S = 5.0
"""Shortest lead of a request that is paused because KV blocks are short."""


@dataclass(frozen=True, slots=True)
class VictimRule:
    """Which running requests may be preempted for a waiting one.

    lead_s: least lead of a victim, and least difference between its lead and the waiting request's. ``None``: instead,
    any request worth less than the waiting one, the least worth first (Andes, Algorithm 1). max_preemptions: a request
    that was preempted so often is not a victim again.
    """

    lead_s: float | None
    max_preemptions: int


@dataclass(frozen=True, slots=True, eq=False)
class HeadOfLine:
    """The waiting requests that are first in the order of admission; others may be preempted for them.

    places: indices in an :class:`Outlook` of the requests with these ranks. blocks: KV blocks needed at each
    of these ranks: by the request itself, or by the aged request that has its turn there.
    """

    places: IntArray
    blocks: IntArray


def victims_for(
    heads: HeadOfLine,
    all_: Outlook,
    worth: FloatArray,
    running: IntArray,
    snapshot: Snapshot,
    rule: VictimRule,
    *,
    free_blocks: int,
    most: int,
) -> IntArray:
    """Indices of at most ``most`` requests to preempt so that ``heads`` can be admitted.

    worth: gain per token, ``[len(all_)]``. running: places, the shortest lead first.
    """
    if not heads.places.size or most < 1:
        return NO_SLOTS
    rows, free_slots = snapshot.rows, snapshot.engine.free_slots
    if heads.places.size <= free_slots and int(heads.blocks.sum()) <= free_blocks:
        return NO_SLOTS
    slots = all_.slots[running]
    may = rows.preemptable[slots] & (rows.num_preemptions[slots] < rule.max_preemptions)
    if rule.lead_s is not None:
        key, head_key, margin = all_.lead_s, np.maximum(all_.lead_s, 0.0), rule.lead_s
        candidates = running[may & (key[running] >= margin)][::-1][:most]
    else:
        key, head_key, margin = -worth, -worth, 0.0
        candidates = running[may]
        candidates = candidates[np.lexsort((rows.seq[all_.slots[candidates]], worth[candidates]))][:most]
    victims = select_victims(
        map(Head, head_key[heads.places].tolist(), heads.blocks.tolist()),
        map(Candidate, candidates.tolist(), key[candidates].tolist()),
        lambda place: snapshot.holding(int(all_.slots[place])),
        free_slots=free_slots,
        free_blocks=free_blocks,
        margin=margin,
    )
    return np.array(victims, np.int64) if victims else NO_SLOTS


def short_of_blocks(all_: Outlook, running: IntArray, rows: Rows, engine: EngineFacts) -> IntArray:
    """Slots of the requests to pause because their next KV block is missing, the longest lead first.

    Without the pauses vLLM would preempt a request for each block. running: indices, the shortest lead first.
    """
    slots = all_.slots[running]
    places = pausing.short_of_blocks(
        rows.computed_tokens[slots],
        rows.prompt_tokens[slots],
        rows.pausable[slots] & (all_.lead_s[running] > PAUSING_LEAD_S),
        block_size=engine.block_size,
        free_blocks=engine.free_blocks,
    )
    return slots[places]
