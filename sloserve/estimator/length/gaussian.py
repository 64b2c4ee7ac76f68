"""Output lengths as one Gaussian per class, fitted on line; the simulated-annealing paper's predictor.

A length is positive, so the Gaussian is cut at 0, and at k once a request has emitted k tokens. Its parameters are
chosen so that the *cut* distribution has the observed mean and standard deviation. A cut Gaussian spreads by less than
its mean, the exponential's spread being the limit; classes that spread more keep their mean and get that limit.

Source: SLO-aware scheduling by simulated annealing, section 5.1. Differs: the paper fits mean and deviation without
the cut (``cut_fit=False``) and predicts one random draw; here the whole distribution is the prediction.
"""

from dataclasses import dataclass

import numpy as np
from scipy import special

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.estimator.length.remaining import (
    PRIOR_MEAN_TOKENS,
    PRIOR_WEIGHT,
    Estimator,
    KnownRequests,
    is_uninformative,
)

_SQRT2 = np.sqrt(2.0)


def _hazard(z: FloatArray) -> FloatArray:
    """Return the standard Gaussian's density at z over its mass above z."""
    hazard: FloatArray = np.sqrt(2.0 / np.pi) / special.erfcx(z / _SQRT2)
    return hazard


# Relative spread of a standard Gaussian above z, shifted to start at 0: from 1/12 nearly to the exponential's 1.
_CUT = np.linspace(-12.0, 12.0, 2001)
_CUT_MEAN = _hazard(_CUT) - _CUT
_CUT_SPREAD = np.sqrt(1.0 + _CUT * _hazard(_CUT) - _hazard(_CUT) ** 2) / _CUT_MEAN


@dataclass(frozen=True, slots=True, eq=False)
class NormalLengths:
    """Gaussian lengths, each ``[n]``; figures are conditional on L > so_far >= 0, which is the cut."""

    centre: FloatArray
    sigma: FloatArray

    def mean_after(self, so_far: IntArray) -> FloatArray:
        z = (so_far - self.centre) / self.sigma
        # Far out the difference loses its digits, and is 1/z.
        rest = np.where(z > 1e4, 1.0 / np.maximum(z, 1.0), _hazard(z) - z)
        mean: FloatArray = self.sigma * rest
        return mean

    def survival_after(self, so_far: IntArray, tokens: FloatArray) -> FloatArray:
        z = (so_far - self.centre) / self.sigma
        later = z + tokens / self.sigma
        survival: FloatArray = np.exp(np.minimum(special.log_ndtr(-later) - special.log_ndtr(-z), 0.0))
        return survival

    def quantile_after(self, so_far: IntArray, q: FloatArray) -> FloatArray:
        z = (so_far - self.centre) / self.sigma
        at = -special.ndtri_exp(np.log1p(-q) + special.log_ndtr(-z))
        quantile: FloatArray = np.maximum(self.sigma * (at - z), 0.0)
        return quantile


def cut_normal(mean: FloatArray, deviation: FloatArray) -> NormalLengths:
    """Return Gaussians that, cut at 0, have this mean and standard deviation; see the module for spreads above 1."""
    z = np.interp(deviation / mean, _CUT_SPREAD, _CUT)
    sigma = mean / np.interp(z, _CUT, _CUT_MEAN)
    return NormalLengths(-z * sigma, sigma)


class GaussianLength(Estimator):
    """Mean and deviation of the class's lengths; older requests count for less once ``memory`` of them have ended.

    The prior is ``PRIOR_WEIGHT`` pseudo-requests of the class's own mean, itself shrunk to ``PRIOR_MEAN_TOKENS`` with
    the same weight, and of as large a deviation, as of geometric lengths.

    Args:
        memory: Ended requests that count; from then on each new one has the weight 1 / memory.
        cut_fit: Whether the cut Gaussian has the observed moments, or the one before the cut, as in the paper.

    Raises: ValueError when an argument is out of range.
    """

    def __init__(self, memory: int = 512, *, cut_fit: bool = True) -> None:
        if memory < 1:
            raise ValueError(f"memory: {memory} is not a whole number >= 1")
        self._memory = memory
        self._cut_fit = cut_fit
        self._moments: dict[int, tuple[float, float, float]] = {}  # requests that count, their mean and variance

    def observe(self, class_id: int, output_tokens: int, *, cut: bool = False) -> bool:
        """See :meth:`sloserve.estimator.length.remaining.LengthEstimator.observe`; one ``cut`` counts as whole.

        Raises: ValueError when ``output_tokens`` is below 1.
        """
        if output_tokens < 1:
            raise ValueError(f"output_tokens: {output_tokens} is not a length; the least is 1")
        if is_uninformative(output_tokens, cut=cut):
            return False
        count, mean, variance = self._moments.get(class_id, (0.0, 0.0, 0.0))
        count = min(count + 1.0, float(self._memory))
        step = (output_tokens - mean) / count
        variance = (variance + step * (output_tokens - mean)) * (1.0 - 1.0 / count)
        self._moments[class_id] = count, mean + step, variance
        return False

    def form(self, requests: KnownRequests) -> NormalLengths:
        """See :meth:`sloserve.estimator.length.remaining.LengthEstimator.form`."""
        mean, deviation = np.empty(requests.class_id.size), np.empty(requests.class_id.size)
        for one in np.unique(requests.class_id):
            members = requests.class_id == one
            mean[members], deviation[members] = self._shrunk(int(one))
        return cut_normal(mean, deviation) if self._cut_fit else NormalLengths(mean, deviation)

    def _shrunk(self, class_id: int) -> tuple[float, float]:
        """Return the class's mean and standard deviation, with the prior."""
        count, own_mean, variance = self._moments.get(class_id, (0.0, 0.0, 0.0))
        prior = PRIOR_WEIGHT
        mean = (count * own_mean + prior * PRIOR_MEAN_TOKENS) / (count + prior)
        variance = (count * (variance + (own_mean - mean) ** 2) + prior * mean**2) / (count + prior)
        # Tokens are whole: less than the deviation of rounding is not known.
        return mean, max(variance, 1.0 / 12.0) ** 0.5
