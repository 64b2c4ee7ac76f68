"""Calibrated quantiles: they cover what they say, while scores drift and after they jump, in bounded memory."""

import math
from bisect import insort

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.estimator.conformal import MIN_SCORES, WINDOW, ConformalQuantiles, Prediction

LEVELS = (0.1, 0.5, 0.9)
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))]


def covered(scale_of: np.ndarray, seed: int, delay: int = 0) -> np.ndarray:
    """Which of the predictions ``[requests, levels]`` are kept when the actual value is lognormal around ``scale_of``.

    delay: outcomes are known only after so many further predictions.
    """
    rng = np.random.default_rng(seed)
    calibration = ConformalQuantiles(LEVELS)
    actual = scale_of * rng.lognormal(0.0, 0.5, scale_of.size)
    predicted_before = []
    kept = np.ones((scale_of.size, len(LEVELS)), bool)
    for i in range(scale_of.size + delay):
        if i < scale_of.size:
            predicted_before.append(calibration.predict(1.0))
        if i >= delay:
            j = i - delay
            found = predicted_before[j]
            if found.quantiles is not None:
                kept[j] = [actual[j] <= found.quantiles[level] for level in LEVELS]
            calibration.observe(found, actual[j])
    return kept


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("delay", [0, 30])
def test_coverage_while_the_scores_drift(seed: int, delay: int) -> None:
    """The true scale doubles and halves again every 1,000 predictions."""
    kept = covered(np.exp2(np.sin(np.arange(3000) * (2 * math.pi / 1000))), seed, delay)[200:]
    assert 0.85 <= kept[:, 2].mean() <= 0.95
    assert 0.45 <= kept[:, 1].mean() <= 0.55


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("factor", [5.0, 0.2])
def test_coverage_is_right_again_soon_after_a_change_of_regime(seed: int, factor: float) -> None:
    scale = np.where(np.arange(1500) < 500, 1.0, factor)
    after = covered(scale, seed)[500 + WINDOW + 32 :, 2]
    assert 0.85 <= after.mean() <= 0.95
    assert 0.8 <= after[:200].mean() <= 1.0


def test_a_surprise_is_believed_before_the_window_has_turned_over() -> None:
    scale = np.where(np.arange(700) < 500, 1.0, 5.0)
    assert covered(scale, 0)[500 + WINDOW // 4 : 500 + WINDOW // 2, 2].mean() > 0.8


def test_nothing_is_promised_before_enough_was_seen() -> None:
    calibration = ConformalQuantiles(LEVELS)
    for _ in range(MIN_SCORES):
        prediction = calibration.predict(1.0)
        assert prediction.quantiles is None and prediction.factor(0.9) is None and calibration.coverage(0.9) is None
        calibration.observe(prediction, 2.0)
    prediction = calibration.predict(3.0)
    assert prediction.quantiles == dict.fromkeys(LEVELS, 6.0) and prediction.factor(0.9) == 2.0


def test_the_reported_coverage_is_that_of_the_latest_promises() -> None:
    calibration = ConformalQuantiles(LEVELS)
    for _ in range(3 * WINDOW):
        calibration.observe(Prediction(1.0, {0.9: 1.0}), 2.0)
    for _ in range(WINDOW // 2):
        calibration.observe(Prediction(1.0, {0.9: 3.0}), 2.0)
    assert calibration.coverage(0.9) == 0.5 and calibration.coverage(0.5) is None


def test_a_promise_that_ran_out_counts_once_and_at_once() -> None:
    calibration = ConformalQuantiles((0.9,))
    for _ in range(WINDOW):
        calibration.observe(calibration.predict(1.0), 1.0)
    before = calibration.predict(1.0)
    assert before.quantiles is not None
    for _ in range(10):
        calibration.ran_out(before, 0.9)
    assert calibration.coverage(0.9) == 1.0 - 1.0 / len(calibration._judged[0.9])
    judged = len(calibration._judged[0.9])
    calibration.observe(before, 9.0)
    assert len(calibration._judged[0.9]) == judged and calibration._sorted[-1] == 9.0


def test_long_outcomes_that_come_last_do_not_go_unseen() -> None:
    """Half the requests take 1 s, half 20 s; ten arrive a second. A quantile of 1 s fails long before 20 s."""
    rng = np.random.default_rng(0)
    actual = np.where(rng.random(400) < 0.5, 1.0, 20.0)
    calibration, kept = ConformalQuantiles((0.9,)), []
    events = sorted((i / 10.0 + t, i, "ends") for i, t in enumerate(actual))
    predictions: dict[int, Prediction] = {}
    for i in range(400):
        while events and events[0][0] <= i / 10.0:
            _, j, kind = events.pop(0)
            calibration.ran_out(predictions[j], 0.9) if kind == "due" else calibration.observe(
                predictions[j], actual[j]
            )
        predictions[i] = calibration.predict(1.0)
        if predictions[i].quantiles is not None:
            due_s = predictions[i].quantiles[0.9]
            kept.append(actual[i] <= due_s)
            if actual[i] > due_s:
                insort(events, (i / 10.0 + due_s, i, "due"))
    assert np.mean(kept[-150:]) >= 0.85


@given(
    outcomes=st.lists(st.tuples(st.floats(1e-6, 1e6), st.floats(0.0, 1e9)), max_size=80),
    window=st.integers(MIN_SCORES, 20),
    predicted=st.floats(1e-6, 1e6),
)
def test_quantiles_ascend_and_are_finite_and_memory_is_bounded(
    outcomes: list[tuple[float, float]], window: int, predicted: float
) -> None:
    calibration = ConformalQuantiles(LEVELS, window)
    for told, actual in outcomes:
        calibration.observe(calibration.predict(told), actual)
    found = calibration.predict(predicted).quantiles
    if found is not None:
        values = list(found.values())
        assert values == sorted(values) and all(math.isfinite(value) and value > 0.0 for value in values)
    assert len(calibration._sorted) == len(calibration._latest) == min(len(outcomes), window)
    assert sorted(calibration._latest) == calibration._sorted


@given(
    ordinary=st.lists(st.floats(0.5, 2.0), min_size=MIN_SCORES, max_size=2 * WINDOW),
    outlier=st.floats(2.0, 1e9),
    after=st.lists(st.floats(0.5, 2.0), max_size=2 * WINDOW),
)
def test_one_outlier_moves_no_quantile_beyond_the_other_scores(
    ordinary: list[float], outlier: float, after: list[float]
) -> None:
    """Or, where the level has run past the largest score already, not much further than without it."""
    calibration, calm = ConformalQuantiles(LEVELS), ConformalQuantiles(LEVELS)
    for score in (*ordinary, outlier, *after):
        calibration.observe(calibration.predict(1.0), score)
        calm.observe(calm.predict(1.0), min(score, 2.0))
    found, without = calibration.predict(1.0).quantiles, calm.predict(1.0).quantiles
    assert found is not None and without is not None
    assert all(found[level] <= max(*ordinary, *after, 1.1 * without[level]) for level in LEVELS)


def test_a_second_outlier_is_news() -> None:
    calibration = ConformalQuantiles(LEVELS)
    for score in [1.0] * WINDOW + [50.0] * 20:
        calibration.observe(calibration.predict(1.0), score)
    found = calibration.predict(1.0).quantiles
    assert found is not None and found[0.5] == 1.0 and found[0.9] == 50.0


@given(
    scores=st.lists(st.tuples(st.floats(1e-3, 1e3), st.floats(0.0, 1e3)), min_size=MIN_SCORES, max_size=40),
    predicted=st.tuples(st.floats(1e-3, 1e3), st.floats(0.0, 1e3)),
)
def test_a_whole_is_never_promised_before_its_part(
    scores: list[tuple[float, float]], predicted: tuple[float, float]
) -> None:
    """Whatever came of either before: of parts the first numbers, and what came after them the second ones."""
    part, whole = ConformalQuantiles(LEVELS), ConformalQuantiles(LEVELS)
    for first, rest in scores:
        part.observe(part.predict(1.0), first)
        whole.observe(whole.predict(1.0), first + rest)
    of_part = part.predict(predicted[0]).quantiles
    assert of_part is not None
    of_whole = whole.predict(sum(predicted), of_part).quantiles
    assert of_whole is not None and all(of_part[level] <= of_whole[level] for level in LEVELS)


def test_a_level_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="levels"):
        ConformalQuantiles((0.5, 1.0))


def test_levels_may_change_and_a_promise_of_before_is_judged_by_the_levels_that_stay() -> None:
    calibration = ConformalQuantiles((0.5, 0.9))
    for i in range(2 * MIN_SCORES):
        calibration.observe(calibration.predict(1.0), 1.0 + 0.1 * (i % 10))
    before = calibration.predict(1.0)
    coverage = calibration.coverage(0.5)
    calibration.set_levels((0.5, 0.8))
    assert calibration.coverage(0.5) == coverage and calibration.coverage(0.8) is None
    calibration.ran_out(before, 0.9)
    calibration.observe(before, 5.0)
    after = calibration.predict(1.0)
    assert after.quantiles is not None and list(after.quantiles) == [0.5, 0.8]
