"""What follows from columns of the request table: the compiled rules against a plain reading of them."""

from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.core.kernels.requests import (
    ProgressColumns,
    any_up_to,
    chunks_scheduled,
    context_and_uncomputed,
    counts_of,
    moved_to_front,
    places_stated,
    read_counts,
    slots_found,
    slots_in_order,
    slots_misused,
    split_running,
    token_pace,
    tokens_without_kv,
    uncomputed_tokens,
    without_targets,
)
from tests.csrc.facts import PROGRESS

TOKENS = st.integers(0, 40)


@given(st.lists(st.tuples(TOKENS, TOKENS, TOKENS, TOKENS, TOKENS), min_size=1, max_size=8), st.data())
def test_what_is_still_to_compute(requests: list[tuple[int, ...]], data: st.DataObject) -> None:
    found = zip(PROGRESS, zip(*requests, strict=True), strict=True)
    progress = ProgressColumns(**{name: np.array(column, np.int64) for name, column in found})
    slots = np.array(data.draw(st.lists(st.integers(0, len(requests) - 1), max_size=9)), np.int64)
    without = [p + out - computed - max(swapped, hit) for p, out, computed, swapped, hit in requests]
    left = [0 if n <= (requests[i][1] > 0) else n for i, n in enumerate(without)]
    assert tokens_without_kv(progress, slots).tolist() == [without[i] for i in slots]
    assert uncomputed_tokens(progress, slots[::-1]).tolist() == [left[i] for i in slots[::-1]]
    both = context_and_uncomputed(progress, slots)
    assert [column.tolist() for column in both] == [[sum(requests[i][:2]) for i in slots], [left[i] for i in slots]]
    decodes, prompts, context = split_running(progress, slots)
    assert decodes.tolist() == [i for i in slots if not left[i]] and prompts.tolist() == [i for i in slots if left[i]]
    assert context == sum(requests[i][0] + requests[i][1] for i in decodes)


def test_targets() -> None:
    nan, slots = np.nan, np.array([3, 0, 1, 2])
    tpot_s, tds, other = (np.array(x) for x in ([0.5, nan, 0.1, nan], [4.0, 4.0, nan, nan], [1.0, nan, nan, nan]))
    assert token_pace(tpot_s, tds, slots).tolist() == pytest.approx([nan, 0.25, 0.25, 0.1], nan_ok=True)
    found = without_targets(slots, ttft_s=other, tpot_s=tpot_s, e2e_s=other, tds=tds)
    assert found.dtype == np.bool_ and found.tolist() == [True, False, False, False]


def test_slots_that_there_are_not_are_refused() -> None:
    progress = ProgressColumns(**dict.fromkeys(PROGRESS, np.zeros(2, np.int64)))
    for slots in (np.array([2]), np.array([-1])):
        with pytest.raises(ValueError, match="of 2"):
            uncomputed_tokens(progress, slots)
    with pytest.raises(ValueError, match="several lengths"):
        columns = dict.fromkeys(PROGRESS, np.zeros(2, np.int64)) | {"hit_tokens": np.zeros(1, np.int64)}
        uncomputed_tokens(ProgressColumns(**columns), np.array([0]))


def test_attributes_are_counted() -> None:
    class One:
        def __init__(self, number: Any, held: Any) -> None:
            self.number, self.held = number, held

    many = [One(3, [1, 2]), One(True, ()), One(-1, {})]
    numbers, held = counts_of(many, ("number", "held"))
    assert numbers.tolist() == [3, 1, -1] and held.tolist() == [2, 0, 0] and held.dtype == np.int64
    assert [column.size for column in counts_of([], ("number",))] == [0]
    for wrong, error in ((One(None, ()), TypeError), (One(2**70, ()), OverflowError), (object(), AttributeError)):
        with pytest.raises(error):
            counts_of([wrong], ("number",))


def test_attributes_are_read_into_their_slots() -> None:
    class One:
        def __init__(self, number: int) -> None:
            self.number, self.held = number, [0] * (number % 7)

    objects: list[Any] = [One(i) if i % 3 else None for i in range(100)]
    slots = np.array([i for i in range(99, 0, -1) if i % 3])
    for some in (slots, slots[:1], slots[:0], slots[:16], slots[:17]):
        numbers, held = np.full(100, -1), np.full(100, -1)
        read_counts(objects, some, ("number", "held"), [numbers, held])
        expected = np.full(100, -1)
        expected[some] = some
        assert numbers.tolist() == expected.tolist()
        expected[some] = some % 7
        assert held.tolist() == expected.tolist()
    with pytest.raises(AttributeError):
        read_counts(objects, np.array([0]), ("number",), [numbers])
    for wrong, why in (([100], "slot 100"), ([-1], "slot -1")):
        with pytest.raises(ValueError, match=why):
            read_counts(objects, np.array(wrong), ("number",), [numbers])
    with pytest.raises(ValueError, match="columns: 99 elements"):
        read_counts(objects, slots, ("number",), [numbers[:99]])
    with pytest.raises(ValueError, match="columns: 1 elements"):
        read_counts(objects, slots, ("number", "held"), [numbers])


def test_slots_are_found_by_name() -> None:
    class One:
        def __init__(self, name: str) -> None:
            self.name = name

    slot_of, many = {"a": 3, "c": 0, "d": 7}, [One(name) for name in "abcd"]
    assert slots_found(slot_of, many, "name").tolist() == [3, 0, 7]
    assert slots_found(slot_of, iter(many), "name", 2).tolist() == [3, 0]
    assert slots_found(slot_of, many, "name", 0).size == 0
    with pytest.raises(AttributeError):
        slots_found(slot_of, many, "number")


@pytest.mark.parametrize(
    ("slots", "why"),
    [([0, 2], None), ([], None), ([0, 1], "state"), ([0, 1, 0], "twice"), ([0, 0, 3], "outside"), ([-1], "outside")],
)
def test_slots_are_named_once_in_the_right_state(slots: list[int], why: str | None) -> None:
    assert slots_misused(np.array(slots, np.int32), np.array([1, 3, 2], np.int8), 1, 2) == why


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), max_size=40), st.integers(-1, 9))
def test_whether_any_came_so_early(slots: list[tuple[int, int]], last: int) -> None:
    state, seq = np.array([s for s, _ in slots], np.int8), np.array([n for _, n in slots], np.int64)
    assert any_up_to(state, seq, last, 1, 2) == any(s in (1, 2) and n <= last for s, n in slots)


def test_whether_any_came_so_early_needs_a_number_for_each() -> None:
    with pytest.raises(ValueError, match="seq: 1 elements for 2 states"):
        any_up_to(np.zeros(2, np.int8), np.zeros(1, np.int64), 0, 1)


def test_what_is_stated_is_not_nan() -> None:
    column = np.array([np.nan, 1.0, np.nan, np.inf, 0.0])
    for slots in ([4, 0, 3, 2], [0, 2], [], [1]):
        chosen = np.array(slots, np.int64)
        assert places_stated(column, chosen).tolist() == np.flatnonzero(~np.isnan(column[chosen])).tolist()
    with pytest.raises(ValueError, match="slot 5 of 5"):
        places_stated(column, np.array([5]))


def test_chunks_are_of_more_than_one_token() -> None:
    tokens = {"a": 1, "b": 300, "c": 0, "d": 2}
    assert chunks_scheduled(tokens, ["d", "a", "b", "c"], [7, 5, 2**40, 0]) == [(2, 7), (300, 2**40)]
    assert chunks_scheduled({}, [], []) == []
    with pytest.raises(KeyError):
        chunks_scheduled(tokens, ["e"], [1])
    with pytest.raises(ValueError, match="computed: 1 elements for 2 ids"):
        chunks_scheduled(tokens, ["a", "b"], [1])


def test_objects_are_known_by_which_they_are() -> None:
    class Alike:
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]

    a, b, c, d = (Alike() for _ in range(4))
    assert slots_in_order([a, None, b, c], np.array([0, 3]), (c, d, b, a)).tolist() == [3, 0]
    with pytest.raises(ValueError, match="slot 2 of 2"):
        slots_in_order([a, b], np.array([2]), [])

    def moved(present: Iterable[object], wanted: list[object]) -> list[list[str]] | None:
        found, name = (
            moved_to_front(present, [None, *wanted], np.arange(len(wanted)) + 1),
            {id(one): letter for one, letter in zip((a, b, c, d), "abcd", strict=True)},
        )
        return None if found is None else [[name[id(one)] for one in part] for part in found]

    assert moved([a, b, c], [c, a]) == [["c", "a"], ["b"]]
    assert moved(deque([a, b, c]), [a, b]) is None and moved([a], []) is None
    assert moved([a, b, c], [d, b, a]) == [["b", "a"], ["c"]]
    assert moved([a], [a, b]) == [["a"], []]


@given(st.permutations(range(50)), st.integers(0, 50))
def test_many_objects_are_moved_to_the_front(order: list[int], chosen: int) -> None:
    present = [object() for _ in range(50)]
    wanted = [present[i] for i in order[:chosen]]
    slots = np.array(order[:chosen], np.int64)
    expected = (wanted, [one for i, one in enumerate(present) if i not in set(order[:chosen])])
    for queue in (present, deque(present)):
        assert (moved_to_front(queue, present, slots) or (present[:chosen], present[chosen:])) == expected
