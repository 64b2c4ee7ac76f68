"""How Andes makes room: which requests it preempts for urgent ones, and which it pauses when KV blocks are short."""

from dataclasses import dataclass

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.rows import Rows
from sloserve.lso import pausing
from sloserve.lso.decode_first import unfinished
from sloserve.lso.preemption import Head, PreemptionCandidate, select_victims
from sloserve.lso.swapping import cheaper_later
from sloserve.scheduler.andes.outlook import Outlook
from sloserve.scheduler.policy import NO_SLOTS, EngineFacts, Snapshot

PAUSING_LEAD_S = 5.0
"""Shortest lead of a request that is paused because KV blocks are short."""


@dataclass(frozen=True, slots=True, eq=False)
class VictimOrder:
    """Which running requests may be preempted for a waiting one, and in which order.

    places: indices in an :class:`Outlook`, the first choice first. key, head_key: ``[len(outlook)]``; a victim's key
    exceeds the waiting request's head key by more than ``margin``.
    """

    places: IntArray
    key: FloatArray
    head_key: FloatArray
    margin: float


@dataclass(frozen=True, slots=True, eq=False)
class HeadOfLine:
    """The waiting requests that are first in the order of admission; others may be preempted for them.

    places: indices in an :class:`Outlook` of the requests with these ranks. blocks: KV blocks needed at each
    of these ranks: by the request itself, or by the aged request that has its turn there.
    """

    places: IntArray
    blocks: IntArray

    def fit(self, free_slots: int, free_blocks: int) -> bool:
        """Whether they can be admitted as things are."""
        return not self.places.size or (self.places.size <= free_slots and int(self.blocks.sum()) <= free_blocks)


def longest_lead_first(
    all_: Outlook, running: IntArray, lead_s: float, price: FloatArray, wait_s: float = 0.0
) -> VictimOrder:
    """Preempts the requests that are furthest ahead of their readers, as far as their preemption costs the same.

    Args:
        running: indices, the shortest lead first.
        lead_s: least lead of a victim, and least difference between its lead and the waiting request's, where it is
            computed again.
        price: ``[len(running)]``; the share of ``lead_s`` that each must have.
        wait_s: for which it will wait for its turn again, and which its lead must last.
    """
    key = all_.lead_s.copy()
    key[running] = cheaper_later(key[running], lead_s, price, wait_s)
    ahead = running[key[running] >= lead_s][::-1]
    return VictimOrder(ahead[np.argsort(-key[ahead], kind="stable")], key, np.maximum(all_.lead_s, 0.0), lead_s)


def victims_for(
    heads: HeadOfLine,
    all_: Outlook,
    order: VictimOrder,
    snapshot: Snapshot,
    *,
    max_preemptions: int,
    free_blocks: int,
    most: int,
) -> IntArray:
    """Indices of at most ``most`` requests to preempt so that ``heads`` can be admitted.

    max_preemptions: a request that was preempted so often is not a victim again.
    """
    rows = snapshot.rows
    slots = all_.slots[order.places]
    may = rows.preemptable[slots] & (rows.num_preemptions[slots] < max_preemptions)
    candidates = order.places[may][:most]
    victims = select_victims(
        map(Head, order.head_key[heads.places].tolist(), heads.blocks.tolist()),
        map(PreemptionCandidate, candidates.tolist(), order.key[candidates].tolist()),
        lambda place: snapshot.holding(int(all_.slots[place])),
        free_slots=snapshot.engine.free_slots,
        free_blocks=free_blocks,
        margin=order.margin,
    )
    return np.array(victims, np.int64) if victims else NO_SLOTS


def short_of_blocks(all_: Outlook, running: IntArray, rows: Rows, engine: EngineFacts) -> IntArray:
    """Slots of the requests to pause because their next KV block is missing, the longest lead first.

    Without the pauses vLLM would preempt a request for each block. running: indices, the shortest lead first.
    """
    slots = all_.slots[running]
    places = pausing.short_of_blocks(
        rows.computed_tokens[slots],
        ~unfinished(rows, slots),
        rows.pausable[slots] & (all_.lead_s[running] > PAUSING_LEAD_S),
        layout=engine.layout,
        decode_tokens=engine.decode_tokens,
        free_blocks=engine.free_blocks,
    )
    return slots[places]
