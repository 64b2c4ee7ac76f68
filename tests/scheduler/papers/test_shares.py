"""Shares that follow the errors: plain quantiles, the known optimum, after a shift, and in a policy at work."""

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sloserve.scheduler.papers.econo_paper import EconoPaper
from sloserve.scheduler.papers.shares import BUFFERED, LEAST, PADDED, WINDOW, Shares, Tuning
from tests.scheduler.papers.fake_engine import FakeEngine, Task

FIRST = Shares(padding=0.15, reserve=0.03, buffer=0.15)


def lognormal(n: int, sigma: float, seed: int = 1) -> NDArray[np.float64]:
    """Actual lengths, of what was predicted."""
    return np.exp(sigma * np.random.default_rng(seed).standard_normal(n))


def seen(tuning: Tuning, ratio: NDArray[np.float64], predicted: float = 200.0, context: float = 100.0) -> Shares:
    for one in ratio.tolist():
        tuning.observe(predicted, one * predicted, context)
    return tuning.shares


def test_nothing_changes_until_enough_have_ended() -> None:
    tuning = Tuning(FIRST)
    assert seen(tuning, np.full(LEAST - 1, 1.3)) == FIRST
    assert seen(tuning, np.full(1, 1.3)).padding == pytest.approx(0.3)


@pytest.mark.slow
def test_shares_are_the_quantiles_of_the_last_that_ended() -> None:
    rng = np.random.default_rng(0)
    predicted, context = rng.integers(300, 800, 400), rng.integers(1, 900, 400)
    actual = rng.integers(300, 1200, 400)
    tuning = Tuning(FIRST)
    for row in zip(predicted, actual, context, strict=True):
        tuning.observe(*(float(one) for one in row))
    of = slice(400 - WINDOW, None)
    ratio = np.sort(actual[of] / predicted[of])
    padding = np.quantile(ratio, PADDED) - 1
    assert -0.3 < padding < 0
    granted = predicted[of] * (1 + padding)
    over = np.maximum(actual[of] - granted, 0).sum() / (granted + context[of]).sum()
    buffer = np.quantile(ratio, BUFFERED) / (1 + padding) - 1
    expected = (padding, min(max(over, 0.01), 0.1), min(max(buffer, 0.0), 0.5))
    assert tuple(asdict(tuning.shares).values()) == pytest.approx(expected)


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [0.0, 0.1, 0.3])
def test_it_converges_to_the_quantiles_of_the_errors(sigma: float) -> None:
    shares = seen(Tuning(FIRST), lognormal(WINDOW, sigma))
    # Standard Gaussian quantiles of 0.25 and 0.4.
    assert shares.padding == pytest.approx(np.exp(-0.6745 * sigma) - 1, abs=0.25 * sigma)
    assert shares.buffer == pytest.approx(np.exp((0.6745 - 0.2533) * sigma) - 1, abs=0.25 * sigma)


@pytest.mark.slow
def test_it_follows_a_shift_within_a_window_and_forgets_what_was() -> None:
    tuning = Tuning(FIRST)
    before = seen(tuning, lognormal(WINDOW, 0.1))
    halfway = seen(tuning, 1.6 * lognormal(WINDOW // 2, 0.1, seed=2))
    after = seen(tuning, 1.6 * lognormal(WINDOW // 2, 0.1, seed=3))
    assert before.padding < halfway.padding < after.padding
    assert after.padding == pytest.approx(1.6 * np.exp(-0.06745) - 1, abs=0.04)
    fresh = Tuning(FIRST)
    seen(fresh, 1.6 * lognormal(WINDOW // 2, 0.1, seed=2))
    assert after == seen(fresh, 1.6 * lognormal(WINDOW // 2, 0.1, seed=3))


def test_each_share_stays_within_its_limits() -> None:
    assert seen(Tuning(FIRST), np.full(20, 30.0)) == Shares(padding=1.0, reserve=0.1, buffer=0.5)
    assert seen(Tuning(FIRST), np.full(20, 0.01)) == Shares(padding=-0.3, reserve=0.01, buffer=0.0)


def test_what_is_given_stays_and_the_others_reckon_with_it() -> None:
    shares = seen(Tuning(FIRST, frozenset({"buffer"})), np.linspace(0.8, 1.8, 101))
    assert (shares.padding, shares.reserve) == (FIRST.padding, FIRST.reserve)
    assert shares.buffer == pytest.approx(1.2 / 1.15 - 1)
    assert seen(Tuning(FIRST, frozenset()), lognormal(300, 0.5)) == FIRST


def at_work(error: float, seed: int = 0, **settings: Any) -> EconoPaper:
    rng = np.random.default_rng(2)
    tasks = [Task(8, int(one), i, max_tokens=1000) for i, one in enumerate(rng.integers(20, 60, 120))]
    policy = EconoPaper(EconoPaper.Settings(length="oracle", length_error=error, **settings), seed=seed)
    FakeEngine(policy, tasks, blocks=90).run()
    return policy


@pytest.mark.slow
def test_a_policy_learns_from_its_first_predictions() -> None:
    auto = {"padding": "auto", "reserve": "auto", "buffer": "auto"}
    shares = at_work(0.3, **auto).tuning.shares
    # A lognormal prediction is its mean: exp(0.3^2 / 2) above the median.
    assert shares.padding == pytest.approx(np.exp(-0.6745 * 0.3 - 0.045) - 1, abs=0.06)
    assert shares == at_work(0.3, **auto).tuning.shares
    assert shares != at_work(0.3, seed=1, **auto).tuning.shares
    assert at_work(0.0, **auto).tuning.shares == Shares(padding=0.0, reserve=0.01, buffer=0.0)
    assert at_work(0.3, padding=0.2, reserve=0.05, buffer=0.1).tuning.shares == Shares(0.2, 0.05, 0.1)
