"""The risk of a request by the uses that were predicted for others before it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.estimator.miss_risk import MissRisk

OUTCOMES = st.lists(st.tuples(st.floats(0.0, 2.0), st.booleans()), max_size=60)


def by_definition(outcomes: list[tuple[float, bool]], use: float) -> float:
    """The least share of misses over all stretches of predicted uses that begin at this one, one more miss counted."""
    least = 1.0
    for end in [*sorted({u for u, _ in outcomes if u >= use}), np.inf]:
        within = [missed for u, missed in outcomes if use <= u < end]
        least = min(least, (sum(within) + 1) / (len(within) + 1))
    return least


def learnt(outcomes: list[tuple[float, bool]], window: int = 1024) -> MissRisk:
    risk = MissRisk(window)
    for use, missed in outcomes:
        risk.add(use, missed=missed)
    return risk


@given(OUTCOMES, st.floats(0.0, 2.0), st.floats(0.001, 0.999))
def test_the_risk_is_the_least_share_of_misses_above_a_use(
    outcomes: list[tuple[float, bool]], use: float, most: float
) -> None:
    least = by_definition(outcomes, use)
    if least != pytest.approx(most):
        assert learnt(outcomes).is_at_most(most, use) == (least <= most)


@given(OUTCOMES, st.floats(0.0, 2.0), st.integers(1, 20), st.floats(0.001, 0.999))
def test_only_the_latest_outcomes_count(
    outcomes: list[tuple[float, bool]], use: float, window: int, most: float
) -> None:
    least = by_definition(outcomes[-window:], use)
    if least != pytest.approx(most):
        assert learnt(outcomes, window).is_at_most(most, use) == (least <= most)
    assert len(learnt(outcomes, window)) == min(len(outcomes), window)


@given(OUTCOMES, st.floats(0.01, 0.9))
def test_a_safe_use_has_a_small_risk(outcomes: list[tuple[float, bool]], most: float) -> None:
    risk = learnt(outcomes)
    found = risk.safe_use(most)
    assert found == 0.0 or risk.is_at_most(most, found)


def test_without_outcomes_the_risk_is_one_and_a_hundred_good_ones_make_it_a_hundredth() -> None:
    assert not learnt([]).is_at_most(0.99, 0.5) and learnt([]).safe_use(0.01) == 0.0
    risk = learnt([(0.9, False)] * 100)
    assert risk.is_at_most(0.01, 0.5) and not risk.is_at_most(0.99, 0.95) and risk.safe_use(0.01) == 0.9


def test_misses_close_to_the_target_do_not_condemn_requests_far_from_it() -> None:
    risk = learnt([(0.3, False)] * 200 + [(0.98, True)] * 50)
    assert risk.is_at_most(0.01, 0.2) and not risk.is_at_most(0.9, 0.9)
