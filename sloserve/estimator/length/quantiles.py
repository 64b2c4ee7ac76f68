"""Output lengths described by a few quantiles per request: linear between them, exponential beyond the last."""

from dataclasses import dataclass

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class QuantileLengths:
    """Distributions that are known by quantiles; build them with :func:`quantile_lengths`.

    Args:
        survival: P(L > knot), descending from 1, ``[m]``.
        knots: Lengths in tokens, ascending from 0, ``[n, m]``.
        area: Expected tokens beyond each knot, times its survival, ``[n, m]``.
        tail: Mean of the exponential beyond the last knot in tokens, ``[n]``.
    """

    survival: FloatArray
    knots: FloatArray
    area: FloatArray
    tail: FloatArray

    def _at(self, tokens: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the survival at ``tokens``, and the area from there.

        Beyond the last knot both are relative to the survival of that knot.
        """
        rows = np.arange(tokens.size)
        right = np.minimum((self.knots <= tokens[:, None]).sum(axis=1), self.survival.size - 1)
        left = right - 1
        span = self.knots[rows, right] - self.knots[rows, left]
        into = np.clip((tokens - self.knots[rows, left]) / span, 0.0, 1.0)
        survival = self.survival[left] + into * (self.survival[right] - self.survival[left])
        ahead = np.maximum(self.knots[rows, right] - tokens, 0.0)
        return survival, self.area[rows, right] + ahead * (survival + self.survival[right]) / 2.0

    def mean_after(self, so_far: IntArray) -> FloatArray:
        survival, area = self._at(so_far.astype(np.float64))
        mean: FloatArray = area / survival
        return mean

    def survival_after(self, so_far: IntArray, tokens: FloatArray) -> FloatArray:
        last = self.knots[:, -1]
        now, then = self._at(so_far.astype(np.float64))[0], self._at(so_far + tokens)[0]
        beyond = np.maximum(so_far + tokens - np.maximum(last, so_far), 0.0)
        survival: FloatArray = then / now * np.exp(-beyond / self.tail)
        return survival

    def quantile_after(self, so_far: IntArray, q: FloatArray) -> FloatArray:
        target = (1.0 - q) * self._at(so_far.astype(np.float64))[0]
        rows = np.arange(so_far.size)
        right = np.clip(np.searchsorted(-self.survival, -target), 1, self.survival.size - 1)
        left = right - 1
        into = (self.survival[left] - target) / (self.survival[left] - self.survival[right])
        length = self.knots[rows, left] + into * (self.knots[rows, right] - self.knots[rows, left])
        last = np.maximum(self.knots[:, -1], so_far)
        beyond = last + self.tail * np.log(np.maximum(self.survival[-1] / target, 1.0))
        length = np.where(target < self.survival[-1], beyond, length)
        quantile: FloatArray = np.maximum(length - so_far, 0.0)
        return quantile


def quantile_lengths(levels: FloatArray, tokens: FloatArray) -> QuantileLengths:
    """Return the distributions with quantiles ``tokens``.

    Quantiles of separate models may cross: they are sorted, and kept apart by a thousandth of a token. The tail falls
    as between the last two levels.

    Args:
        levels: Levels of the quantiles, ascending within (0, 1), ``[m]``.
        tokens: Quantiles in tokens, ``[n, m]``.
    """
    survival = np.concatenate(([1.0], 1.0 - levels))
    knots = np.concatenate((np.zeros((tokens.shape[0], 1)), np.sort(np.maximum(tokens, 0.001), axis=1)), axis=1)
    apart = 0.001 * np.arange(knots.shape[1])
    knots = np.maximum.accumulate(knots - apart, axis=1) + apart
    tail = np.maximum((knots[:, -1] - knots[:, -2]) / np.log(survival[-2] / survival[-1]), 1.0)
    strips = np.diff(knots, axis=1) * (survival[1:] + survival[:-1]) / 2.0
    area = np.empty_like(knots)
    area[:, -1] = survival[-1] * tail
    area[:, :-1] = area[:, -1:] + np.cumsum(strips[:, ::-1], axis=1)[:, ::-1]
    return QuantileLengths(survival, knots, area, tail)
