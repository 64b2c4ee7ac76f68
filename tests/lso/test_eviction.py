"""Request eviction: only where it suffices, only across the margin, and no more than needed."""

import math

from hypothesis import given
from hypothesis import strategies as st

from sloserve.lso.eviction import Candidate, select_victims


def heads(*pairs: tuple[float, int]) -> list[Candidate]:
    return [Candidate(100 + i, key, blocks) for i, (key, blocks) in enumerate(pairs)]


def candidates(*pairs: tuple[float, int]) -> list[Candidate]:
    return [Candidate(i, key, blocks) for i, (key, blocks) in enumerate(pairs)]


def test_nobody_gives_way_where_there_is_room() -> None:
    assert select_victims(heads((1, 3), (2, 3)), candidates((9, 5)), free_slots=2, free_blocks=6, margin=0) == []


def test_a_missing_slot_takes_one_victim_a_head() -> None:
    found = select_victims(
        heads((1, 1), (2, 1)), candidates((9, 1), (8, 1), (7, 1)), free_slots=0, free_blocks=9, margin=0
    )
    assert found == [0, 1]


def test_missing_blocks_take_as_many_as_they_need() -> None:
    assert select_victims(heads((1, 7)), candidates((9, 2), (8, 4), (7, 4)), free_slots=5, free_blocks=1, margin=0) == [
        0,
        1,
    ]


def test_blocks_left_over_by_one_head_serve_the_next() -> None:
    found = select_victims(heads((1, 2), (2, 6)), candidates((9, 10), (8, 10)), free_slots=1, free_blocks=0, margin=0)
    assert found == [0]


def test_the_first_head_that_cannot_be_admitted_ends_the_search() -> None:
    found = select_victims(heads((1, 99), (2, 1)), candidates((9, 5), (8, 5)), free_slots=0, free_blocks=0, margin=0)
    assert found == []


def test_a_key_within_the_margin_is_safe_and_infinity_is_not_beyond_infinity() -> None:
    assert select_victims(heads((1, 1)), candidates((3.0, 5)), free_slots=0, free_blocks=0, margin=2) == []
    assert select_victims(heads((1, 1)), candidates((3.1, 5)), free_slots=0, free_blocks=0, margin=2) == [0]
    assert select_victims(heads((math.inf, 1)), candidates((math.inf, 5)), free_slots=0, free_blocks=0, margin=0) == []


PAIRS = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 6)), max_size=8)


@given(PAIRS, PAIRS, st.integers(0, 3), st.integers(0, 10), st.integers(0, 4))
def test_against_the_shortest_sufficient_prefix(
    waiting: list[tuple[int, int]], running: list[tuple[int, int]], slots: int, blocks: int, margin: int
) -> None:
    queue, pool = heads(*sorted(waiting)), candidates(*sorted(running, reverse=True))
    found = select_victims(queue, pool, free_slots=slots, free_blocks=blocks, margin=margin)

    # Whoever is evicted is the most expendable, each once.
    assert found == [c.slot for c in pool[: len(found)]]
    # Admit the heads in order, each with the fewest victims that suffice, all of them beyond its margin.
    taken = 0
    for head in queue:
        sufficient = (
            t
            for t in range(taken, len(pool) + 1)
            if slots + (t - taken) >= 1 and blocks + sum(c.blocks for c in pool[taken:t]) >= head.blocks
        )
        least = next(sufficient, None)
        if least is None or any(c.key - head.key <= margin for c in pool[taken:least]):
            break
        slots += least - taken - 1
        blocks += sum(c.blocks for c in pool[taken:least]) - head.blocks
        taken = least
    assert len(found) == taken


@given(PAIRS, PAIRS, st.integers(0, 3), st.integers(0, 10), st.integers(0, 4))
def test_an_eviction_admits_somebody_and_never_crosses_the_margin(
    waiting: list[tuple[int, int]], running: list[tuple[int, int]], slots: int, blocks: int, margin: int
) -> None:
    queue, pool = heads(*sorted(waiting)), candidates(*sorted(running, reverse=True))
    found = select_victims(queue, pool, free_slots=slots, free_blocks=blocks, margin=margin)
    for slot in found:
        assert pool[slot].key - queue[0].key > margin
    if found:
        head = queue[0]
        assert slots + len(found) >= 1 and blocks + sum(pool[s].blocks for s in found) >= head.blocks
