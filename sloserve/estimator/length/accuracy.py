"""How good predictions of lengths were: the figures the papers report, and whether the quantiles keep their word."""

from dataclasses import dataclass

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.estimator.length.remaining import Rest


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How good ``requests`` predictions were; tokens are what was still to come, shares lie within 0..1.

    within_10, within_25: share whose median prediction is off by at most that percentage of the truth. mae_tokens: of
    the median. mean_mae_tokens, mean_bias_tokens: of the mean, the bias above 0 where predictions are too long.
    cover_50, cover_90: share not longer than the predicted quantile; calibrated predictions have 0.5 and 0.9, more
    where one length is common. pinball_tokens: mean pinball loss of the two quantiles, a proper score; less is better.
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
    """What was predicted of n requests, each ``[n]``."""

    median: FloatArray
    p90: FloatArray
    mean: FloatArray

    @classmethod
    def of(cls, rest: Rest) -> "Predictions":
        return cls(rest.quantile(0.5), rest.quantile(0.9), rest.mean())


def accuracy(predicted: Predictions, actual: IntArray) -> Accuracy:
    """How good ``predicted`` was for requests that had ``actual`` tokens to come. Raises: ValueError for none."""
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
        pinball_tokens=(_pinball(predicted.median, actual, 0.5) + _pinball(predicted.p90, actual, 0.9)) / 2.0,
    )


def _pinball(quantile: FloatArray, actual: IntArray, q: float) -> float:
    short = actual - quantile
    return float(np.maximum(q * short, (q - 1.0) * short).mean())
