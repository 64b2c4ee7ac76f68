"""The distribution of the lengths of one class, from requests that ended by themselves and requests that were cut.

Kaplan-Meier: a request that was cut after c tokens is at risk at every length up to c and ends at none. Without such
requests the estimate is the share of lengths above k. Mixed in is a prior: ``prior_weight`` pseudo-requests of
geometric length, of which ``prior_weight * (1 - 1/m) ** k`` outlive k tokens and have an expected rest of m for any k.
m is the class's own mean, itself shrunk to the prior's; beyond the greatest length to which any request was followed
the rest is geometric too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sloserve.core.arrays import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class SurvivalCurve:
    """Weight of requests longer than k, as steps at ``ends`` plus a geometric part.

    Args:
        ends: Distinct lengths at which requests ended, ascending, ``[a]``; the last may be one to which a request was
            followed without ending.
        weight: Weight that outlives the first i of ``ends``, ``[a + 1]``.
        area: Sum of the weight over all k from ``ends[i]`` on, ``[a]``.
        prior_weight: Weight of the geometric part.
        mean: Mean of the geometric part, in tokens.
    """

    ends: IntArray
    weight: FloatArray
    area: FloatArray
    prior_weight: float
    mean: float

    @property
    def _log_stay(self) -> float:
        """The log of the probability that a geometric request goes on; its mean is 1 / (1 - that)."""
        return float(np.log1p(-1.0 / self.mean))

    def _steps(self, k: IntArray | FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the steps' weight above k, and its sum over all lengths from k on."""
        index = np.searchsorted(self.ends, k, side="right")
        weight = self.weight[index]
        if not self.ends.size:
            return weight, weight * self.mean
        last = self.ends.size - 1
        inside = index <= last
        past = np.exp(self._log_stay * np.maximum(k - self.ends[last], 0))
        weight = np.where(inside, weight, weight * past)
        ahead = np.minimum(index, last)
        area = np.where(inside, self.area[ahead] + (self.ends[ahead] - k) * weight, weight * self.mean)
        return weight, area

    def _pseudo(self, k: IntArray | FloatArray) -> FloatArray:
        pseudo: FloatArray = self.prior_weight * np.exp(self._log_stay * k)
        return pseudo

    def mean_after(self, so_far: IntArray) -> FloatArray:
        weight, area = self._steps(so_far)
        # A correction of the mean, so that it is the mean where nothing is longer and the prior's weight underflows.
        total = np.where(weight > 0.0, weight + self._pseudo(so_far), 1.0)
        mean: FloatArray = self.mean + np.where(weight > 0.0, (area - weight * self.mean) / total, 0.0)
        return mean

    def survival_after(self, so_far: IntArray, tokens: FloatArray) -> FloatArray:
        now = self._steps(so_far)[0] + self._pseudo(so_far)
        then = self._steps(so_far + tokens)[0] + self._pseudo(so_far + tokens)
        return np.where(now > 0.0, then / np.where(now > 0.0, now, 1.0), np.exp(self._log_stay * tokens))

    def quantile_after(self, so_far: IntArray, q: FloatArray) -> FloatArray:
        now = self._steps(so_far)[0] + self._pseudo(so_far)
        geometric = np.log1p(-q) / self._log_stay
        target = np.maximum((1.0 - q) * now, np.finfo(np.float64).tiny)
        after = self.weight[1:] + self._pseudo(self.ends)
        index = np.searchsorted(-after, -target, side="left")
        # Between two ends the steps stand still and the geometric part alone falls to the target.
        above = target - self.weight[index]
        length = np.log(np.where(above > 0.0, above, self.prior_weight) / self.prior_weight) / self._log_stay
        if self.ends.size:
            last = self.ends.size - 1
            end = self.ends[np.minimum(index, last)]
            length = np.where((above > 0.0) & (index <= last), np.minimum(length, end), end)
            beyond = end + (np.log(target) - np.log(np.maximum(after[last], target))) / self._log_stay
            length = np.where(index > last, beyond, length)
        # Far beyond all that was seen, weights are too small to divide; there the rest is geometric.
        quantile = np.where(now > 1e-200, np.maximum(length - so_far, 0.0), geometric)
        whole: FloatArray = np.ceil(quantile - 1e-6)  # rounding must not make a whole number one more
        return whole


def survival_curve(ended: IntArray, cut: IntArray, *, prior_mean_tokens: float, prior_weight: float) -> SurvivalCurve:
    """Return the curve of requests that ended after ``ended`` tokens and others known to be longer than ``cut``."""
    mean = (ended.sum() + cut.sum() + prior_weight * prior_mean_tokens) / (ended.size + prior_weight)
    ends, counts = np.unique(ended, return_counts=True)
    if cut.size and (not ends.size or cut.max() > ends[-1]):
        ends, counts = np.append(ends, cut.max()), np.append(counts, 0)
    gone = np.cumsum(counts)
    weight = np.concatenate(([ended.size], ended.size - gone)).astype(np.float64)
    if cut.size:
        longer = cut.size - np.searchsorted(np.sort(cut), ends, side="left")
        at_risk = weight[:-1] + longer
        weight[1:] = ended.size * np.cumprod(1.0 - counts / at_risk)
    mean = max(float(mean), 1.0 + 1e-12)  # so that a class of one-token outputs has a logarithm
    area = np.empty(ends.size)
    if ends.size:
        area[-1] = weight[-1] * mean
        area[:-1] = area[-1] + np.cumsum((np.diff(ends) * weight[1:-1])[::-1])[::-1]
    return SurvivalCurve(ends, weight, area, prior_weight, mean)


def log_rank(tokens: IntArray, cut: BoolArray, chosen: BoolArray) -> float:
    """Return how many standard deviations the ``chosen`` lengths lie from the others; below 0 if they are longer.

    This is the log-rank test (Mantel 1966): at each length at which requests end, the chosen should make up the share
    of the ended requests that they have of the requests which come that far.

    Args:
        tokens: Lengths, or the least that they can be, ``[n]``.
        cut: Whether only the least is known of a length, ``[n]``.
        chosen: Whether a length belongs to the first of the two groups, ``[n]``.
    """
    ends, ended = np.unique(tokens[~cut], return_counts=True)
    of_chosen = tokens[chosen & ~cut].size
    here, there = (np.sort(tokens[group]) for group in (chosen, ~chosen))
    at_risk = [group.size - np.searchsorted(group, ends, side="left") for group in (here, there)]
    total = at_risk[0] + at_risk[1]
    share = at_risk[0] / total
    variance = (ended * share * (1.0 - share) * (total - ended) / np.maximum(total - 1, 1)).sum()
    return float((of_chosen - (ended * share).sum()) / np.sqrt(variance)) if variance > 0.0 else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class CurveOfEach:
    """Requests of several classes: ``curves`` and the places of their requests, which cover all n."""

    parts: Sequence[tuple[SurvivalCurve, IntArray]]
    size: int

    def mean_after(self, so_far: IntArray) -> FloatArray:
        out = np.empty(self.size)
        for curve, places in self.parts:
            out[places] = curve.mean_after(so_far[places])
        return out

    def survival_after(self, so_far: IntArray, tokens: FloatArray) -> FloatArray:
        out = np.empty(self.size)
        for curve, places in self.parts:
            out[places] = curve.survival_after(so_far[places], tokens[places])
        return out

    def quantile_after(self, so_far: IntArray, q: FloatArray) -> FloatArray:
        out = np.empty(self.size)
        for curve, places in self.parts:
            out[places] = curve.quantile_after(so_far[places], q[places])
        return out
