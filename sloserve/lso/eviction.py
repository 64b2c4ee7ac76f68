"""Request eviction: whom to preempt so that more urgent requests get a slot and KV blocks now.

Source: QLM, Sec. 5.2 (request eviction). Differs: victims are chosen per blocked request, fewest first, and only ones
that the policy ranks later by a margin; QLM evicts whatever is not of the head group.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Candidate:
    """A request as eviction sees it. key: rank, lower is served first. blocks: KV blocks held, or needed."""

    slot: int
    key: float
    blocks: int


def select_victims(
    heads: Sequence[Candidate], candidates: Sequence[Candidate], *, free_slots: int, free_blocks: int, margin: float
) -> list[int]:
    """Slots to evict so that ``heads`` can be admitted, in the order chosen.

    heads: waiting requests, most urgent first. candidates: running requests that may be evicted, most expendable first.
    A candidate gives way to a head only if its key exceeds the head's by more than ``margin``. Evictions for a head
    happen only if they suffice to admit it; the first head that cannot be admitted ends the search, since the engine's
    admission stops there.
    """
    victims: list[int] = []
    next_candidate = 0
    for head in heads:
        taken = next_candidate
        slots, blocks = free_slots, free_blocks
        while (slots < 1 or blocks < head.blocks) and taken < len(candidates):
            candidate = candidates[taken]
            if not candidate.key - head.key > margin:
                break
            slots, blocks, taken = slots + 1, blocks + candidate.blocks, taken + 1
        if slots < 1 or blocks < head.blocks:
            break
        victims.extend(c.slot for c in candidates[next_candidate:taken])
        next_candidate = taken
        free_slots, free_blocks = slots - 1, blocks - head.blocks
    return victims
