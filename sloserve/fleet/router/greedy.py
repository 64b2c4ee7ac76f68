"""Masked greedy: the best model for the task among the models in time, without training or state."""

import numpy as np

from sloserve.core.arrays import BoolArray, FloatArray, IntArray


def greedy(quality: FloatArray, predicted_s: FloatArray, allowed: BoolArray) -> IntArray:
    """Return the index of the ``allowed`` model of highest quality, of equals the one that ends first; ``[n]``.

    All arrays are ``[n, models]``. Where none is allowed the index is 0, and means nothing.
    """
    best = np.where(allowed, quality, -np.inf).max(axis=1, keepdims=True)
    return np.asarray(np.where(allowed & (quality >= best), predicted_s, np.inf).argmin(axis=1), np.int64)
