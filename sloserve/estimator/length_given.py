"""Output lengths that somebody states: a user's range, the truth, or the truth with an error of a given size.

Requests of which nothing is stated are left to another predictor, which also learns from those that end. The errors
are drawn from the request's ``seq`` and the seed alone, so a prediction does not depend on when it is asked for.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy import special

from sloserve.estimator.length import EmpiricalLength
from sloserve.estimator.length_gaussian import NormalLengths
from sloserve.estimator.length_rest import (
    Either,
    Estimator,
    FloatArray,
    IntArray,
    LengthEstimator,
    LengthForm,
    Requests,
)


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
    """Lengths whose logarithm is Gaussian around ``centre`` with ``sigma > 0``, each ``[n]``."""

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


class RangeLength(Estimator):
    """A user's range: of the request (``lower_tokens``, ``upper_tokens``), else of its class, else a prediction.

    Args:
        by_class: class_id -> (least, most) output tokens.
        otherwise: predicts requests without a range; an :class:`EmpiricalLength` if not given.

    Raises: ValueError for a range that is empty or begins below 1.
    """

    def __init__(
        self, by_class: Mapping[int, tuple[int, int]] | None = None, otherwise: LengthEstimator | None = None
    ) -> None:
        self._by_class = dict(by_class or {})
        for class_id, (lower, upper) in self._by_class.items():
            if not 1 <= lower <= upper:
                raise ValueError(
                    f"class {class_id}: {lower}..{upper} output tokens is no range; give 1 <= least <= most"
                )
        self._otherwise = otherwise or EmpiricalLength()

    def observe(self, class_id: int, output_tokens: int) -> None:
        """See :meth:`sloserve.estimator.length_rest.LengthEstimator.observe`."""
        self._otherwise.observe(class_id, output_tokens)

    def form(self, requests: Requests) -> LengthForm:
        """See :meth:`sloserve.estimator.length_rest.LengthEstimator.form`."""
        ranges = [self._by_class.get(one, (-1, -1)) for one in requests.class_id.tolist()]
        lower, upper = np.array(ranges, np.int64).reshape(-1, 2).T
        if requests.lower_tokens is not None and requests.upper_tokens is not None:
            own = (requests.lower_tokens >= 1) & (requests.upper_tokens >= requests.lower_tokens)
            lower, upper = np.where(own, requests.lower_tokens, lower), np.where(own, requests.upper_tokens, upper)
        given = RangeLengths(np.maximum(lower, 1), np.maximum(upper, 1))
        return given if (lower >= 1).all() else Either(lower >= 1, given, self._otherwise.form(requests))


class OracleLength(Estimator):
    """The stated length of each request, with an error if one is asked for; requests without a statement are predicted.

    With an error the statement becomes ``length * exp(error * e)`` (lognormal), or ``length * (1 + error * e)``
    (normal), e standard Gaussian; the prediction is the same Gaussian around that, which for normal errors holds while
    they are small: of 30 %, the p90 covers 83 %. Source: the simulated-annealing
    paper, section 5.3, varies lengths by 2.5, 5 and 10 %; it does not name the distribution.

    Args:
        error: relative error, 0 or more. spread: ``lognormal`` or ``normal``. seed: of the errors.
        otherwise: predicts requests without a statement; an :class:`EmpiricalLength` if not given.

    Raises: ValueError when an argument is out of range.
    """

    def __init__(
        self,
        error: float = 0.0,
        spread: str = "lognormal",
        *,
        seed: int = 0,
        otherwise: LengthEstimator | None = None,
    ) -> None:
        if not 0.0 <= error < np.inf or spread not in ("normal", "lognormal"):
            raise ValueError(
                f"error {error}, spread {spread!r}: the error is 0 or more, the spread lognormal or normal"
            )
        self._error = error
        self._spread = spread
        self._seed = seed
        self._otherwise = otherwise or EmpiricalLength()

    def observe(self, class_id: int, output_tokens: int) -> None:
        """See :meth:`sloserve.estimator.length_rest.LengthEstimator.observe`."""
        self._otherwise.observe(class_id, output_tokens)

    def form(self, requests: Requests) -> LengthForm:
        """See :meth:`sloserve.estimator.length_rest.LengthEstimator.form`.

        Raises: ValueError when an error is to be drawn and the requests have no ``seq``.
        """
        if requests.stated_tokens is None:
            return self._otherwise.form(requests)
        known = requests.stated_tokens >= 1
        stated = self._stated(np.maximum(requests.stated_tokens, 1), requests.seq)
        return stated if known.all() else Either(known, stated, self._otherwise.form(requests))

    def _stated(self, truth: IntArray, seq: IntArray | None) -> LengthForm:
        if self._error == 0.0:
            return RangeLengths(truth, truth)
        if seq is None:
            raise ValueError("seq: the errors are drawn by it; give the requests' enqueue counters")
        deviate = self._error * special.ndtri(_uniform(self._seed, seq))
        if self._spread == "lognormal":
            return LogNormalLengths(np.log(truth) + deviate, np.full(truth.shape, self._error))
        centre = np.maximum(truth * (1.0 + deviate), 1.0)
        return NormalLengths(centre, np.maximum(self._error * centre, 0.1))


def _uniform(seed: int, seq: IntArray) -> FloatArray:
    """One number within (0, 1) for each ``seq``: splitmix64 (Steele, Lea, Flood 2014) of the pair."""
    with np.errstate(over="ignore"):  # arithmetic modulo 2**64 is the method
        x = seq.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        x += np.uint64((seed * 0xD1B54A32D192ED03 + 0x9E3779B97F4A7C15) % 2**64)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
    uniform: FloatArray = ((x >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53
    return uniform
