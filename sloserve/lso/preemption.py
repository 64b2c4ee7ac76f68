"""Request eviction: whom to preempt so that more urgent requests get a slot and KV blocks now.

Requests that share a prefix share its blocks, and a shared block comes free with its last holder: what an eviction
frees depends on who else is evicted.

Source: QLM, Sec. 5.2 (request eviction). Differs: victims are chosen per blocked request, fewest first, and only ones
that the policy ranks later by a margin; QLM evicts whatever is not of the head group.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

MOST_SHARERS: Final = 8
"""Victims for one head, of whom some share blocks. Where more are needed each frees a block or two, and one request is
not worth them.
"""
MOST_LOOKED_AT: Final = 64
"""Candidates for one head, from the first that shares blocks on; looking at one takes 10 us."""

_NONE: Mapping[int, int] = MappingProxyType({})


class Holding(NamedTuple):
    """KV blocks of a request. own: those that nobody else holds. shared: of the others, how many hold each, by id."""

    own: int
    shared: Mapping[int, int] = _NONE


class Head(NamedTuple):
    """A waiting request as eviction sees it. key: rank, lower is served first. blocks: KV blocks needed."""

    key: float
    blocks: int


class Candidate(NamedTuple):
    """A running request as eviction sees it. key: rank, lower is served first."""

    slot: int
    key: float


def freed_blocks(holdings: Iterable[Holding]) -> Iterator[int]:
    """KV blocks that each eviction adds to what is free, if requests with these holdings are evicted in this order."""
    gone: dict[int, int] = {}
    return (_release(holding, gone) for holding in holdings)


def select_victims(
    heads: Iterable[Head],
    candidates: Iterable[Candidate],
    holding_of: Callable[[int], Holding],
    *,
    free_slots: int,
    free_blocks: int,
    margin: float,
) -> list[int]:
    """Slots to evict so that ``heads`` can be admitted, in the order chosen.

    heads: waiting requests, most urgent first. candidates: running requests that may be evicted, most expendable first;
    no more are looked at than are needed. holding_of: what the request in a slot holds. A candidate gives way to a head
    only if its key exceeds the head's by more than ``margin``. Evictions for a head happen only if they suffice to
    admit it; the first head that cannot be admitted ends the search, since the engine's admission stops there.

    The first candidates that suffice are taken. Where these share blocks, the first that suffice by their own blocks
    alone are looked for too, less those of them that the later ones make needless, and taken if they are fewer; and
    ``MOST_SHARERS`` are the most.
    """
    victims: list[int] = []
    pool = _Pool(candidates, holding_of)
    gone: dict[int, int] = {}
    for head in heads:
        short = Head(head.key, head.blocks - free_blocks)
        places = pool.places_for(short, free_slots, gone, margin, together=True)
        if pool.shares and (places is None or len(places) > 1):
            alone = pool.places_for(short, free_slots, gone, margin, together=False)
            places = min((one for one in (places, alone) if one is not None), key=len, default=None)
        if places is None:
            break
        slots, blocks = pool.take(places, gone)
        victims.extend(slots)
        free_slots, free_blocks = free_slots + len(slots) - 1, free_blocks + blocks - head.blocks
    return victims


class _Pool:
    """Candidates that were looked at and are not evicted, most expendable first, and their holdings.

    shares: whether one of all looked at shares blocks.
    """

    def __init__(self, candidates: Iterable[Candidate], holding_of: Callable[[int], Holding]) -> None:
        self._more = iter(candidates)
        self._holding_of = holding_of
        self._seen: list[tuple[Candidate, Holding]] = []
        self.shares = False

    def places_for(
        self, short: Head, free_slots: int, gone: Mapping[int, int], margin: float, *, together: bool
    ) -> range | None:
        """Places of those to evict for a head that is so many blocks short; ``None`` where all that may give way do not
        suffice.

        gone: how many holders of a block have been evicted, by id. together: whether a block counts whose holders are
        all evicted.
        """
        taken, blocks, trial = 0, 0, dict(gone)
        while free_slots + taken < 1 or blocks < short.blocks:
            if self.shares and taken >= (MOST_SHARERS if together else MOST_LOOKED_AT):
                return None
            if not self._has(taken) or not self._seen[taken][0].key - short.key > margin:
                return None
            holding = self._seen[taken][1]
            blocks += _release(holding, trial) if together else holding.own
            taken += 1
        if together:
            return range(taken)
        # Of those taken the least expendable was needed; seen from there, the most expendable may not be.
        first, blocks, trial = taken, 0, dict(gone)
        while free_slots + taken - first < 1 or blocks < short.blocks:
            first -= 1
            blocks += _release(self._seen[first][1], trial)
        return range(first, taken) if taken - first <= MOST_SHARERS else None

    def take(self, places: range, gone: dict[int, int]) -> tuple[list[int], int]:
        """Evicts them: their slots, and how many blocks come free. gone: is counted up."""
        chosen = self._seen[places.start : places.stop]
        del self._seen[places.start : places.stop]
        return [candidate.slot for candidate, _ in chosen], sum(_release(holding, gone) for _, holding in chosen)

    def _has(self, place: int) -> bool:
        if place == len(self._seen) and (candidate := next(self._more, None)) is not None:
            holding = self._holding_of(candidate.slot)
            self.shares = self.shares or bool(holding.shared)
            self._seen.append((candidate, holding))
        return place < len(self._seen)


def _release(holding: Holding, gone: dict[int, int]) -> int:
    """Blocks freed by one more holder's leaving. gone: how many holders of a block have left, by id; is counted up."""
    blocks = holding.own
    for block, holders in holding.shared.items():
        gone[block] = gone.get(block, 0) + 1
        blocks += gone[block] == holders
    return blocks
