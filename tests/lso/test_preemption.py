"""Request eviction: only where it suffices, only across the margin, no more than needed, shared blocks counted once."""

import math
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.lso.preemption import (
    MOST_LOOKED_AT,
    MOST_SHARERS,
    Head,
    Holding,
    PreemptionCandidate,
    freed_blocks,
    select_victims,
)


def victims(
    waiting: Sequence[tuple[float, int]],
    running: Sequence[tuple[float, int]],
    *,
    slots: int = 0,
    blocks: int = 0,
    margin: float = 0.0,
) -> list[int]:
    """waiting: key and blocks needed of each; running: key and blocks held alone."""
    return select_victims(
        [Head(*one) for one in waiting],
        [PreemptionCandidate(i, key) for i, (key, _) in enumerate(running)],
        lambda slot: Holding(running[slot][1]),
        free_slots=slots,
        free_blocks=blocks,
        margin=margin,
    )


@pytest.mark.parametrize(
    ("waiting", "running", "room", "expected"),
    [
        # There is room.
        ([(1, 3), (2, 3)], [(9, 5)], (2, 6), []),
        # A missing slot takes one victim a head.
        ([(1, 1), (2, 1)], [(9, 1), (8, 1), (7, 1)], (0, 9), [0, 1]),
        # Missing blocks take as many as they need.
        ([(1, 7)], [(9, 2), (8, 4), (7, 4)], (5, 1), [0, 1]),
        # Blocks left over by one head serve the next.
        ([(1, 2), (2, 6)], [(9, 10), (8, 10)], (1, 0), [0]),
        # The first head that cannot be admitted ends the search.
        ([(1, 99), (2, 1)], [(9, 5), (8, 5)], (0, 0), []),
    ],
)
def test_who_gives_way(
    waiting: list[tuple[float, int]], running: list[tuple[float, int]], room: tuple[int, int], expected: list[int]
) -> None:
    assert victims(waiting, running, slots=room[0], blocks=room[1]) == expected


def test_a_key_within_the_margin_is_safe_and_infinity_is_not_beyond_infinity() -> None:
    assert victims([(1, 1)], [(3.0, 5)], margin=2) == []
    assert victims([(1, 1)], [(3.1, 5)], margin=2) == [0]
    assert victims([(math.inf, 1)], [(math.inf, 5)]) == []


def shared(holders: Sequence[tuple[int, set[int]]]) -> list[Holding]:
    """holders: of each request, how many blocks are its own, and the ids of those it shares if others name them too."""
    count = Counter(block for _, ids in holders for block in ids)
    return [
        Holding(own + sum(count[i] == 1 for i in ids), {i: count[i] for i in ids if count[i] > 1})
        for own, ids in holders
    ]


def test_one_goes_where_five_that_share_a_prefix_would_free_no_more() -> None:
    """The five rank last; each holds ten blocks, nine of them shared with the others."""
    holdings = [*shared([(1, set(range(9)))] * 5), Holding(10)]
    found = select_victims(
        [Head(1, 10)],
        map(PreemptionCandidate, range(6), [9.0] * 6),
        holdings.__getitem__,
        free_slots=0,
        free_blocks=0,
        margin=0,
    )
    assert found == [5]


def test_one_is_not_worth_many_that_free_a_block_each() -> None:
    looked: list[int] = []

    def holding_of(slot: int) -> Holding:
        looked.append(slot)
        return Holding(1, {7: 400})

    assert select_victims(
        [Head(1, MOST_SHARERS), Head(2, MOST_SHARERS + 1)],
        map(PreemptionCandidate, range(400), [9.0] * 400),
        holding_of,
        free_slots=0,
        free_blocks=0,
        margin=0,
    ) == list(range(MOST_SHARERS))
    assert len(looked) <= MOST_SHARERS + MOST_LOOKED_AT


def test_who_is_spared_for_one_is_the_first_to_go_for_the_next() -> None:
    holdings = [*shared([(1, set(range(9)))] * 5), Holding(10)]
    found = select_victims(
        [Head(1, 10), Head(2, 2)],
        map(PreemptionCandidate, range(6), [9.0] * 6),
        holdings.__getitem__,
        free_slots=0,
        free_blocks=0,
        margin=0,
    )
    assert found == [5, 0, 1]


def test_no_more_candidates_are_looked_at_than_needed() -> None:
    looked: list[int] = []
    select_victims(
        [Head(1, 4)],
        map(PreemptionCandidate, range(99), [9.0] * 99),
        lambda slot: looked.append(slot) or Holding(2),  # type: ignore[func-returns-value]
        free_slots=0,
        free_blocks=0,
        margin=0,
    )
    assert looked == [0, 1]


HEADS = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 9)), max_size=6).map(sorted)
RUNNING = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 3), st.sets(st.integers(0, 5))), max_size=7).map(
    lambda found: sorted(found, key=lambda one: -one[0])
)


@given(HEADS, RUNNING, st.integers(0, 3), st.integers(0, 10), st.integers(0, 4))
def test_victims_are_expendable_make_the_room_counted_and_none_is_needless(
    waiting: list[tuple[int, int]],
    running: list[tuple[int, int, set[int]]],
    slots: int,
    blocks: int,
    margin: int,
) -> None:
    holdings = shared([(own, ids) for _, own, ids in running])
    candidates = [PreemptionCandidate(i, key) for i, (key, _, _) in enumerate(running)]
    heads = [Head(*one) for one in waiting]
    found = select_victims(heads, candidates, holdings.__getitem__, free_slots=slots, free_blocks=blocks, margin=margin)
    assert len(set(found)) == len(found)

    def freed(gone: Sequence[int]) -> int:
        """What the pool would say: own blocks of the gone, and those that no other request names."""
        kept = {block for i, (_, _, ids) in enumerate(running) if i not in gone for block in ids}
        return sum(running[i][1] for i in gone) + len({b for i in gone for b in running[i][2]} - kept)

    assert sum(freed_blocks(holdings[i] for i in found)) == freed(found)
    # As many heads get in as these make room for.
    admitted, needed = 0, 0
    while (
        admitted < len(heads)
        and admitted < slots + len(found)
        and needed + heads[admitted].blocks <= blocks + freed(found)
    ):
        needed += heads[admitted].blocks
        admitted += 1
    if found:
        assert admitted and all(running[i][0] - heads[0].key > margin for i in found)
    # For one head: no more than the first that suffice together, and these where nobody shares.
    one = select_victims(
        heads[:1], candidates, holdings.__getitem__, free_slots=slots, free_blocks=blocks, margin=margin
    )
    for head in heads[:1]:
        able = [i for i, (key, _, _) in enumerate(running) if key - head.key > margin]
        lengths = range(len(able) + 1)
        suffice = [n for n in lengths if slots + n >= 1 and blocks + freed(able[:n]) >= head.blocks]
        assert bool(one) == bool(suffice and suffice[0])
        assert len(one) <= (suffice[0] if suffice else 0)
        assert one == list(range(len(one))) or any(holding.shared for holding in holdings)
