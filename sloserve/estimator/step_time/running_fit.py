"""A mean, a median and a line over a stream of positive samples, in which the last 32 or so count.

The mean follows every sample in constant time. The median and the line are robust: as long as more than half of the
samples are ordinary, the others cannot move them beyond the ordinary ones.

Memory is constant. An event costs at most a look at the last 32 samples, or for the line at their pairs: about 100 us,
which is paid for one in ``EVERY`` samples once the line has seen some, so that it may be as old as that.
"""

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass, field

import numpy as np

COUNT = 32
"""Samples that count: exactly this number for the median and the line, by their weight for the mean."""

EVERY = 5
"""New samples after which a line is fitted again; a line with less than twice COUNT samples is fitted after each."""

KEEP = 1.0 - 1.0 / COUNT
"""Weight of what was known before each new sample."""

LEAST = 1e-6
"""Least value that a line gives: in seconds, no engine answers in less."""


@dataclass(slots=True)
class RunningMean:
    """A mean in which older samples weigh exponentially less."""

    weight: float = 0.0
    total: float = 0.0

    def add(self, sample: float) -> None:
        self.weight = self.weight * KEEP + 1.0
        self.total = self.total * KEEP + sample

    @property
    def value(self) -> float | None:
        return self.total / self.weight if self.weight else None


@dataclass(slots=True)
class RunningMedian:
    """The median of the last samples."""

    _latest: deque[float] = field(default_factory=lambda: deque(maxlen=COUNT))
    _sorted: list[float] = field(default_factory=list)

    def add(self, sample: float) -> None:
        if len(self._latest) == COUNT:
            del self._sorted[bisect_left(self._sorted, self._latest[0])]
        self._latest.append(sample)
        insort(self._sorted, sample)

    @property
    def value(self) -> float | None:
        """The middle sample, the mean of the two middle ones where their number is even; ``None`` before the first."""
        count = len(self._sorted)
        return (self._sorted[(count - 1) // 2] + self._sorted[count // 2]) / 2.0 if count else None


@dataclass(slots=True)
class RunningLine:
    """A line through the last samples (x, y), x > 0, at their median height.

    Its slope is the median over the samples of the median slope from one to all others. A slope of 0 counts beside the
    latter, so that no slope follows from a single sample that lies elsewhere than all others.

    It never falls, nor lies below 0 for a positive x: where noise says so, it is flat, or goes through the origin.

    Source: Siegel, "Robust regression using repeated medians" (Biometrika 1982). Differs: the slope of 0, and the lower
    of two middle slopes in place of their mean.
    """

    _latest: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=COUNT))
    _fitted: tuple[float, float, float] | None = None
    """The line's start and slope, and the median of y; ``None`` if it has to be fitted again."""
    _since: int = 0

    def add(self, x: float, y: float) -> None:
        self._latest.append((x, y))
        self._since += 1
        if self._since >= EVERY or len(self._latest) < 2 * EVERY:
            self._fitted = None

    def at(self, x: float | None) -> float | None:
        """Return the line at ``x``, or its median if ``x`` is ``None``; ``None`` before the first sample."""
        if not self._latest:
            return None
        if self._fitted is None:
            self._fitted, self._since = self._fit(), 0
        start, slope, middle = self._fitted
        return max(middle if x is None else start + slope * x, LEAST)

    def _fit(self) -> tuple[float, float, float]:
        x, y = np.array(self._latest, np.float64).T
        run, rise = x[:, None] - x, y[:, None] - y
        differs = run != 0.0
        slopes = np.divide(rise, run, out=np.full(run.shape, np.inf), where=differs)
        slopes = np.sort(np.column_stack([slopes, np.zeros(x.size)]), axis=1)
        of_each = slopes[np.arange(x.size), np.count_nonzero(differs, axis=1) // 2]
        slope = max(float(np.sort(of_each)[(x.size - 1) // 2]), 0.0)
        start = float(np.median(y - slope * x))
        if start < 0.0:
            start, slope = 0.0, float(np.median(y / x))
        return start, slope, float(np.median(y))
