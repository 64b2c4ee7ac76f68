"""Masked greedy: the best model for the task among those that are in time. No training, no state."""

import numpy as np

from sloserve.core.arrays import BoolArray, FloatArray, IntArray


def greedy(quality: FloatArray, predicted_s: FloatArray, allowed: BoolArray) -> IntArray:
    """Index of the model of highest quality among the ``allowed``, of equals the one that ends first; ``[n]``.

    All arrays are ``[n, models]``. Where none is allowed the answer is 0, and means nothing.
    """
    best = np.where(allowed, quality, -np.inf).max(axis=1, keepdims=True)
    return np.asarray(np.where(allowed & (quality >= best), predicted_s, np.inf).argmin(axis=1), np.int64)
