"""Accuracy of predictions of lengths: the figures the papers report, and whether the quantiles are kept."""

from dataclasses import dataclass

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.estimator.length.remaining import Rest


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Accuracy of predictions of tokens still to come; shares lie within 0..1.

    Args:
        requests: Number of predictions.
        within_10: Share of predictions with a median that is off by at most 10 % of the truth.
        within_25: Share of predictions with a median that is off by at most 25 % of the truth.
        mae_tokens: Mean absolute error of the median, in tokens.
        mean_mae_tokens: Mean absolute error of the mean, in tokens.
        mean_bias_tokens: Bias of the mean, in tokens, above 0 where predictions are too long.
        cover_50: Share not longer than the predicted median; 0.5 if calibrated, more where one length is common.
        cover_90: Share not longer than the predicted 0.9-quantile; 0.9 if calibrated, more where one length is common.
        pinball_tokens: Mean pinball loss of the two quantiles, a proper score; less is better.
    """

    requests: int
    within_10: float
    within_25: float
    mae_tokens: float
    mean_mae_tokens: float
    mean_bias_tokens: float
    cover_50: float
    cover_90: float
    pinball_tokens: float


@dataclass(frozen=True, slots=True, eq=False)
class Predictions:
    """Predictions for n requests, each ``[n]``."""

    median: FloatArray
    p90: FloatArray
    mean: FloatArray

    @classmethod
    def of(cls, rest: Rest) -> "Predictions":
        return cls(rest.quantile(0.5), rest.quantile(0.9), rest.mean())


def accuracy(predicted: Predictions, actual: IntArray) -> Accuracy:
    """Return the accuracy of ``predicted`` for requests that had ``actual`` tokens to come.

    Raises: ValueError without requests.
    """
    if not actual.size:
        raise ValueError("actual: no requests, so no accuracy")
    off = np.abs(predicted.median - actual)
    return Accuracy(
        requests=actual.size,
        within_10=float((off <= 0.10 * actual).mean()),
        within_25=float((off <= 0.25 * actual).mean()),
        mae_tokens=float(off.mean()),
        mean_mae_tokens=float(np.abs(predicted.mean - actual).mean()),
        mean_bias_tokens=float((predicted.mean - actual).mean()),
        cover_50=float((actual <= predicted.median).mean()),
        cover_90=float((actual <= predicted.p90).mean()),
        pinball_tokens=float(pinball_losses(predicted, actual).mean()),
    )


def pinball_losses(predicted: Predictions, actual: IntArray) -> FloatArray:
    """Return each request's mean pinball loss of median and 0.9-quantile, in tokens, ``[n]``."""
    losses: FloatArray = (_pinball(predicted.median, actual, 0.5) + _pinball(predicted.p90, actual, 0.9)) / 2.0
    return losses


def _pinball(quantile: FloatArray, actual: IntArray, q: float) -> FloatArray:
    short = actual - quantile
    return np.maximum(q * short, (q - 1.0) * short)
