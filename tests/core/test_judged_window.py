"""Judged predictions: shares, widths and bands of the latest ones of all processes."""

import numpy as np
import pytest

from sloserve.core.judged_window import MAX_PREDICTIONS, WIDTHS, JudgedPredictions, PredictionWindow, judged
from sloserve.core.predicted import LEVELS, Quantiles
from sloserve.core.stamps import Stamps


def stamps() -> Stamps:
    return np.zeros(MAX_PREDICTIONS, np.uint64)


def test_shares_are_of_the_quantiles_that_were_kept() -> None:
    one = stamps()
    window = PredictionWindow(one)
    assert judged([one]) is None
    for actual_s in (0.5, 1.5, 2.5, 3.5):
        window.record(Quantiles(1.0, 2.0, 3.0), actual_s, 10.0)
    found = judged([one])
    assert found is not None and found.count == 4
    assert dict(zip(LEVELS, found.coverage, strict=True)) == {0.5: 0.25, 0.9: 0.5, 0.99: 0.75}


@pytest.mark.parametrize("ratio", [1.0, 1.3, 7.0, 400.0])
def test_a_width_is_the_quantile_over_the_median(ratio: float) -> None:
    one = stamps()
    PredictionWindow(one).record(Quantiles(0.2, 0.2 * ratio, 0.2 * ratio), 0.1, 1.0)
    found = judged([one])
    assert found is not None and len(found.widths) == len(WIDTHS)
    assert found.widths == pytest.approx([ratio, ratio], rel=0.06)


def test_the_mean_width_of_many_is_more_exact_than_one() -> None:
    one, rng = stamps(), np.random.default_rng(3)
    window = PredictionWindow(one)
    ratios = np.exp(rng.uniform(0.2, 2.0, MAX_PREDICTIONS))
    for at, ratio in enumerate(ratios.tolist()):
        window.record(Quantiles(1.0, ratio, ratio), 1.0, float(at))
    found = judged([one])
    assert found is not None
    assert found.widths == pytest.approx([np.exp(np.log(ratios).mean())] * 2, rel=0.005)


@pytest.mark.parametrize(("quantiles", "width"), [(Quantiles(0.0, 1.0, 1.0), 1000.0), (Quantiles(0.0, 0.0, 0.0), 1.0)])
def test_a_median_of_zero_has_a_width_too(quantiles: Quantiles, width: float) -> None:
    one = stamps()
    PredictionWindow(one).record(quantiles, 0.0, 1.0)
    found = judged([one])
    assert found is not None and found.widths == pytest.approx([width, width])


def test_the_latest_of_all_processes_are_judged() -> None:
    first, second = stamps(), stamps()
    for window, starts_s, quantile_s in ((PredictionWindow(first), 0.0, 0.1), (PredictionWindow(second), 1e4, 2.0)):
        for i in range(MAX_PREDICTIONS):
            window.record(Quantiles(quantile_s, quantile_s, quantile_s), 1.0, starts_s + i)
    found = judged([first, second])
    assert found is not None and found.count == MAX_PREDICTIONS and set(found.coverage) == {1.0}


def test_bands_are_wider_where_few_predictions_were_judged() -> None:
    many, few = (
        JudgedPredictions(2000, (0.52, 0.9, 0.984), (1.0, 1.0)),
        JudgedPredictions(100, (0.52, 0.9, 0.984), (1.0, 1.0)),
    )
    assert many.bands == pytest.approx((0.0335, 0.0201, 0.007), abs=1e-4)
    assert few.bands == pytest.approx((0.15, 0.09, 0.02985), abs=1e-4)
    assert many.calibrated == (True, True, True) and few.calibrated == (True, True, True)
    assert JudgedPredictions(2000, (0.46, 0.87, 0.982), (1.0, 1.0)).calibrated == (False, False, False)
    assert JudgedPredictions(100, (0.46, 0.87, 0.98), (1.0, 1.0)).calibrated == (True, True, True)
