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


@given(OUTCOMES, st.floats(0.0, 2.0))
def test_the_risk_is_the_least_share_of_misses_above_a_use(outcomes: list[tuple[float, bool]], use: float) -> None:
    assert learnt(outcomes).at(use) == pytest.approx(by_definition(outcomes, use))


@given(OUTCOMES, st.floats(0.0, 2.0), st.integers(1, 20))
def test_only_the_latest_outcomes_count(outcomes: list[tuple[float, bool]], use: float, window: int) -> None:
    assert learnt(outcomes, window).at(use) == pytest.approx(by_definition(outcomes[-window:], use))
    assert len(learnt(outcomes, window)) == min(len(outcomes), window)


@given(OUTCOMES, st.floats(0.01, 0.9))
def test_a_safe_use_has_a_small_risk(outcomes: list[tuple[float, bool]], most: float) -> None:
    risk = learnt(outcomes)
    found = risk.safe_use(most)
    assert found == 0.0 or risk.at(found) <= most


def test_without_outcomes_the_risk_is_one_and_a_hundred_good_ones_make_it_a_hundredth() -> None:
    assert learnt([]).at(0.5) == 1.0 and learnt([]).safe_use(0.01) == 0.0
    risk = learnt([(0.9, False)] * 99)
    assert risk.at(0.5) == pytest.approx(0.01) and risk.at(0.95) == 1.0 and risk.safe_use(0.01) == 0.9


def test_misses_close_to_the_target_do_not_condemn_requests_far_from_it() -> None:
    risk = learnt([(0.3, False)] * 200 + [(0.98, True)] * 50)
    assert risk.at(0.2) < 0.01 and risk.at(0.9) > 0.9
