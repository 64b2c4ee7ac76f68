"""Means over seeds with their confidence intervals, and figures of samples, ``None`` where there are none.

The intervals are Student's t: there are few seeds, and means are roughly normal.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean of ``n`` values and its two-sided confidence interval, which is ``None`` for a single value."""

    value: float
    low: float | None
    high: float | None
    n: int


def mean_interval(values: Sequence[float]) -> Mean | None:
    """Return mean and t interval of independent ``values``; ``None`` if there are none.

    For paired observations, give it the differences. Values that are all equal have an interval of no width.
    """
    sample = np.asarray(values, np.float64)
    if not sample.size:
        return None
    mean = float(np.mean(sample))
    if sample.size == 1:
        return Mean(mean, None, None, 1)
    standard_error = float(np.std(sample, ddof=1)) / math.sqrt(sample.size)
    reach = float(stdtrit(sample.size - 1, 0.5 + CONFIDENCE / 2.0)) * standard_error
    return Mean(mean, mean - reach, mean + reach, int(sample.size))


def mean_of(samples: NDArray[Any]) -> float | None:
    """Return the mean; of booleans, the share that is true."""
    return float(np.mean(samples)) if samples.size else None


def percentile_of(samples: NDArray[np.float64], percent: float) -> float | None:
    """Return the percentile, linear between samples."""
    return float(np.percentile(samples, percent)) if samples.size else None


def percentiles_of(name: str, samples: NDArray[np.float64], percents: Sequence[int]) -> dict[str, float | None]:
    """Return the percentiles under keys such as ``name_p10``."""
    return {f"{name}_p{percent}": percentile_of(samples, percent) for percent in percents}


def jain_index(values: Sequence[float]) -> float | None:
    """Return Jain's index of fairness of values that are 0 or more, ``(sum x)^2 / (n sum x^2)``.

    It is 1 if and only if all values are equal, and 1/n if one of n has everything; scaling all values changes nothing.
    Zeros alone are equal. The result is ``None`` without values.

    Source: Jain, Chiu and Hawe, A quantitative measure of fairness, DEC-TR-301, 1984.
    """
    array = np.asarray(values, np.float64)
    if not array.size:
        return None
    largest = float(array.max())
    if largest <= 0.0:
        return 1.0
    parts = array / largest  # the squares of these neither overflow nor vanish
    return float(parts.sum() ** 2 / (parts.size * (parts**2).sum()))
