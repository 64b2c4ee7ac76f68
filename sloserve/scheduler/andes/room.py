"""How Andes makes room: whom it evicts for urgent requests, and who sits out when the next block is short."""

from dataclasses import dataclass

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.rows import Rows
from sloserve.lso import pausing
from sloserve.lso.preemption import Candidate, Head, select_victims
from sloserve.scheduler.andes.outlook import Outlook
from sloserve.scheduler.policy import NO_SLOTS, EngineFacts, Snapshot

PAUSING_LEAD_S = 5.0
"""Shortest lead of a request that sits out because the next block is short."""


@dataclass(frozen=True, slots=True)
class VictimRule:
    """Who may be evicted for whom.

    lead_s: least lead of a victim, and by how much it must exceed the other's; ``None``: whoever has less worth than
    the other, the least first (Andes, Algorithm 1). max_preemptions: of one request.
    """

    lead_s: float | None
    max_preemptions: int


@dataclass(frozen=True, slots=True, eq=False)
class HeadOfLine:
    """The first waiting requests in the order of admission, who may evict others.

    places: of those whose rank that is, in an :class:`Outlook`. blocks: needed by whoever has the turn there.
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
    """Places of those to evict so that ``heads`` can be admitted, ``most`` at most.

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
    """Slots of those who sit out since their next block is missing, the longest lead first.

    Else vLLM would evict somebody for it. running: places, the shortest lead first.
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
