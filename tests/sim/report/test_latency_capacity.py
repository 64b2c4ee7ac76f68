"""The load a policy carries at a multiple of the normalised latency that stock has at the least load."""

import pytest

from sloserve.sim.report.latency_capacity import latency_capacity
from sloserve.sim.report.load_capacity import Bound
from sloserve.sim.report.summary import Run

LOADS = (0.5, 1.0, 2.0)


def runs_of(policy: str, *curves: tuple[float | None, ...]) -> list[Run]:
    """One curve of ms/token per seed, over LOADS."""
    return [
        {"policy": policy, "seed": seed, "rps": 9.0 * load, "load": load, "normalized_latency_ms": latency_ms}
        for seed, curve in enumerate(curves)
        for load, latency_ms in zip(LOADS, curve, strict=False)
    ]


STOCK = runs_of("stock", (20.0, 40.0, 240.0), (30.0, 45.0, 105.0))
"""25 ms/token at the least load, so 50 at the level: reached at 1.05 and 1.083 times capacity."""


def test_the_level_is_twice_what_stock_has_at_the_least_load() -> None:
    ours = runs_of("ours", (10.0, 30.0, 70.0), (30.0, 40.0, 60.0))
    stock, found = latency_capacity((STOCK + ours)[::-1])[::-1]
    assert stock.threshold == found.threshold == 50.0
    assert stock.load is not None and found.load is not None and found.ratio is not None
    assert stock.load.value == pytest.approx((1.05 + 1.0 + 1 / 12) / 2)
    assert found.load.value == pytest.approx(1.5)
    assert found.ratio.value == pytest.approx((1.5 / 1.05 + 1.5 / (1.0 + 1 / 12)) / 2)
    assert found.ratio.low is not None and found.ratio.low < found.ratio.value
    assert (stock.ratio, found.ratio.seeds) == (None, 2)


def test_another_multiple_and_another_baseline() -> None:
    ours = runs_of("ours", (10.0, 30.0, 70.0))
    assert [found.threshold for found in latency_capacity(STOCK + ours, multiple=4.0)] == [100.0, 100.0]
    assert latency_capacity(STOCK + ours, "ours")[0].threshold == 20.0


def test_a_level_never_reached_bounds_from_below_and_one_always_exceeded_from_above() -> None:
    never, always = runs_of("never", *[(10.0, 20.0, 50.0)] * 2), runs_of("always", *[(60.0, 70.0, 80.0)] * 2)
    _, low, high = latency_capacity(STOCK + never + always)
    assert low.load is not None and high.load is not None and low.ratio is not None
    assert (low.load.value, low.load.bound, low.ratio.bound) == (2.0, Bound.AT_LEAST, Bound.AT_LEAST)
    assert (high.load.value, high.load.bound) == (0.5, Bound.AT_MOST)


def test_nothing_to_say_at_two_loads_or_without_the_baseline_at_the_least() -> None:
    assert latency_capacity([run for run in STOCK if run["load"] < 2.0]) == []
    assert latency_capacity(runs_of("stock", (None, 40.0, 90.0))) == []
    assert latency_capacity(runs_of("ours", (10.0, 40.0, 90.0))) == []
    assert latency_capacity([]) == []
