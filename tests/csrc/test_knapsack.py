"""The compiled knapsack: the greedy pack against its rule in plain form, the exact one against all subsets, and the
priced one against both and the bound that a price gives."""

from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.core.kernels.knapsack import PackRule, best_batch, pack_exact, pack_greedy, pack_priced

MOST = 2**63 - 1


def ranked(gain: list[float], weight: list[int], seq: list[int]) -> list[int]:
    """Those that gain something, the densest first."""
    return sorted((i for i, g in enumerate(gain) if g > 0), key=lambda i: (-(gain[i] / weight[i]), seq[i], i))


def greedy(order: list[int], weight: list[int], capacity: int, max_items: int, stop_at_misfit: bool) -> list[int]:
    """Algorithm 1 on items that are :func:`ranked`."""
    chosen: list[int] = []
    for i in order:
        if len(chosen) == max_items or (capacity < weight[i] and stop_at_misfit):
            break
        if weight[i] <= capacity:
            chosen.append(i)
            capacity -= weight[i]
    return chosen


def best_of_all(gain: list[float], weight: list[int], capacity: int, sizes: Any) -> float | None:
    """The most gain of any subset of one of these sizes that fits, by trying them all."""
    sums = [
        sum(gain[i] for i in subset)
        for size in sizes
        for subset in combinations(range(len(gain)), size)
        if sum(weight[i] for i in subset) <= capacity
    ]
    return max(sums, default=None)


# Halves and small numbers, so that densities and sums tie exactly.
GAINS = st.integers(-2, 6).map(lambda halves: halves / 2) | st.floats(-1e300, 1e300)
ITEMS = st.lists(st.tuples(GAINS, st.integers(1, 6) | st.integers(1, MOST), st.integers(0, 3)), max_size=40)
CAPACITY = st.integers(0, 40) | st.integers(0, MOST)


def columns(items: list[tuple[float, int, int]]) -> tuple[list[float], list[int], list[int]]:
    return [g for g, _, _ in items], [w for _, w, _ in items], [s for _, _, s in items]


@given(items=ITEMS, capacity=CAPACITY, max_items=st.integers(0, 50) | st.just(MOST), stop=st.booleans())
def test_greedy_follows_its_rule(items: Any, capacity: int, max_items: int, stop: bool) -> None:
    found = pack_greedy(*columns(items), capacity, max_items, stop_at_misfit=stop)
    assert found.dtype == np.int64
    assert found.tolist() == greedy(ranked(*columns(items)), columns(items)[1], capacity, max_items, stop)


@pytest.mark.parametrize("n", [1, 63, 64, 65, 129, 2049])
@pytest.mark.parametrize("distinct", [1, 7, 10**9])
def test_greedy_follows_its_rule_through_many_chunks(n: int, distinct: int) -> None:
    rng = np.random.default_rng([n, distinct])
    gain, weight = rng.integers(0, distinct, n) / distinct + 0.5 * (distinct == 1), rng.integers(1, 131, n)
    seq = rng.permutation(n)
    order = ranked(gain.tolist(), weight.tolist(), seq.tolist())
    for capacity in (0, 130, 3700, 20 * n, 131 * n):
        for max_items in (1, 8, n // 2, n, 2 * n):
            for stop in (False, True):
                found = pack_greedy(gain, weight, seq, capacity, max_items, stop_at_misfit=stop).tolist()
                assert found == greedy(order, weight.tolist(), capacity, max_items, stop)


def test_a_misfit_is_passed_over_or_ends_the_search() -> None:
    gain, weight, seq = [0.9, 0.8, 0.1], [3, 4, 1], [0, 1, 2]
    assert pack_greedy(gain, weight, seq, 5, 3).tolist() == [0, 2]
    assert pack_greedy(gain, weight, seq, 5, 3, stop_at_misfit=True).tolist() == [0]
    # An item that can never fit counts as one too.
    assert pack_greedy([9.0, 0.1], [6, 1], [0, 1], 5, 2, stop_at_misfit=True).tolist() == []


def test_ties_end_in_seq_then_in_place() -> None:
    assert pack_greedy([2.0, 1.0, 3.0, 1.0], [2, 1, 3, 1], [5, 2, 9, 2], 100, 3).tolist() == [1, 3, 0]


@pytest.mark.parametrize("pack", [pack_greedy, pack_priced])
def test_who_gains_nothing_stays_out(pack: Any) -> None:
    assert pack([0.0, -1.0, 1e-300, -0.0], [1] * 4, [0] * 4, 100, 4).tolist() == [2]


def test_takes_strided_columns_and_other_dtypes() -> None:
    table = np.arange(1, 13, dtype=np.float32).reshape(4, 3)[::-1]
    assert pack_greedy(table[:, 1], np.arange(2, 10, dtype=np.int32)[::2], range(4), 6, 3).tolist() == [0, 1]


def price_bound(gain: Any, weight: Any, capacity: int, max_items: int) -> float:
    """What no pack exceeds: the least, over all prices, of the capacity's price and the best gains net of weight's."""

    def at(price: float) -> float:
        net = np.maximum(gain - price * weight, 0.0)
        return float(np.sort(net)[::-1][:max_items].sum() + price * capacity)

    low, high = 0.0, float(np.max(gain))
    for _ in range(25):  # the price to a share of 1e-4; the bound holds at any price
        third = (high - low) / 3
        low, high = (low, high - third) if at(low + third) <= at(high - third) else (low + third, high)
    return min(at(low), at(high), at(0.0))


@given(items=ITEMS, capacity=CAPACITY, max_items=st.integers(0, 50) | st.just(MOST), data=st.data())
def test_priced_keeps_its_limits_and_knows_items_by_seq_alone(
    items: Any, capacity: int, max_items: int, data: st.DataObject
) -> None:
    gain, weight, _ = columns(items)
    seq = list(range(len(items)))
    found = pack_priced(gain, weight, seq, capacity, max_items)
    assert found.dtype == np.int64
    chosen = found.tolist()
    assert len(set(chosen)) == len(chosen) <= max_items
    assert sum(weight[i] for i in chosen) <= capacity and all(gain[i] > 0 for i in chosen)
    moved = data.draw(st.permutations(seq))
    again = pack_priced([gain[i] for i in moved], [weight[i] for i in moved], moved, capacity, max_items)
    assert [moved[i] for i in again.tolist()] == chosen
    # Somebody who fits is left out only for want of a place.
    room = capacity - sum(weight[i] for i in chosen)
    if len(chosen) < max_items:
        assert all(weight[i] > room for i in seq if gain[i] > 0 and i not in chosen)


@given(
    items=st.lists(st.tuples(st.integers(-4, 8), st.integers(1, 9), st.integers(0, 3)), max_size=9),
    capacity=st.integers(0, 40),
    max_items=st.integers(0, 10),
)
def test_priced_gains_half_of_the_best_at_least_and_all_where_the_best_by_gain_fit(
    items: Any, capacity: int, max_items: int
) -> None:
    gain, weight, seq = columns(items)
    found = sum(gain[i] for i in pack_priced(gain, weight, seq, capacity, max_items))
    best = best_of_all(gain, weight, capacity, range(max_items + 1))
    assert best is not None and best / 2 <= found <= best
    top = sorted((i for i, g in enumerate(gain) if g > 0 and weight[i] <= capacity), key=lambda i: -gain[i])
    if sum(weight[i] for i in top[:max_items]) <= capacity and len(set(gain)) == len(gain):
        assert found == best


@pytest.mark.slow
def test_priced_of_twelve_is_near_the_best_of_all_subsets() -> None:
    rng = np.random.default_rng(5)
    shares = []
    for max_items in (1, 3, 5, 12) * 5:
        gain, weight = rng.random(12), rng.integers(1, 131, 12)
        capacity = int(weight.sum() * rng.uniform(0.2, 0.7))
        best = best_of_all(gain.tolist(), weight.tolist(), capacity, range(max_items + 1))
        assert best is not None
        shares.append(gain[pack_priced(gain, weight, range(12), capacity, max_items)].sum() / best)
    assert np.mean(shares) > 0.95 and min(shares) > 0.7


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 129, pytest.param(2049, marks=pytest.mark.slow)])
@pytest.mark.parametrize("distinct", [1, 7, 10**9])
def test_priced_loses_less_than_one_item(n: int, distinct: int) -> None:
    rng = np.random.default_rng([n, distinct])
    gain, weight = rng.integers(1, distinct, n, endpoint=True) / distinct, rng.integers(1, 131, n)
    for capacity in (130, 3700, 20 * n + 130, 131 * n):
        for max_items in {1, 8, max(n // 8, 1), n, 2 * n}:
            found = gain[pack_priced(gain, weight, rng.permutation(n), capacity, max_items)].sum()
            bound = price_bound(gain, weight, capacity, max_items)
            assert bound - gain.max() <= found <= bound * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1.0, 0.5, 0.25])
def test_priced_is_within_three_percent_of_exact_where_greedy_is_not(limit: float) -> None:
    rng = np.random.default_rng(7)
    priced, greedy_shares = [], []
    for _ in range(8):
        gain, weight = rng.random(100), rng.integers(1, 131, 100)
        count = round(limit * np.searchsorted(np.cumsum(np.sort(weight)), 1000, side="right"))
        best = gain[pack_exact(gain, weight, 1000, count, at_most=True)].sum()
        priced.append(gain[pack_priced(gain, weight, range(100), 1000, count)].sum() / best)
        greedy_shares.append(gain[pack_greedy(gain, weight, range(100), 1000, count)].sum() / best)
    assert min(priced) > 0.97 and np.mean(priced) > 0.99
    assert limit == 1.0 or np.mean(greedy_shares) < 0.9


def test_priced_mixes_equals_of_two_kinds() -> None:
    # At the price of 0.5 both kinds are worth the same: ten light ones leave room for five heavy ones to take places.
    gain, weight = [1.0] * 10 + [1.5] * 10, [1] * 10 + [2] * 10
    assert sorted(pack_priced(gain, weight, range(20), 15, 10).tolist()) == [5, 6, 7, 8, 9, 10, 11, 12, 13, 14]


def test_priced_of_equal_weights_is_the_best_by_gain_and_grows_with_the_capacity() -> None:
    rng = np.random.default_rng(2)
    gain = rng.random(50)
    by_gain = np.argsort(-gain).tolist()
    for capacity in range(0, 400, 7):
        found = pack_priced(gain, [7] * 50, range(50), capacity, 40).tolist()
        assert found == by_gain[: min(capacity // 7, 40)]


def test_priced_puts_one_great_item_before_many_small_ones() -> None:
    assert pack_priced([1.1, 10.0, 0.5], [1, 10, 1], [0, 1, 2], 10, 2).tolist() == [1]
    assert pack_priced([1.1, 10.0, 0.5], [1, 10, 1], [0, 1, 2], 11, 2).tolist() == [0, 1]


def test_priced_ties_end_in_weight_then_in_seq_then_in_place() -> None:
    assert pack_priced([1.0] * 4, [2, 1, 1, 1], [0, 9, 3, 3], 100, 3).tolist() == [2, 3, 1]
    assert pack_priced([1.0] * 4, [2, 1, 1, 1], [0, 9, 3, 3], 100, 2).tolist() == [2, 3]


@given(
    items=st.lists(st.tuples(st.integers(-4, 8), st.integers(1, 9), st.just(0)), max_size=9),
    capacity=st.integers(0, 40),
    num_items=st.integers(0, 10),
    at_most=st.booleans(),
)
def test_exact_equals_the_best_of_all_subsets(items: Any, capacity: int, num_items: int, at_most: bool) -> None:
    gain, weight, _ = columns(items)
    found = pack_exact(gain, weight, capacity, num_items, at_most=at_most)
    best = best_of_all(gain, weight, capacity, range(num_items + 1) if at_most else [num_items])
    if found is None:
        assert best is None
        return
    chosen = found.tolist()
    assert chosen == sorted(set(chosen)) and sum(weight[i] for i in chosen) <= capacity
    assert len(chosen) <= num_items if at_most else len(chosen) == num_items
    assert sum(gain[i] for i in chosen) == best


def test_exact_of_twelve_equals_the_best_of_all_subsets_and_bounds_the_greedy_pack() -> None:
    rng = np.random.default_rng(1)
    for num_items in (1, 5, 12):
        gain, weight = rng.random(12), rng.integers(1, 131, 12)
        capacity = int(weight.sum() * 0.6)
        best = best_of_all(gain.tolist(), weight.tolist(), capacity, range(num_items + 1))
        found = pack_exact(gain, weight, capacity, num_items, at_most=True)
        assert found is not None and gain[found].sum() == pytest.approx(best, rel=1e-12)
        assert gain[pack_greedy(gain, weight, range(12), capacity, num_items)].sum() <= gain[found].sum() + 1e-12


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


PACKS = {
    PackRule.PRICED: pack_priced,
    PackRule.GREEDY: pack_greedy,
    PackRule.PAPER: partial(pack_greedy, stop_at_misfit=True),
}


@pytest.mark.parametrize("rule", PACKS)
@pytest.mark.parametrize("sizes", [[4], [1, 4, 16, 64, 256], [256, 2, 64, 3, 17, 1]])
def test_the_best_batch_is_the_best_of_the_packs(rule: PackRule, sizes: list[int]) -> None:
    rng = np.random.default_rng(3)
    for n in (1, 5, 40, 300):
        weight, seq = rng.integers(1, 131, n), rng.permutation(n)
        gains = rng.random(n) * np.linspace(1.0, rng.uniform(0.0, 0.9), len(sizes))[:, None] - 0.1
        found = best_batch(gains, weight, seq, 2000, sizes, rule=rule)
        packs = [PACKS[rule](g, weight, seq, 2000, size) for g, size in zip(gains, sizes, strict=True)]
        totals = [float(g[pack].sum()) for g, pack in zip(gains, packs, strict=True)]
        at = sizes.index(found.batch_size)
        assert found.gain == pytest.approx(totals[at]) == pytest.approx(max(totals))
        assert found.chosen.tolist() == packs[at].tolist()


@pytest.mark.parametrize("rule", PACKS)
def test_of_equal_batches_the_first_listed_is_taken(rule: PackRule) -> None:
    gains = [[1.0, 1.0], [1.0, 1.0], [2.0, 0.0]]
    assert best_batch(gains, [1, 1], [0, 1], 9, [3, 2, 1], rule=rule).batch_size == 3
    nothing = best_batch(np.full((3, 2), -1.0), [1, 1], [0, 1], 9, [3, 2, 1], rule=rule)
    assert (nothing.batch_size, nothing.chosen.tolist(), nothing.gain) == (3, [], 0.0)


def test_empty() -> None:
    for pack in (pack_greedy, pack_priced):
        assert pack([], [], [], 3, 3).shape == (0,)
        assert pack([1.0], [1], [0], 0, 3).shape == pack([1.0], [1], [0], 3, 0).shape == (0,)
    assert pack_exact([], [], 3, 0).tolist() == pack_exact([1.0], [1], 0, 0).tolist() == []
    assert pack_exact([], [], 3, 1) is None and pack_exact([], [], 3, 1, at_most=True).tolist() == []
    assert best_batch(np.empty((2, 0)), [], [], 3, [1, 2]).batch_size == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0], [1, 2], [0], 1, 1), "weight: 2 for 1 gains; there must be one for each"),
        (([1.0], [1], [], 1, 1), "seq: 0 for 1 gains; there must be one for each"),
        (([1.0, 1.0], [1, 0], [0, 1], 1, 1), "weight: 0 of item 1; the least is 1"),
        (([float("nan")], [1], [0], 1, 1), "gain: -?nan of item 0 is not finite"),
        (([0.0, float("-inf")], [1, 1], [0, 1], 1, 1), "gain: -inf of item 1 is not finite"),
        (([1.0], [1], [0], -1, 1), "capacity: -1 is negative; the least is 0"),
        (([1.0], [1], [0], 1, -2), "max_items: -2 is negative; the least is 0"),
        (([[1.0]], [1], [0], 1, 1), r"gain: shape \(1, 1\) is not one-dimensional"),
        (([1.0], [[1]], [0], 1, 1), r"weight: shape \(1, 1\) is not one-dimensional"),
    ],
)
@pytest.mark.parametrize("pack", [pack_greedy, pack_priced])
def test_greedy_and_priced_refuse(pack: Any, arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pack(*arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0], [1, 2], 1, 1), "weight: 2 for 1 gains"),
        (([1.0], [-1], 1, 1), "weight: -1 of item 0; the least is 1"),
        (([float("inf")], [1], 1, 1), "gain: inf of item 0 is not finite"),
        (([1.0], [1], -1, 1), "capacity: -1 is negative"),
        (([1.0], [1], 1, -1), "num_items: -1 is negative"),
        (
            ([1.0] * 1000, [10**6] * 1000, 10**9, 500),
            r"capacity: exact tables for 1000 items, 500 to choose and a capacity of 1000000000 take \d+ MiB; the most "
            "is 2048 MiB: count weights in larger blocks or use pack_greedy",
        ),
    ],
)
def test_exact_refuses(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pack_exact(*arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[1.0]], [1], [0], 1, []), "batch_sizes: there is none to choose from; give one at least"),
        (([[1.0]], [1], [0], 1, [1, 2]), "gain_by_batch: 1 for 2 batch sizes; there must be one for each"),
        (([[1.0]], [1], [0], 1, [0]), "batch_sizes: 0; the least is 1"),
        (([[1.0]], [1, 1], [0], 1, [1]), "weight: 2 for 1 gains of each batch size"),
        (([[1.0]], [1], [], 1, [1]), "seq: 0 for 1 gains of each batch size"),
        (([[1.0], [float("nan")]], [1], [0], 1, [1, 2]), "gain: -?nan of item 1 is not finite"),
        (([1.0], [1], [0], 1, [1]), r"gain_by_batch: shape \(1,\) is not two-dimensional"),
    ],
)
def test_best_batch_refuses(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        best_batch(*arguments)
