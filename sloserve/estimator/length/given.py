"""Output lengths that a client or the simulator states: the truth, or the truth with an error of a given size.

The errors are drawn from the request's ``seq`` and the seed alone, so a prediction does not depend on when it is asked
for.
"""

from dataclasses import dataclass

import numpy as np
from scipy import special

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.estimator.length.remaining import Estimator, KnownRequests, LengthForm


@dataclass(frozen=True, slots=True, eq=False)
class RangeLengths:
    """Every whole length from ``lower`` to ``upper`` alike, each ``[n]``; past the upper end one token is to come."""

    lower: IntArray
    upper: IntArray

    def _ends(self, so_far: IntArray) -> tuple[IntArray, IntArray]:
        return np.maximum(self.lower, so_far + 1), np.maximum(self.upper, so_far + 1)

    def mean_after(self, so_far: IntArray) -> FloatArray:
        lower, upper = self._ends(so_far)
        mean: FloatArray = (lower + upper) / 2.0 - so_far
        return mean

    def survival_after(self, so_far: IntArray, tokens: FloatArray) -> FloatArray:
        lower, upper = self._ends(so_far)
        survival: FloatArray = np.clip((upper - np.floor(so_far + tokens)) / (upper - lower + 1.0), 0.0, 1.0)
        return survival

    def quantile_after(self, so_far: IntArray, q: FloatArray) -> FloatArray:
        lower, upper = self._ends(so_far)
        quantile: FloatArray = lower - 1 - so_far + np.ceil(q * (upper - lower + 1) - 1e-9)
        return quantile


@dataclass(frozen=True, slots=True, eq=False)
class LogNormalLengths:
    """Lengths with a logarithm that is Gaussian around ``centre`` with ``sigma > 0``, each ``[n]``."""

    centre: FloatArray
    sigma: FloatArray

    def _z(self, tokens: IntArray | FloatArray) -> FloatArray:
        with np.errstate(divide="ignore"):  # log 0 is -inf: everything is longer than nothing
            z: FloatArray = (np.log(tokens) - self.centre) / self.sigma
        return z

    def mean_after(self, so_far: IntArray) -> FloatArray:
        # Beyond 30 deviations the density falls so fast that less than a token is to come; callers ask for one.
        z = np.minimum(self._z(so_far), 30.0)
        more = special.log_ndtr(self.sigma - z) - special.log_ndtr(-z)
        mean: FloatArray = np.exp(self.centre + self.sigma**2 / 2.0 + more) - so_far
        return np.maximum(mean, 1.0)

    def survival_after(self, so_far: IntArray, tokens: FloatArray) -> FloatArray:
        gone = special.log_ndtr(-self._z(so_far + tokens)) - special.log_ndtr(-self._z(so_far))
        survival: FloatArray = np.exp(np.minimum(gone, 0.0))
        return survival

    def quantile_after(self, so_far: IntArray, q: FloatArray) -> FloatArray:
        at = -special.ndtri_exp(np.log1p(-q) + special.log_ndtr(-self._z(so_far)))
        quantile: FloatArray = np.maximum(np.exp(self.centre + self.sigma * at) - so_far, 0.0)
        return quantile


class OracleLength(Estimator):
    """The stated length of each request, with an error if one is asked for.

    With an error the statement becomes ``length * exp(error * e)``, e standard Gaussian; the prediction is the same
    lognormal around that. Source: the simulated-annealing paper, section 5.3, varies lengths by 2.5, 5 and 10 %; it
    does not name the distribution.

    Args:
        error: Relative error, 0 or more.
        seed: Seed of the errors.

    Raises: ValueError when the error is out of range.
    """

    def __init__(self, error: float = 0.0, *, seed: int = 0) -> None:
        if not 0.0 <= error < np.inf:
            raise ValueError(f"error: {error} is not 0 or more, and finite")
        self._error = error
        self._seed = seed

    def observe(self, class_id: int, output_tokens: int, *, cut: bool = False) -> bool:
        """Return ``False``: a stated length needs no learning."""
        return False

    def form(self, requests: KnownRequests) -> LengthForm:
        """See :meth:`sloserve.estimator.length.remaining.LengthEstimator.form`.

        Raises: ValueError for a request without a statement, and when an error is to be drawn and ``seq`` is missing.
        """
        if requests.stated_tokens is None or (requests.stated_tokens < 1).any():
            raise ValueError("stated_tokens: an oracle needs a stated length of each request; give them all")
        return self._stated(requests.stated_tokens, requests.seq)

    def _stated(self, truth: IntArray, seq: IntArray | None) -> LengthForm:
        if self._error == 0.0:
            return RangeLengths(truth, truth)
        if seq is None:
            raise ValueError("seq: is missing, and errors are drawn by it; give the requests' enqueue counters")
        deviate = self._error * special.ndtri(_uniform(self._seed, seq))
        return LogNormalLengths(np.log(truth) + deviate, np.full(truth.shape, self._error))


def _uniform(seed: int, seq: IntArray) -> FloatArray:
    """Return one number within (0, 1) for each ``seq``: splitmix64 (Steele, Lea, Flood 2014) of the pair."""
    with np.errstate(over="ignore"):  # arithmetic modulo 2**64 is the method
        x = seq.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        x += np.uint64((seed * 0xD1B54A32D192ED03 + 0x9E3779B97F4A7C15) % 2**64)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
    uniform: FloatArray = ((x >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53
    return uniform
