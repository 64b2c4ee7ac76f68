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
    """The running requests that may be preempted for a waiting one, and their order.

    A victim's key exceeds the waiting request's head key by more than ``margin``.

    Args:
        places: Indices in an :class:`Outlook`, the first choice first.
        key: Key of each request as a victim, ``[len(outlook)]``.
        head_key: Key of each request as a waiting one, ``[len(outlook)]``.
    """

    places: IntArray
    key: FloatArray
    head_key: FloatArray
    margin: float


@dataclass(frozen=True, slots=True, eq=False)
class HeadOfLine:
    """The waiting requests that are first in the order of admission; others may be preempted for them.

    Args:
        places: Indices in an :class:`Outlook` of the requests with these ranks.
        blocks: KV blocks needed at each of these ranks: by the request itself, or by the aged request that has its turn
            there.
    """

    places: IntArray
    blocks: IntArray

    def fit(self, free_slots: int, free_blocks: int) -> bool:
        """Return whether the requests can be admitted without a preemption."""
        return not self.places.size or (self.places.size <= free_slots and int(self.blocks.sum()) <= free_blocks)


def longest_lead_first(
    all_: Outlook, running: IntArray, lead_s: float, price: FloatArray, wait_s: float = 0.0
) -> VictimOrder:
    """Return the order in which the requests furthest ahead of their readers are preempted first.

    Leads are compared as if all preemptions cost the same: a cheap preemption adds to the lead.

    Args:
        all_: The outlook of all requests.
        running: Indices of the running requests, the shortest lead first.
        lead_s: Least lead of a victim in seconds, and least difference between its lead and the waiting request's,
            where it is computed again.
        price: Share of ``lead_s`` that each must have, ``[len(running)]``.
        wait_s: Seconds for which a victim will wait for its turn again, which its lead must last.
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
    """Return the indices of at most ``most`` requests to preempt so that ``heads`` can be admitted.

    Args:
        heads: The waiting requests that are first in the order of admission.
        all_: The outlook of all requests.
        order: The running requests that may be preempted, in order.
        snapshot: The engine's state.
        max_preemptions: Number of preemptions after which a request is not a victim again.
        free_blocks: KV blocks that are free.
        most: Most requests to preempt.
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
    """Return the slots of the requests to pause because their next KV block is missing, the longest lead first.

    Without the pauses vLLM would preempt a request for each block.

    Args:
        all_: The outlook of all requests.
        running: Indices of the running requests, the shortest lead first.
        rows: The request table.
        engine: What the engine can do.
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
