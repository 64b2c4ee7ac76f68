"""Calibrated quantiles: they cover what they say, while scores drift and after they jump, in bounded memory."""

import math
from bisect import insort
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.estimator.conformal import MIN_SCORES, ConformalQuantiles, Prediction

LEVELS = (0.1, 0.5, 0.9)
WINDOW = 128
"""Enough scores for the quantiles of these levels."""
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


@pytest.mark.slow
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
        assert prediction.quantiles is None and calibration.coverage(0.9) is None
        calibration.observe(prediction, 2.0)
    prediction = calibration.predict(3.0)
    assert prediction.quantiles == pytest.approx(dict.fromkeys(LEVELS, 6.0))


def test_the_reported_coverage_is_that_of_the_latest_promises() -> None:
    calibration = ConformalQuantiles(LEVELS, WINDOW)
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
    coverage = calibration.coverage(0.9)
    assert coverage == 1.0 - 1.0 / (WINDOW - MIN_SCORES + 1)
    calibration.observe(before, 9.0)
    assert calibration.coverage(0.9) == coverage


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
    spread = calibration._spread
    assert len(spread.scores) == len(spread._latest) == min(len(outcomes), window)
    assert sorted(spread._latest) == spread.scores


@given(
    ordinary=st.lists(st.floats(0.5, 2.0), min_size=MIN_SCORES, max_size=2 * WINDOW),
    outlier=st.floats(2.0, 1e9),
    after=st.lists(st.floats(0.5, 2.0), max_size=2 * WINDOW),
)
def test_one_outlier_moves_no_quantile_beyond_the_other_scores(
    ordinary: list[float], outlier: float, after: list[float]
) -> None:
    """Or not much further than without it, where the middle of the scores lies in a gap between two kinds of them."""
    calibration, calm = ConformalQuantiles(LEVELS), ConformalQuantiles(LEVELS)
    for score in (*ordinary, outlier, *after):
        calibration.observe(calibration.predict(1.0), score)
        calm.observe(calm.predict(1.0), min(score, 2.0))
    found, without = calibration.predict(1.0).quantiles, calm.predict(1.0).quantiles
    assert found is not None and without is not None
    assert all(found[level] <= max(*ordinary, *after, 1.25 * without[level]) for level in LEVELS)


def test_a_second_outlier_is_news() -> None:
    calibration = ConformalQuantiles(LEVELS)
    for score in [1.0] * (WINDOW // 2) + [50.0] * 10:
        calibration.observe(calibration.predict(1.0), score)
    found = calibration.predict(1.0).quantiles
    assert found is not None and found[0.5] == pytest.approx(1.0) and found[0.9] == pytest.approx(50.0)


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


@dataclass
class InFlight:
    """Requests that come ten a second, with latencies around ``median_s``; predictions are judged as they pass."""

    calibration: ConformalQuantiles
    rng: np.random.Generator
    events: list[tuple[float, int, float]] = field(default_factory=list)
    predictions: dict[int, Prediction] = field(default_factory=dict)
    kept: list[list[bool]] = field(default_factory=list)
    over: set[int] = field(default_factory=set)

    def serve(self, count: int, median_s: float, leaving: float = 0.0) -> None:
        """Serve ``count`` more; a share of ``leaving`` of the clients leave at random times, some after the end."""
        for _ in range(count):
            i = len(self.predictions)
            now_s = i / 10.0
            self.until(now_s)
            actual, leaves = median_s * self.rng.lognormal(0.0, 0.5), self.rng.random() < leaving
            prediction = self.predictions[i] = self.calibration.predict(1.0)
            self.calibration.awaits(prediction)
            if prediction.quantiles is not None:
                self.kept.append([actual <= limit for limit in prediction.quantiles.values()])
                for level, limit in prediction.quantiles.items():
                    insort(self.events, (now_s + limit, i, level))
            insort(self.events, (now_s + actual, i, actual + 1.0))
            if leaves:
                insort(self.events, (now_s + self.rng.exponential(median_s), i, -1.0))

    def until(self, now_s: float) -> None:
        while self.events and self.events[0][0] <= now_s:
            at_s, i, what = self.events.pop(0)
            if i in self.over:
                continue
            if 0.0 < what < 1.0:
                self.calibration.ran_out(self.predictions[i], what)
                continue
            self.over.add(i)
            if what < 0.0:
                self.calibration.left(self.predictions[i], at_s - i / 10.0)
            else:
                self.calibration.observe(self.predictions[i], what - 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("leaving", [0.0, 0.2, 0.6])
def test_clients_that_leave_do_not_bias_the_coverage(leaving: float) -> None:
    """What clients that left would have seen counts as well, which the calibration never learns."""
    server = InFlight(ConformalQuantiles((0.5, 0.9, 0.99)), np.random.default_rng(3))
    server.serve(6000, 3.0, leaving)
    coverage = np.mean(server.kept[1000:], axis=0)
    # Three standard deviations of as many independent outcomes; of those that are judged there are fewer.
    assert coverage == pytest.approx([0.5, 0.9, 0.99], abs=0.02 + 0.02 * leaving)
    assert abs(coverage[2] - 0.99) < 0.004 + 0.006 * leaving


@pytest.mark.slow
def test_windows_of_p99_are_nearer_than_counting_alone_allows() -> None:
    server = InFlight(ConformalQuantiles((0.5, 0.9, 0.99)), np.random.default_rng(5))
    server.serve(22_000, 3.0)
    windows = np.mean(np.reshape(server.kept[1500 : 1500 + 20_000], (10, 2000, 3)), axis=1)
    assert np.abs(windows - [0.5, 0.9, 0.99]).max(axis=0) == pytest.approx(0.0, abs=0.03)
    # Of 2,000 independent outcomes they would be 0.0022 from 0.99 on average.
    assert np.std(windows[:, 2]) < 0.0022 and abs(np.mean(windows[:, 2]) - 0.99) < 0.001


def test_requests_in_flight_that_pass_their_medians_raise_high_quantiles_at_once() -> None:
    calibration = ConformalQuantiles((0.5, 0.99))
    for actual in np.random.default_rng(0).lognormal(0.0, 0.5, 12 * WINDOW):
        calibration.observe(calibration.predict(1.0), actual)
    before = calibration.predict(1.0)
    in_flight = [calibration.predict(1.0) for _ in range(100)]
    for prediction in in_flight:
        calibration.awaits(prediction)
    calm = calibration.predict(1.0)
    for prediction in in_flight:
        calibration.ran_out(prediction, 0.5)
    after = calibration.predict(1.0)
    assert before.quantiles is not None and calm.quantiles is not None and after.quantiles is not None
    assert calm.quantiles[0.99] == pytest.approx(before.quantiles[0.99], rel=0.01)
    assert after.chances[0.99] < 0.9 * calm.chances[0.99] and after.quantiles[0.5] > calm.quantiles[0.5]


@given(st.lists(st.sampled_from(["awaits", "ran out", "left", "ends"]), max_size=8), st.floats(0.01, 100.0))
def test_each_count_replaces_the_one_before(events: list[str], actual: float) -> None:
    """Whatever happens to a prediction, in which order, it counts as one outcome at most."""
    calibration = ConformalQuantiles((0.5, 0.9))
    for i in range(2 * MIN_SCORES):
        calibration.observe(calibration.predict(1.0), 1.0 + 0.1 * i)
    before = {level: state._excess for level, state in calibration._levels.items()}
    prediction = calibration.predict(1.0)
    for event in events:
        if event == "awaits" and not prediction.over:
            calibration.awaits(prediction)
        elif event == "ran out":
            calibration.ran_out(prediction, 0.5)
        elif event == "left":
            calibration.left(prediction, 0.5)
        elif event == "ends" and not prediction.over:
            calibration.observe(prediction, actual)
    for level, state in calibration._levels.items():
        assert -(1.0 - level) - 1e-9 <= state._excess - before[level] <= level + 1e-9
