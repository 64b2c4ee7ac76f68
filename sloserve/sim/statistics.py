"""Means over seeds with their confidence intervals (Student's t: few seeds, roughly normal means)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean of ``n`` values and its two-sided confidence interval, which is ``None`` for a single value."""

    value: float
    low: float | None
    high: float | None
    n: int


def mean_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Mean | None:
    """Mean and t interval of independent ``values``; ``None`` if there are none.

    For paired observations, give it the differences. Values that are all equal have an interval of no width.
    """
    sample = np.asarray(values, np.float64)
    if not sample.size:
        return None
    mean = float(np.mean(sample))
    if sample.size == 1:
        return Mean(mean, None, None, 1)
    standard_error = float(np.std(sample, ddof=1)) / math.sqrt(sample.size)
    reach = float(stdtrit(sample.size - 1, 0.5 + confidence / 2.0)) * standard_error
    return Mean(mean, mean - reach, mean + reach, int(sample.size))
