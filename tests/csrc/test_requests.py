"""What follows from columns of the request table: the compiled rules against a plain reading of them."""

from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.kernels.requests import (
    context_and_uncomputed,
    counts_of,
    moved_to_front,
    slots_found,
    slots_misused,
    split_running,
    token_pace,
    tokens_without_kv,
    uncomputed_tokens,
    values_in_order,
    without_targets,
)

TOKENS = st.integers(0, 40)


@given(st.lists(st.tuples(TOKENS, TOKENS, TOKENS, TOKENS, TOKENS), min_size=1, max_size=8), st.data())
def test_what_is_still_to_compute(requests: list[tuple[int, ...]], data: st.DataObject) -> None:
    progress = tuple(np.array(column, np.int64) for column in zip(*requests, strict=True))
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
    found = without_targets((tpot_s, tds, other, other), slots)
    assert found.dtype == np.bool_ and found.tolist() == [True, False, False, False]


def test_slots_that_there_are_not_are_refused() -> None:
    column = np.zeros(2, np.int64)
    for slots in (np.array([2]), np.array([-1])):
        with pytest.raises(ValueError, match="of 2"):
            uncomputed_tokens((column,) * 5, slots)
    with pytest.raises(ValueError, match="several lengths"):
        uncomputed_tokens((*(column,) * 4, column[1:]), np.array([0]))


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


def test_objects_are_known_by_which_they_are() -> None:
    class Alike:
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]

    a, b, c, d = (Alike() for _ in range(4))
    values = values_in_order([a, b, c], np.array([7, 0, 9]), (c, d, a))
    assert values.tolist() == [9, 7]
    with pytest.raises(ValueError, match="values: 1 elements for 2 objects"):
        values_in_order([a, b], np.array([7]), [])

    def moved(present: Iterable[object], wanted: list[object]) -> list[list[str]] | None:
        found, name = (
            moved_to_front(present, wanted),
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
    expected = (wanted, [one for i, one in enumerate(present) if i not in set(order[:chosen])])
    assert (moved_to_front(present, wanted) or (present[:chosen], present[chosen:])) == expected
