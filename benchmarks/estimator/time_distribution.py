"""Times as distributions: shifted lognormals with a given mean, standard deviation and skewness.

A sum of many requests' times is close to normal (QLM, Sec. 6); the time of one request's own output is as skewed as its
length. One family holds both: with skewness 0 it is the normal distribution.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri

from sloserve.core.arrays import FloatArray

_NORMAL_BELOW = 1e-3
"""Skewness under which the normal distribution is used; the two differ by less than it there."""
_BISECTIONS = 40


@dataclass(frozen=True, slots=True, eq=False)
class TimeDistribution:
    """A time each of n requests takes, in seconds from now. mean_s, sd_s, skewness: ``[n]``; skewness at least 0."""

    mean_s: FloatArray
    sd_s: FloatArray
    skewness: FloatArray

    @classmethod
    def normal(cls, mean_s: ArrayLike, sd_s: ArrayLike) -> "TimeDistribution":
        mean = np.atleast_1d(np.asarray(mean_s, np.float64))
        return cls(mean, np.broadcast_to(np.asarray(sd_s, np.float64), mean.shape), np.zeros(mean.shape))

    def __len__(self) -> int:
        return self.mean_s.size

    def quantile_s(self, probability: float) -> FloatArray:
        """Time by which each is done with ``probability``, within 0..1 exclusive, ``[n]``; never below 0."""
        z = float(ndtri(probability))
        sigma = _sigma(self.skewness)
        skewed = np.expm1(sigma * z - sigma**2 / 2.0) / np.sqrt(np.expm1(sigma**2))
        spread = np.where(self.skewness > _NORMAL_BELOW, skewed, z)
        return np.asarray(np.maximum(self.mean_s + self.sd_s * spread, 0.0), np.float64)

    def within(self, limit_s: ArrayLike) -> FloatArray:
        """Probability that each takes at most ``limit_s``, ``[n]`` or one for all; ``[n]``."""
        sigma = _sigma(self.skewness)
        z = (np.asarray(limit_s, np.float64) - self.mean_s) / np.maximum(self.sd_s, 1e-12)
        inside = np.maximum(1.0 + z * np.sqrt(np.expm1(sigma**2)), 1e-300)
        skewed = np.log(inside) / sigma + sigma / 2.0
        return np.asarray(ndtr(np.where(self.skewness > _NORMAL_BELOW, skewed, z)), np.float64)

    def last_quantile_s(self, probability: float) -> float:
        """Time by which all are done with at least ``probability``: QLM's Eq. 5 as a distribution.

        From the product of the single probabilities, which is exact for independent times. Times of one queue rise and
        fall together, and then all are done by that time with a higher probability (Slepian): it is an upper bound.
        """
        low, high = 0.0, float(self.quantile_s(probability ** (1.0 / max(len(self), 1))).max(initial=0.0)) + 1e-9
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2.0
            if float(np.prod(self.within(middle))) < probability:
                low = middle
            else:
                high = middle
        return high

    def last_mean_s(self) -> float:
        """Expected time until all are done, an upper bound in the same sense; 0 for none.

        By quadrature of the quantiles of the maximum: the mean of their middle values at 32 equal probabilities.
        """
        if not len(self):
            return 0.0
        points = (np.arange(32) + 0.5) / 32
        return float(np.mean([self.last_quantile_s(p) for p in points]))


def _sigma(skewness: FloatArray) -> FloatArray:
    """Log-standard deviation of the lognormal of this skewness: the one real root of (w + 2) sqrt(w - 1) = skewness."""
    half = np.maximum(skewness, _NORMAL_BELOW) ** 2 / 2.0
    root = np.cbrt(1.0 + half + np.sqrt(half * (half + 2.0)))
    return np.asarray(np.sqrt(np.log(root + 1.0 / root - 1.0)), np.float64)


def lognormal_skewness(mean: FloatArray, sd: FloatArray) -> FloatArray:
    """Skewness of a positive quantity of this mean and standard deviation, taken as lognormal."""
    cv = sd / np.maximum(mean, 1e-12)
    return np.asarray(cv**3 + 3.0 * cv, np.float64)
