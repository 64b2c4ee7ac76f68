"""QoE against numeric integration of the paper's curves, its Figure 2, and the edges."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sloserve.core.arrays import FloatArray
from sloserve.core.outcome import Outcome
from sloserve.core.qoe import (
    DEFAULT_TDS,
    DEFAULT_TTFT_S,
    digest_start_s,
    digested_area,
    expectation,
    expected_area,
    qoe,
)
from sloserve.core.request import WorkloadRequest
from sloserve.core.runlog import RequestLog
from sloserve.core.slo import SLO, SLOClass, Targets

TTFT_S, TDS = 1.0, 4.0


def integrate(corners_s: list[float], until_s: float, curve) -> float:  # type: ignore[no-untyped-def]
    """Area under a continuous, piecewise linear curve: Simpson's rule between its corners, which is exact there."""
    grid = np.unique([0.0, until_s, *(c for c in corners_s if 0.0 < c < until_s)])
    left, right = grid[:-1], grid[1:]
    heights = [np.array([curve(t) for t in ts]) for ts in (left, (left + right) / 2, right)]
    return float(np.sum((right - left) * (heights[0] + 4 * heights[1] + heights[2]) / 6))


def digested_by_events(times_s: FloatArray, tds: float):  # type: ignore[no-untyped-def]
    """A(t) by following the reader's buffer from one delivery to the next, and the corners of the curve."""
    corners: list[tuple[float, float]] = [(0.0, 0.0)]  # (time, tokens digested)
    for delivered, (time_s, next_s) in enumerate(zip(times_s, [*times_s[1:], np.inf], strict=True), start=1):
        digested = corners[-1][1]
        if corners[-1][0] < time_s:
            corners.append((time_s, digested))
        done_s = time_s + (delivered - digested) / tds
        if done_s <= next_s:
            corners.append((done_s, float(delivered)))
        else:
            corners.append((next_s, digested + (next_s - time_s) * tds))
    at, digested_at = np.array(corners).T
    return list(at), lambda t: np.interp(t, at, digested_at)


timelines = st.lists(st.floats(0.0, 3.0), min_size=1, max_size=40).map(lambda gaps: np.cumsum(gaps))


@settings(max_examples=3 * settings.default.max_examples)
@given(timelines, st.floats(0.05, 5.0), st.floats(0.2, 30.0))
def test_areas_agree_with_numeric_integration(times_s: FloatArray, ttft_s: float, tds: float) -> None:
    until_s = float(times_s[-1])
    corners, digested = digested_by_events(times_s, tds)
    actual = integrate(corners, until_s, digested)
    cap_s = ttft_s + times_s.size / tds
    expected = integrate([ttft_s, cap_s], until_s, lambda t: min(tds * max(0.0, t - ttft_s), times_s.size))
    assert digested_area(times_s, tds, until_s) == pytest.approx(actual, rel=1e-6, abs=1e-6)
    assert expected_area(times_s.size, ttft_s, tds, until_s) == pytest.approx(expected, rel=1e-6, abs=1e-6)
    if expected > 1e-3:
        assert qoe(times_s, ttft_s=ttft_s, tds=tds) == pytest.approx(min(1.0, actual / expected), abs=1e-6)


@settings(max_examples=2 * settings.default.max_examples)
@given(timelines, st.floats(0.2, 30.0))
def test_digestion_follows_its_recurrence(times_s: FloatArray, tds: float) -> None:
    expected = [times_s[0]]
    for time_s in times_s[1:]:
        expected.append(max(time_s, expected[-1] + 1.0 / tds))
    assert digest_start_s(times_s, tds) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@settings(max_examples=2 * settings.default.max_examples)
@given(timelines, st.floats(0.05, 5.0), st.floats(0.2, 30.0), st.data())
def test_an_earlier_token_never_hurts(times_s: FloatArray, ttft_s: float, tds: float, data: st.DataObject) -> None:
    """Principle 3, for one token before the last: the last one sets the limit of integration."""
    if times_s.size < 2:
        return
    at = data.draw(st.integers(0, times_s.size - 2))
    earlier = times_s.copy()
    earlier[at] = times_s[at - 1] if at else 0.0
    value = qoe(times_s, ttft_s=ttft_s, tds=tds)
    assert 0.0 <= value <= qoe(earlier, ttft_s=ttft_s, tds=tds) + 1e-9 <= 1.0 + 1e-9


def test_figure_2_of_the_paper() -> None:
    """1 is as expected, 2 ahead of that; 3 and 4 share a late first and the last token, 4 gets fewer in between."""
    steady = TTFT_S + np.arange(20) / TDS
    fast = 0.5 + np.arange(20) / (3 * TDS)
    late_fast_start = np.concatenate([np.linspace(4.0, 5.0, 15), np.linspace(8.0, 10.0, 5)])
    late_slow_start = np.concatenate([np.linspace(4.0, 8.0, 5), np.linspace(9.0, 10.0, 15)])
    # What aggregate figures see of the last two, TTFT and mean time of a token, is the same.
    assert late_fast_start[0] == late_slow_start[0]
    assert np.mean(np.diff(late_fast_start)) == pytest.approx(np.mean(np.diff(late_slow_start)))
    first, second, third, fourth = (
        qoe(times_s, ttft_s=TTFT_S, tds=TDS) for times_s in (steady, fast, late_fast_start, late_slow_start)
    )
    assert first == pytest.approx(1.0) and second == pytest.approx(1.0)
    assert 0.6 > third > fourth + 0.1 and fourth > 0.0


def test_delivery_faster_than_reading_adds_nothing() -> None:
    """Principle 2: digested at one time alike, two replies have the same areas under the digest curve."""
    paced = 2.0 + np.arange(10) / TDS
    burst = np.full(10, 2.0)
    assert digested_area(paced, TDS, 4.5) == pytest.approx(digested_area(burst, TDS, 4.5))


def test_known_areas() -> None:
    """Three tokens, one second late, then at pace: read for 1 s, expected over 1.5 s and then all there for 0.5 s."""
    times_s = np.array([2.0, 2.5, 3.0])
    assert digested_area(times_s, 2.0, 3.0) == pytest.approx(1.0)
    assert expected_area(3, 1.0, 2.0, 3.0) == pytest.approx(0.5 * 1.5 * 3.0 + 0.5 * 3.0)
    assert qoe(times_s, ttft_s=1.0, tds=2.0) == pytest.approx(1.0 / 3.75)


@pytest.mark.parametrize("times_s", [[0.0], [1.0], [0.2, 0.2, 0.9]])
def test_a_reply_over_before_the_expected_first_token_is_perfect(times_s: list[float]) -> None:
    assert qoe(np.array(times_s), ttft_s=TTFT_S, tds=TDS) == 1.0


def test_a_late_reply_in_one_piece_scores_nothing() -> None:
    assert qoe(np.full(5, 3.0), ttft_s=TTFT_S, tds=TDS) == 0.0


def test_alpha_penalises_a_late_first_token_only() -> None:
    late = 3.0 + np.arange(40) / TDS
    plain = qoe(late, ttft_s=TTFT_S, tds=TDS)
    assert qoe(late, ttft_s=TTFT_S, tds=TDS, alpha=0.5) == pytest.approx(0.25 * plain)
    assert qoe(late, ttft_s=TTFT_S, tds=TDS, alpha=0.0) == 0.0
    early_then_stalled = np.array([0.1, 9.0, 9.1])
    assert qoe(early_then_stalled, ttft_s=TTFT_S, tds=TDS, alpha=0.5) == qoe(early_then_stalled, ttft_s=TTFT_S, tds=TDS)


@pytest.mark.parametrize(
    ("times_s", "alpha"), [([], None), ([-0.1, 1.0], None), ([2.0, 1.0], None), ([1.0], -0.1), ([1.0], 1.5)]
)
def test_what_cannot_be_judged_is_refused(times_s: list[float], alpha: float | None) -> None:
    with pytest.raises(ValueError):
        qoe(np.array(times_s), ttft_s=TTFT_S, tds=TDS, alpha=alpha)


def test_expectation_fills_in_what_is_not_stated() -> None:
    assert expectation(Targets(ttft_s=2.0, tds=3.0)) == (2.0, 3.0)
    assert expectation(Targets(tds=3.0)) == (DEFAULT_TTFT_S, 3.0)
    assert expectation(Targets(ttft_s=2.0)) == (2.0, DEFAULT_TDS)
    assert expectation(Targets(tpot_s=0.1, e2e_s=9.0)) is None


def log(targets: Targets, outcome: Outcome, times_s: list[float], arrival_s: float = 100.0) -> RequestLog:
    request = WorkloadRequest("r", arrival_s, 10, 4, SLO(SLOClass("c", 0), targets))
    return RequestLog(request, outcome, arrival_s + np.array(times_s))


def test_qoe_of_a_request_counts_from_arrival() -> None:
    times_s = [2.0, 2.5, 3.0]
    assert log(Targets(ttft_s=1.0, tds=2.0), Outcome.COMPLETED, times_s).qoe == pytest.approx(1.0 / 3.75)
    assert log(Targets(ttft_s=1.0), Outcome.COMPLETED, [-1e-12]).qoe == 1.0


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.COMPLETED])
def test_a_request_that_was_not_completed_has_none_of_it(outcome: Outcome) -> None:
    assert log(Targets(ttft_s=1.0), outcome, [0.1, 0.2]).qoe == 0.0
    assert log(Targets(e2e_s=1.0), outcome, []).qoe is None
