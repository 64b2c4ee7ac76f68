"""The latest predictions of one class and figure that were judged: how many requests kept each quantile, and its width.

Each prediction is one number of 16 bits beside its time (:mod:`sloserve.core.stamps`): which quantiles the request
kept, and how far the 0.9- and the 0.99-quantile lie above the median, on a logarithmic scale of 63 steps from 1 to
1,000. One width is off by 6 % at most, a mean of many by less.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from sloserve.core.predicted import LEVELS, P90, P99, Quantiles
from sloserve.core.stamps import Ring, Stamps, latest

MAX_PREDICTIONS: Final = 2_000
"""Most predictions that are remembered, the latest ones: with these the share within a 0.99-quantile has a standard
deviation of 0.22 points, of 256 it would have 0.62."""
BANDS: Final = (0.03, 0.02, 0.007)
"""Most distance of a share from its level that counts as calibrated, for each of ``LEVELS``."""
NOISE_SIGMAS: Final = 3.0
"""Standard deviations of a share of few predictions that count as chance."""
WIDTHS: Final = (P90, P99)
"""Levels of the quantiles that have a width."""
_MOST_RATIO: Final = 1_000.0
_WIDTH_BITS: Final = 6
_STEPS: Final = 2**_WIDTH_BITS - 1
_STEP: Final = math.log(_MOST_RATIO) / _STEPS
_JUDGED, _KEPT, _WIDTH = 1, 1, 1 + len(LEVELS)  # the bit of every prediction; first bits of the other parts


class PredictionWindow:
    """The latest predictions of one figure of a class, on ``stamps``, which has room for :data:`MAX_PREDICTIONS`."""

    def __init__(self, stamps: Stamps) -> None:
        self._ring = Ring(stamps)

    def record(self, quantiles: Quantiles, actual_s: float, now_s: float) -> None:
        """Record what came of a prediction.

        Args:
            quantiles: Quantiles that were predicted.
            actual_s: The figure as it was measured, in seconds.
            now_s: The present time by the monotonic clock, in seconds.
        """
        bits = _JUDGED
        kept = quantiles.kept(actual_s)
        for i, level in enumerate(LEVELS):
            bits |= kept[level] << _KEPT + i
        for i, quantile_s in enumerate((quantiles.p90_s, quantiles.p99_s)):
            bits |= _steps(quantile_s, quantiles.median_s) << _WIDTH + i * _WIDTH_BITS
        self._ring.add(bits, now_s)


@dataclass(frozen=True, slots=True)
class JudgedPredictions:
    """What came of the latest predictions of one figure.

    Args:
        count: Number of predictions, at least 1.
        coverage: Share of requests that took no longer than the quantile, for each of ``LEVELS``.
        widths: Geometric mean of the quantile divided by the median, for each of :data:`WIDTHS`.
    """

    count: int
    coverage: tuple[float, ...]
    widths: tuple[float, ...]

    @property
    def bands(self) -> tuple[float, ...]:
        """Distance from its level up to which each share counts as calibrated.

        It is the one of :data:`BANDS`, or three standard deviations of as few predictions where that is more.
        """
        return tuple(
            max(band, NOISE_SIGMAS * math.sqrt(level * (1.0 - level) / self.count))
            for band, level in zip(BANDS, LEVELS, strict=True)
        )

    @property
    def calibrated(self) -> tuple[bool, ...]:
        """Whether each share lies within its band."""
        return tuple(
            abs(share - level) <= band for share, level, band in zip(self.coverage, LEVELS, self.bands, strict=True)
        )


def judged(windows: Iterable[Stamps]) -> JudgedPredictions | None:
    """Return what came of the latest predictions; ``None`` without any.

    Args:
        windows: The windows of one class and figure, one of each process that serves it; they count as one window.
    """
    found = latest(windows, MAX_PREDICTIONS)
    if not found.size:
        return None
    kept = [found >> np.uint64(_KEPT + i) & np.uint64(1) for i in range(len(LEVELS))]
    steps = [found >> np.uint64(_WIDTH + i * _WIDTH_BITS) & np.uint64(_STEPS) for i in range(len(WIDTHS))]
    return JudgedPredictions(
        found.size,
        tuple(np.count_nonzero(each) / found.size for each in kept),
        tuple(math.exp(float(each.mean()) * _STEP) for each in steps),
    )


def _steps(quantile_s: float, median_s: float) -> int:
    ratio = quantile_s / median_s if median_s > 0.0 else _MOST_RATIO if quantile_s > 0.0 else 1.0
    return round(math.log(min(max(ratio, 1.0), _MOST_RATIO)) / _STEP)
