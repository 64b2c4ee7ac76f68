"""The load a policy carries: first crossing, bounds at the ends of the axis, pairing by seed."""

import json
from collections.abc import Sequence

import pytest

from sloserve.sim.report.load_capacity import Bound, LoadCapacity, combine, crossing, load_capacity
from sloserve.sim.report.summary import Run

LOADS = (0.5, 1.0, 1.5, 2.0)


def runs_of(policy: str, *curves: Sequence[float | None]) -> list[Run]:
    """One curve per seed, over LOADS."""
    return [
        {"policy": policy, "seed": seed, "rps": 9.0 * load, "load": load, "qoe_mean": qoe}
        for seed, curve in enumerate(curves)
        for load, qoe in zip(LOADS, curve, strict=True)
    ]


def capacity_of(policy: str, runs: list[Run]) -> LoadCapacity:
    return next(found for found in load_capacity(runs, "qoe_mean", 0.9) if found.policy == policy)


@pytest.mark.parametrize(
    ("qoes", "expected"),
    [
        ((1.0, 0.95, 0.85, 0.2), (1.25, Bound.EXACT)),
        ((1.0, 0.9, 0.9, 0.7), (1.5, Bound.EXACT)),
        ((1.0, 0.8, 0.95, 0.2), (0.75, Bound.EXACT)),  # the first of several
        ((1.0, 1.0, 0.95, 0.9), (2.0, Bound.AT_LEAST)),
        ((0.8, 0.95, 0.5, 0.2), (0.5, Bound.AT_MOST)),
    ],
)
def test_first_crossing(qoes: Sequence[float], expected: tuple[float, Bound]) -> None:
    load, bound = crossing(list(zip(LOADS, qoes, strict=True)), 0.9)
    assert (load, bound) == (pytest.approx(expected[0]), expected[1])


def test_ratios_are_paired_by_seed() -> None:
    """Seeds differ threefold, the ratio does not; a seed without the baseline counts for the load alone."""
    stock = runs_of("stock", (0.9, 0.8, 0.5, 0.1), (1.0, 0.9, 0.8, 0.1))
    ours = runs_of("ours", (1.0, 0.9, 0.8, 0.1), (1.0, 1.0, 1.0, 0.9 - 1e-12), (1.0, 0.9, 0.8, 0.1))[::-1]
    found = capacity_of("ours", ours + stock)
    assert found.load is not None and found.ratio is not None
    assert (found.load.value, found.load.seeds) == (pytest.approx(4 / 3), 3)
    assert (found.ratio.value, found.ratio.seeds, found.ratio.bound) == (pytest.approx(2.0), 2, Bound.EXACT)
    assert found.ratio.low == pytest.approx(2.0) == found.ratio.high
    assert capacity_of("stock", ours + stock).ratio is None


def test_one_bounded_seed_bounds_the_mean() -> None:
    runs = runs_of("stock", (1.0, 0.9, 0.8, 0.1), (1.0, 0.9, 0.8, 0.1))
    runs += runs_of("high", (1.0, 1.0, 1.0, 1.0), (1.0, 1.0, 0.9, 0.8))
    runs += runs_of("low", (0.5, 0.4, 0.3, 0.2), (0.5, 0.4, 0.3, 0.2))
    runs += runs_of("both", (0.5, 0.4, 0.3, 0.2), (1.0, 1.0, 1.0, 1.0))
    high, low, both = (capacity_of(policy, runs) for policy in ("high", "low", "both"))
    assert high.load is not None and high.ratio is not None
    assert (high.load.value, high.load.bound, high.load.low) == (1.75, Bound.AT_LEAST, None)
    assert (high.ratio.value, high.ratio.bound) == (1.75, Bound.AT_LEAST)
    assert low.ratio is not None and (low.ratio.value, low.ratio.bound) == (0.5, Bound.AT_MOST)
    assert (both.load, both.ratio) == (None, None)
    assert json.loads(json.dumps(high.as_dict()))["load"]["bound"] == "at least"


def test_two_that_never_fall_have_no_ratio() -> None:
    runs = runs_of("stock", (1.0, 1.0, 1.0, 1.0)) + runs_of("ours", (1.0, 1.0, 1.0, 0.5))
    runs += runs_of("too", (1.0, 1.0, 1.0, 1.0))
    assert capacity_of("too", runs).ratio is None
    below = capacity_of("ours", runs).ratio
    assert below is not None and below.bound is Bound.AT_MOST and below.value < 1.0


def test_bounds_combine() -> None:
    assert combine([]) is combine([Bound.EXACT, Bound.EXACT]) is Bound.EXACT
    assert combine([Bound.EXACT, Bound.AT_MOST]) is Bound.AT_MOST
    assert combine([Bound.AT_LEAST, Bound.AT_MOST]) is combine([None, Bound.EXACT]) is None


def test_a_figure_that_rises_mirrors_one_that_falls() -> None:
    falling = runs_of("stock", (0.9, 0.8, 0.5, 0.1)) + runs_of("ours", (1.0, 0.95, 0.85, 0.1))
    falling += runs_of("high", (1.0, 1.0, 1.0, 0.9)) + runs_of("low", (0.5, 0.4, 0.3, 0.2))
    rising = [run | {"qoe_mean": 1.0 - run["qoe_mean"]} for run in falling]
    mirrored = load_capacity(rising, "qoe_mean", 0.1 + 1e-12, rising=True)
    for found, other in zip(load_capacity(falling, "qoe_mean", 0.9), mirrored, strict=True):
        assert found.load is not None and other.load is not None
        assert other.load.value == pytest.approx(found.load.value)
        assert other.load.bound is found.load.bound


def test_nothing_to_say_without_the_figure_or_at_one_load() -> None:
    assert load_capacity(runs_of("stock", (None, None, None, None)), "qoe_mean", 0.9) == []
    assert load_capacity(runs_of("stock", (1.0, 0.9, 0.8, 0.1))[:1], "qoe_mean", 0.9) == []
