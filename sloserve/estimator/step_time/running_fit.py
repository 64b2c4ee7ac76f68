"""A mean and a line over a stream of positive samples, in which the last 32 or so count. Constant memory and time."""

from dataclasses import dataclass

KEEP = 1.0 - 1.0 / 32.0
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
class RunningLine:
    """A least-squares line through (x, y), older samples weighing exponentially less.

    It never falls, nor lies below 0 for a positive x: where noise says so, it is flat, or goes through the origin.
    """

    weight: float = 0.0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0

    def add(self, x: float, y: float) -> None:
        for name, sample in (("weight", 1.0), ("x", x), ("y", y), ("xx", x * x), ("xy", x * y)):
            setattr(self, name, getattr(self, name) * KEEP + sample)

    def at(self, x: float | None) -> float | None:
        """The line at ``x``, its mean for ``None``; ``None`` before the first sample."""
        if not self.weight:
            return None
        mean_x, mean_y = self.x / self.weight, self.y / self.weight
        if x is None:
            return max(mean_y, LEAST)
        spread = self.xx / self.weight - mean_x**2
        slope = (self.xy / self.weight - mean_x * mean_y) / spread if spread > 1e-9 * (1.0 + mean_x**2) else 0.0
        slope = min(max(slope, 0.0), mean_y / mean_x)
        return max(mean_y + slope * (x - mean_x), LEAST)
