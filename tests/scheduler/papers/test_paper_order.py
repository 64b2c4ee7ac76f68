"""The paper's order against one written plainly, groups, and the best fit."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sloserve.scheduler.papers.paper_order import BestFit, deadline_ranges, grouped, paper_order
from tests.snapshots import make_snapshot

NOW_S = 1000.0
LEFT_S = [math.nan, -5.0, 0.0, 0.1, 0.2, 0.4, 0.5, 1.9, 2.0, 100.0]


def test_ranges_of_time_left() -> None:
    at = make_snapshot([{"arrival_s": NOW_S - 10.0, "e2e_s": 10.0 + left_s} for left_s in LEFT_S])
    # None, passed, now, and then up to each edge.
    assert deadline_ranges(at.rows, at.waiting, NOW_S).tolist() == [4, 3, 0, 0, 1, 1, 2, 2, 3, 3]


@given(
    st.lists(
        st.tuples(st.sampled_from(LEFT_S), st.sampled_from([0, 127, 128, 300]), st.sampled_from([1, 127, 128, 260])),
        min_size=1,
        max_size=12,
    )
)
def test_order_by_deadline_then_kv_then_length_then_arrival(some: list[tuple[float, int, int]]) -> None:
    at = make_snapshot([{"arrival_s": NOW_S, "e2e_s": left_s} for left_s, _, _ in some])

    def key(place: int) -> tuple[int, int, int, int]:
        left_s, held, length = some[place]
        lax = 4 if math.isnan(left_s) else 3 if left_s < 0 or left_s >= 2 else 0 if left_s < 0.2 else 1
        return (2 if 0.5 <= left_s < 2 else lax), -(held // 128), -(length // 128), place

    held, length = np.array([one[1] for one in some]), np.array([one[2] for one in some])
    found = paper_order(at.rows, at.waiting, held, length, NOW_S)
    assert found.tolist() == sorted(range(len(some)), key=key)


def test_a_group_stands_where_its_first_member_stood() -> None:
    bucket = np.array([32, 64, 32, 96, 64, 32])
    assert grouped(np.array([3, 1, 0, 4, 5, 2]), bucket).tolist() == [3, 1, 4, 0, 5, 2]


@given(st.lists(st.integers(0, 9), max_size=9), st.lists(st.integers(-1, 10), max_size=9))
def test_best_fit_is_the_largest_that_fits_and_the_first_of_equals(sizes: list[int], rooms: list[int]) -> None:
    shelf, left = BestFit(np.array(sizes, np.int64)), dict(enumerate(sizes))
    for room in rooms:
        fitting = [(-size, place) for place, size in left.items() if size <= room]
        expected = min(fitting)[1] if fitting else None
        assert shelf.take(room) == expected
        left.pop(expected, None)  # type: ignore[arg-type]
