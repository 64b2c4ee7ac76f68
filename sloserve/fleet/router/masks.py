"""Which models are sure enough to be in time, by what the completion predictor says and by how wrong it has been."""

import numpy as np

from sloserve.core.arrays import BoolArray, FloatArray

SURE = 1.645
"""Standard deviations of the prediction's error that a model must be in time by: 95 % of normal errors."""


def in_time(predicted_s: FloatArray, limit_s: FloatArray, error: float | FloatArray) -> BoolArray:
    """Models that end within ``limit_s`` although predictions are wrong by ``error``.

    predicted_s: ``[n, models]``, infinite for a model that cannot serve the request at all. limit_s: ``[n]``, what is
    left of the request's time once the network has had its share. error: relative standard deviation, one or
    ``[n, models]``.
    """
    sure: BoolArray = predicted_s * (1.0 + SURE * error) <= limit_s[:, None]
    return sure


def feasible(predicted_s: FloatArray, limit_s: FloatArray, error: float | FloatArray) -> BoolArray:
    """As ``in_time``; but where no model is, the one that ends first is the only one allowed, so that each request that
    can be served has a model.
    """
    allowed = in_time(predicted_s, limit_s, error)
    nowhere = np.flatnonzero(~allowed.any(axis=1))
    soonest = predicted_s[nowhere].argmin(axis=1)
    allowed[nowhere, soonest] = np.isfinite(predicted_s[nowhere, soonest])
    return allowed
