"""Finds the models that are sure enough to be in time, from the completion predictor and from its past error."""

import numpy as np

from sloserve.core.arrays import BoolArray, FloatArray

SURE = 1.645
"""Number of standard deviations of the prediction's error by which a model must be in time: 95 % of normal errors."""


def in_time(predicted_s: FloatArray, limit_s: FloatArray, error: float | FloatArray) -> BoolArray:
    """Return the models that end within ``limit_s`` although predictions are wrong by ``error``.

    Args:
        predicted_s: Predicted seconds, ``[n, models]``; infinite for a model that cannot serve the request at all.
        limit_s: Seconds that the network leaves of the request's time, ``[n]``.
        error: Relative standard deviation of predictions, one number or ``[n, models]``.
    """
    sure: BoolArray = predicted_s * (1.0 + SURE * error) <= limit_s[:, None]
    return sure


def feasible(predicted_s: FloatArray, limit_s: FloatArray, error: float | FloatArray) -> BoolArray:
    """Return models as ``in_time`` does; where no model is, allow only the one that ends first.

    So each request that can be served has a model.
    """
    allowed = in_time(predicted_s, limit_s, error)
    nowhere = np.flatnonzero(~allowed.any(axis=1))
    soonest = predicted_s[nowhere].argmin(axis=1)
    allowed[nowhere, soonest] = np.isfinite(predicted_s[nowhere, soonest])
    return allowed
