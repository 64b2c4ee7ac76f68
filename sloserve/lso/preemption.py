"""Choice of victims: which running requests to preempt so that more urgent ones get a slot and KV blocks now.

Requests that share a prefix share its blocks, and a shared block becomes free with its last holder: how many blocks a
preemption frees depends on the other victims.

Source: QLM, Sec. 5.2 (request eviction). Differs: we choose victims for each blocked request, as few as possible, and
only requests that the policy ranks later by a margin; QLM preempts every request outside the head group.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

MOST_SHARERS: Final = 8
"""Most victims for one waiting request if some of them share blocks. Where more are needed each frees only a block or
two, and admitting one request is not worth that many preemptions.
"""
MOST_LOOKED_AT: Final = 64
"""Most candidates to examine for one waiting request, once one of them shares blocks; each takes 10 us."""

_NONE: Mapping[int, int] = MappingProxyType({})


class Holding(NamedTuple):
    """KV blocks of a request.

    Args:
        own: Number of blocks that no other request holds.
        shared: Number of holders of each shared block, by block id.
    """

    own: int
    shared: Mapping[int, int] = _NONE


class Head(NamedTuple):
    """A waiting request that needs room.

    Args:
        key: Key of its rank; lower is served first.
        blocks: KV blocks that it needs.
    """

    key: float
    blocks: int


class PreemptionCandidate(NamedTuple):
    """A running request that may be preempted.

    Args:
        key: Key of its rank; lower is served first.
    """

    slot: int
    key: float


def freed_blocks(holdings: Iterable[Holding]) -> Iterator[int]:
    """Return the KV blocks that each preemption frees, if requests with these holdings are preempted in this order."""
    gone: dict[int, int] = {}
    return (_release(holding, gone) for holding in holdings)


def select_victims(
    heads: Iterable[Head],
    candidates: Iterable[PreemptionCandidate],
    holding_of: Callable[[int], Holding],
    *,
    free_slots: int,
    free_blocks: int,
    margin: float,
) -> list[int]:
    """Return the slots to preempt so that the requests first in line can be admitted, in the order chosen.

    A head gets victims only if they suffice to admit it. The first head that cannot be admitted ends the search, since
    the engine's admission stops there too. Victims are the first candidates that suffice. If some of these share
    blocks, a second set is tried: the first candidates that suffice by their own blocks, without candidates that later
    ones make unnecessary. The smaller set is taken, of at most ``MOST_SHARERS`` requests.

    Args:
        heads: Waiting requests, most urgent first.
        candidates: Running requests that may be preempted, most expendable first; read only as far as needed.
        holding_of: Function that returns the KV blocks of the request in a slot.
        free_slots: Number of further requests that could be admitted now.
        free_blocks: KV blocks that are free.
        margin: Amount by which a candidate's key must exceed the head's key for the candidate to be preempted.
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
    """The candidates examined so far that are not victims, most expendable first, with their holdings.

    ``shares`` says whether any candidate examined so far shares blocks.
    """

    def __init__(self, candidates: Iterable[PreemptionCandidate], holding_of: Callable[[int], Holding]) -> None:
        self._more = iter(candidates)
        self._holding_of = holding_of
        self._seen: list[tuple[PreemptionCandidate, Holding]] = []
        self.shares = False

    def places_for(
        self, short: Head, free_slots: int, gone: Mapping[int, int], margin: float, *, together: bool
    ) -> range | None:
        """Return the indices of the victims for one head; ``None`` if all candidates that may give way do not suffice.

        Args:
            short: The head, with the number of blocks that it lacks.
            free_slots: Number of further requests that could be admitted now.
            gone: Number of holders of each block that are victims already, by block id.
            margin: Margin of :func:`select_victims`.
            together: Whether to count shared blocks of which all holders are victims.
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
        # The last one taken was necessary. Together with it, the first ones taken may not be.
        first, blocks, trial = taken, 0, dict(gone)
        while free_slots + taken - first < 1 or blocks < short.blocks:
            first -= 1
            blocks += _release(self._seen[first][1], trial)
        return range(first, taken) if taken - first <= MOST_SHARERS else None

    def take(self, places: range, gone: dict[int, int]) -> tuple[list[int], int]:
        """Remove these victims from the pool and count them in ``gone``; return their slots and the freed blocks."""
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
    """Return the blocks that are freed when a request with this holding leaves.

    Args:
        holding: Blocks of the request.
        gone: Number of holders of each block that are gone, by block id; it is updated.
    """
    blocks = holding.own
    for block, holders in holding.shared.items():
        gone[block] = gone.get(block, 0) + 1
        blocks += gone[block] == holders
    return blocks
