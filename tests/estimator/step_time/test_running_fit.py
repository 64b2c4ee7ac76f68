"""A mean, a median and a line that follow their samples; outliers move neither the median nor the line."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.estimator.step_time.running_fit import COUNT, LEAST, RunningLine, RunningMean, RunningMedian


def test_a_mean_follows_and_forgets() -> None:
    mean = RunningMean()
    assert mean.value is None
    mean.add(3.0)
    assert mean.value == 3.0
    for _ in range(200):
        mean.add(1.0)
    assert mean.value == pytest.approx(1.0, abs=0.01)


def test_a_line_is_found_and_followed() -> None:
    line = RunningLine()
    assert line.at(5.0) is None
    line.add(10.0, 4.0)
    assert line.at(1000.0) == line.at(None) == 4.0  # one sample has no slope
    line.add(20.0, 8.0)
    assert line.at(20.0) == line.at(1000.0) == 6.0  # nor do two, of which either may be an outlier
    for slope, start in ((0.01, 2.0), (0.05, 0.0)):
        for i in range(400):
            line.add(50.0 + 37.0 * (i % 11), start + slope * (50.0 + 37.0 * (i % 11)))
        assert line.at(800.0) == pytest.approx(start + slope * 800.0, rel=0.01)


@given(
    st.lists(st.tuples(st.integers(1, 10_000), st.floats(1e-6, 1e3)), min_size=1, max_size=40), st.integers(1, 10_000)
)
def test_a_line_never_falls_and_stays_above_zero(samples: list[tuple[int, float]], x: int) -> None:
    line = RunningLine()
    for at, y in samples:
        line.add(at, y)
    low, high = line.at(x), line.at(x + 100.0)
    assert low is not None and high is not None
    assert LEAST <= low <= high * (1.0 + 1e-9) + 1e-12


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=3 * COUNT))
def test_a_median_is_that_of_the_last_samples(samples: list[float]) -> None:
    found = RunningMedian()
    assert found.value is None
    for sample in samples:
        found.add(sample)
    assert found.value == statistics.median(samples[-COUNT:])


@given(
    ordinary=st.lists(st.integers(1, 10_000), min_size=4, max_size=COUNT - 1, unique=True),
    outlier=st.tuples(st.integers(1, 10_000), st.floats(LEAST, 1e6)),
    at=st.integers(0, COUNT),
    x=st.integers(1, 10_000),
)
def test_one_outlier_does_not_move_a_line_that_the_others_lie_on(
    ordinary: list[int], outlier: tuple[int, float], at: int, x: int
) -> None:
    line, samples = RunningLine(), [(one, 0.5 + 0.001 * one) for one in ordinary]
    samples.insert(min(at, len(samples)), outlier)
    for one, y in samples:
        line.add(one, y)
    assert line.at(x) == pytest.approx(0.5 + 0.001 * x)
