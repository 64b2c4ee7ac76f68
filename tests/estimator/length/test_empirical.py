"""EmpiricalLength against a reference written one request at a time, and the promises policies rely on."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sloserve.estimator.length.empirical import EmpiricalLength
from sloserve.estimator.length.gaussian import GaussianLength
from sloserve.estimator.length.remaining import KnownRequests, Rest

NO_CAP = 1 << 40


def remaining(predictor: EmpiricalLength, class_id: int, so_far: int, max_tokens: int = NO_CAP) -> float:
    asked = KnownRequests(
        class_id=np.array([class_id]), output_tokens=np.array([so_far]), max_tokens=np.array([max_tokens])
    )
    return float(predictor.rest(asked).mean()[0])


def naive(lengths: list[int], so_far: int, cap: int, window: int, prior_mean: float, prior_weight: float) -> float:
    """E[min(L - so_far, left) | L > so_far]: lengths seen, and pseudo-requests of a geometric length."""
    left = max(cap - so_far, 1)
    seen = lengths[-window:]
    mean = (sum(seen) + prior_weight * prior_mean) / (len(seen) + prior_weight)
    longer = [length - so_far for length in seen if length > so_far]
    goes_on = 1.0 - 1.0 / mean
    pseudo = prior_weight * goes_on**so_far if longer else 1.0
    expected = sum(min(one, left) for one in longer) + pseudo * mean * (1.0 - goes_on**left)
    return max(1.0, min(expected / (len(longer) + pseudo), left))


@settings(max_examples=2 * settings.default.max_examples)
@given(
    observed=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3000)), max_size=60),
    asked=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4000), st.integers(0, 5000)), min_size=1, max_size=12),
    window=st.integers(1, 24),
    prior_mean=st.floats(1.0, 1000.0),
    prior_weight=st.floats(0.1, 20.0),
)
def test_agrees_with_the_reference(
    observed: list[tuple[int, int]],
    asked: list[tuple[int, int, int]],
    window: int,
    prior_mean: float,
    prior_weight: float,
) -> None:
    predictor = EmpiricalLength(window, prior_mean, prior_weight)
    by_class: dict[int, list[int]] = {}
    for class_id, length in observed:
        predictor.observe(class_id, length)
        by_class.setdefault(class_id, []).append(length)
    class_id, so_far, cap = (np.array(column, dtype=np.int64) for column in zip(*asked, strict=True))
    got = predictor.rest(KnownRequests(class_id=class_id, output_tokens=so_far, max_tokens=cap)).mean()
    want = [naive(by_class.get(c, []), k, cap, window, prior_mean, prior_weight) for c, k, cap in asked]
    np.testing.assert_allclose(got, want, rtol=1e-9)


def test_a_class_never_seen_predicts_the_prior_however_far_a_request_is() -> None:
    predictor = EmpiricalLength(prior_mean_tokens=100.0)
    assert [remaining(predictor, 7, k) for k in (0, 50, 5000)] == pytest.approx([100.0] * 3)


def test_many_requests_outweigh_the_prior() -> None:
    predictor = EmpiricalLength()
    for _ in range(500):
        predictor.observe(0, 20)
    assert remaining(predictor, 0, 0) == pytest.approx(20.0, rel=0.02)
    assert remaining(predictor, 0, 15) == pytest.approx(5.0, rel=0.05)


def test_a_request_longer_than_all_seen_predicts_the_classs_mean() -> None:
    predictor = EmpiricalLength(prior_mean_tokens=20.0)
    for _ in range(50):
        predictor.observe(0, 20)
    assert remaining(predictor, 0, 5000) == pytest.approx(20.0)


def test_of_two_modes_the_survivors_of_the_first_are_known_to_be_long() -> None:
    predictor = EmpiricalLength()
    for length in [10, 1000] * 100:
        predictor.observe(0, length)
    assert remaining(predictor, 0, 100) > 1.5 * remaining(predictor, 0, 0)


def test_the_window_forgets() -> None:
    predictor = EmpiricalLength(window=8)
    for length in [2000] * 50 + [10] * 8:
        predictor.observe(0, length)
    fresh = EmpiricalLength(window=8)
    for _ in range(8):
        fresh.observe(0, 10)
    assert remaining(predictor, 0, 3) == remaining(fresh, 0, 3)


def test_a_prediction_follows_a_new_observation() -> None:
    predictor = EmpiricalLength()
    before = remaining(predictor, 0, 0)
    predictor.observe(0, 10_000)
    assert remaining(predictor, 0, 0) > before


@pytest.mark.parametrize(
    ("so_far", "max_tokens", "expected"), [(0, 30, 28.3), (25, 30, 4.95), (30, 30, 1.0), (40, 30, 1.0)]
)
def test_max_tokens_caps_and_one_is_the_least(so_far: int, max_tokens: int, expected: float) -> None:
    assert remaining(EmpiricalLength(), 0, so_far, max_tokens) == pytest.approx(expected, rel=0.01)


def test_no_requests_no_predictions() -> None:
    none = np.empty(0, np.int64)
    assert EmpiricalLength().rest(KnownRequests(class_id=none, output_tokens=none, max_tokens=none)).mean().shape == (
        0,
    )


def test_a_length_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="output_tokens: 0"):
        EmpiricalLength().observe(0, 0)


@pytest.mark.parametrize("arguments", [(0, 256.0, 4.0), (8, 0.5, 4.0), (8, 256.0, 0.0), (8, float("nan"), 4.0)])
def test_settings_out_of_range_are_refused(arguments: tuple[int, float, float]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        EmpiricalLength(*arguments)


def rest(predictor: EmpiricalLength, class_id: int, so_far: int, max_tokens: int = NO_CAP) -> Rest:
    return predictor.rest(
        KnownRequests(
            class_id=np.array([class_id]), output_tokens=np.array([so_far]), max_tokens=np.array([max_tokens])
        )
    )


def test_quantiles_are_those_of_the_class_and_of_its_survivors() -> None:
    predictor = EmpiricalLength(window=4096)
    for length in np.random.default_rng(0).permutation(np.arange(1, 1001)).tolist():  # in order they would drift
        predictor.observe(3, length)
    assert float(rest(predictor, 3, 0).quantile(0.9)[0]) == pytest.approx(900, abs=12)
    assert float(rest(predictor, 3, 500).quantile(0.5)[0]) == pytest.approx(250, abs=6)
    assert float(rest(predictor, 3, 500).survival(250)[0]) == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("kind", [EmpiricalLength, GaussianLength])
def test_calls_of_one_token_do_not_crowd_out_what_is_known(kind: Any) -> None:
    """Those of a beam search, of which one request makes hundreds: each is cut at its first token."""
    known, crowded = kind(), kind()
    for estimator in (known, crowded):
        for length in (40, 50, 60) * 10:
            estimator.observe(0, length)
    for _ in range(1000):
        assert crowded.observe(0, 1, cut=True) is False
    assert remaining(crowded, 0, 0) == remaining(known, 0, 0)
    for _ in range(1000):
        crowded.observe(0, 1)  # by itself: replies that are as short
    assert remaining(crowded, 0, 0) < 5.0


def test_a_request_that_was_cut_is_known_only_to_be_longer() -> None:
    cut, complete = EmpiricalLength(), EmpiricalLength()
    for length in [10, 10, 100, 100]:
        complete.observe(0, length)
        cut.observe(0, length, cut=length == 100)
    assert remaining(cut, 0, 0) > remaining(complete, 0, 0)
    assert float(rest(cut, 0, 50).survival(51)[0]) > float(rest(complete, 0, 50).survival(51)[0]) + 0.3


@pytest.mark.parametrize(("before", "then"), [(200, 800), (2000, 400)])
def test_changed_lengths_are_noticed_within_50_replies(before: int, then: int) -> None:
    rng = np.random.default_rng(4)
    predictor = EmpiricalLength()
    for length in rng.geometric(1 / before, 512).tolist():
        assert not predictor.observe(0, length)
    # Half of the new ones are cut by a cap at their median: they are known only to be longer.
    new = np.minimum(rng.geometric(1 / then, 50), int(then * 0.69))
    noticed = [predictor.observe(0, int(length), cut=length == int(then * 0.69)) for length in new]
    assert any(noticed)
    assert remaining(predictor, 0, 0) == pytest.approx(then, rel=0.35)


@pytest.mark.slow
def test_lengths_that_stay_are_hardly_ever_taken_for_others() -> None:
    taken = 0
    for seed in range(8):
        predictor = EmpiricalLength()
        drawn = np.random.default_rng(seed).lognormal(6.0, 1.2, 1000)
        taken += sum(predictor.observe(0, int(length) + 1) for length in drawn)
    assert taken <= 1


def test_the_mean_is_under_the_cap_not_cut_at_it() -> None:
    predictor = EmpiricalLength()
    for length in [10, 400] * 100:
        predictor.observe(0, length)
    assert remaining(predictor, 0, 0, max_tokens=200) == pytest.approx(105, rel=0.05)
