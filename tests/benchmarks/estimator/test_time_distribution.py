"""Quantiles and probabilities against sampling: normal, lognormal, and the maximum over a group."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.estimator.time_distribution import TimeDistribution, lognormal_skewness


def test_without_skewness_it_is_the_normal_distribution() -> None:
    times = TimeDistribution.normal([10.0, 20.0], [1.0, 2.0])
    assert times.quantile_s(0.9) == pytest.approx([10 + 1.2816, 20 + 2 * 1.2816], abs=1e-3)
    assert times.within(20.0) == pytest.approx([1.0, 0.5])
    assert TimeDistribution.normal(0.1, 5.0).quantile_s(0.01) == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("cv", [0.3, 0.7, 1.5])
def test_a_lognormal_is_met_in_all_quantiles(cv: float) -> None:
    from scipy import stats  # takes a quarter of a second

    sigma = np.sqrt(np.log1p(cv**2))
    truth = stats.lognorm(s=sigma, scale=100.0 / np.exp(sigma**2 / 2))
    mean, sd = np.array([100.0]), np.array([100.0 * cv])
    times = TimeDistribution(mean, sd, lognormal_skewness(mean, sd))
    for p in (0.1, 0.5, 0.9, 0.99):
        assert times.quantile_s(p) == pytest.approx(truth.ppf(p), rel=1e-3)
        assert times.within(truth.ppf(p)) == pytest.approx(p, abs=1e-3)


@given(
    p=st.floats(0.01, 0.99),
    mean=st.floats(0.1, 1e4),
    cv=st.floats(0.001, 0.3),
    skewness=st.floats(0.0, 8.0),
)
def test_quantile_and_probability_are_inverse(p: float, mean: float, cv: float, skewness: float) -> None:
    times = TimeDistribution(np.array([mean]), np.array([mean * cv]), np.array([skewness]))
    quantile_s = times.quantile_s(p)
    if quantile_s[0] > 0.0:
        assert times.within(quantile_s) == pytest.approx(p, abs=2e-3)


def test_the_last_of_a_group_is_later_than_the_mean_and_never_promised_too_early() -> None:
    rng = np.random.default_rng(0)
    mean, sd = np.linspace(10.0, 12.0, 30), np.full(30, 2.0)
    times = TimeDistribution.normal(mean, sd)
    independent = (mean + sd * rng.standard_normal((20_000, 30))).max(axis=1)
    common = (mean + sd * (0.8 * rng.standard_normal((20_000, 1)) + 0.6 * rng.standard_normal((20_000, 30)))).max(
        axis=1
    )
    for p in (0.5, 0.9):
        assert times.last_quantile_s(p) == pytest.approx(np.quantile(independent, p), rel=0.01)
        assert times.last_quantile_s(p) > np.quantile(common, p), "times of one queue rise and fall together"
    assert times.last_mean_s() == pytest.approx(independent.mean(), rel=0.01)
    assert times.last_mean_s() > common.mean() > mean.max()


def test_groups_of_one_and_of_none() -> None:
    assert TimeDistribution.normal([5.0], [1.0]).last_quantile_s(0.9) == pytest.approx(6.2816, abs=1e-3)
    assert TimeDistribution.normal([], []).last_mean_s() == 0.0
