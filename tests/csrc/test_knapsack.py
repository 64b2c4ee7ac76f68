"""The compiled exact knapsack against all subsets."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.core.kernels.knapsack import pack_exact

MOST = 2**63 - 1


def best_of_all(gain: list[float], weight: list[int], capacity: int, sizes: Any) -> float | None:
    """The most gain of any subset of one of these sizes that fits, by trying them all."""
    sums = [
        sum(gain[i] for i in subset)
        for size in sizes
        for subset in combinations(range(len(gain)), size)
        if sum(weight[i] for i in subset) <= capacity
    ]
    return max(sums, default=None)


@given(
    items=st.lists(st.tuples(st.integers(-4, 8), st.integers(1, 9)), max_size=9),
    capacity=st.integers(0, 40),
    num_items=st.integers(0, 10),
    at_most=st.booleans(),
)
def test_exact_equals_the_best_of_all_subsets(items: Any, capacity: int, num_items: int, at_most: bool) -> None:
    gain, weight = [g for g, _ in items], [w for _, w in items]
    found = pack_exact(gain, weight, capacity, num_items, at_most=at_most)
    best = best_of_all(gain, weight, capacity, range(num_items + 1) if at_most else [num_items])
    if found is None:
        assert best is None
        return
    chosen = found.tolist()
    assert chosen == sorted(set(chosen)) and sum(weight[i] for i in chosen) <= capacity
    assert len(chosen) <= num_items if at_most else len(chosen) == num_items
    assert sum(gain[i] for i in chosen) == best


def test_exact_of_twelve_equals_the_best_of_all_subsets() -> None:
    rng = np.random.default_rng(1)
    for num_items in (1, 5, 12):
        gain, weight = rng.random(12), rng.integers(1, 131, 12)
        capacity = int(weight.sum() * 0.6)
        best = best_of_all(gain.tolist(), weight.tolist(), capacity, range(num_items + 1))
        found = pack_exact(gain, weight, capacity, num_items, at_most=True)
        assert found is not None and gain[found].sum() == pytest.approx(best, rel=1e-12)


def test_exact_takes_items_without_gain_only_where_the_number_asks_for_them() -> None:
    gain, weight = [1.0, 0.0, -1.0], [1, 1, 1]
    assert [pack_exact(gain, weight, 3, b, at_most=False) is None for b in range(5)] == [False] * 4 + [True]
    assert pack_exact(gain, weight, 3, 3).tolist() == [0, 1, 2]
    assert pack_exact(gain, weight, 3, 3, at_most=True).tolist() == [0]


def test_exact_leaves_room_unused_and_takes_more_than_all_weigh() -> None:
    # The paper looks for the weight at which most is gained, of which the last column is only one.
    assert pack_exact([1.0, 2.0], [7, 4], 10, 1).tolist() == [1]
    assert pack_exact([1.0, 2.0], [7, 4], MOST, 2).tolist() == [0, 1]
    assert pack_exact([1.0, 2.0], [MOST, 4], MOST - 1, 1).tolist() == [1]
    assert pack_exact([1.0, 2.0], [MOST, MOST], MOST // 2, 1) is None


def test_empty() -> None:
    assert pack_exact([], [], 3, 0).tolist() == pack_exact([1.0], [1], 0, 0).tolist() == []
    assert pack_exact([], [], 3, 1) is None and pack_exact([], [], 3, 1, at_most=True).tolist() == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0], [1, 2], 1, 1), "weight: 2 for 1 gains"),
        (([1.0], [-1], 1, 1), "weight: -1 of item 0; the least is 1"),
        (([float("inf")], [1], 1, 1), "gain: inf of item 0 is not finite"),
        (([[1.0]], [1], 1, 1), r"gain: shape \(1, 1\) is not one-dimensional"),
        (([1.0], [[1]], 1, 1), r"weight: shape \(1, 1\) is not one-dimensional"),
        (([1.0], [1], -1, 1), "capacity: -1 is negative"),
        (([1.0], [1], 1, -1), "num_items: -1 is negative"),
        (
            ([1.0] * 1000, [10**6] * 1000, 10**9, 500),
            r"capacity: exact tables for 1000 items, 500 to choose and a capacity of 1000000000 take \d+ MiB; the most "
            "is 2048 MiB: count weights in larger blocks",
        ),
    ],
)
def test_exact_refuses(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pack_exact(*arguments)
