"""Rates at which waiting requests start, for predictions and for promises of a place."""

import math
from dataclasses import dataclass

MEMORY_S = 30.0
"""Time constant of the observed rate, in seconds during which a request waited: as far back as it predicts ahead."""

FAR, ENOUGH_STARTS = 4.0, 8.0
"""A gap between two starts counts at most as ``FAR`` times the others, once as many as ``ENOUGH_STARTS`` were seen."""

MEMORY_STARTS = 16.0
"""Number of the latest starts, about, that make up the rate for promises.

An engine that was idle takes many requests at once, and an engine on a busy machine slows down; neither should count
for longer than it takes to see. (Predictions go by a steadier rate, since what they leave out is learnt from their
outcomes.)
"""


@dataclass(slots=True)
class DrainRate:
    """Requests started per second of time during which a request waited.

    Older time weighs exponentially less, and so do older starts, of which about ``memory_starts`` count. Idle time does
    not count: a queue that is empty because no request came says nothing about how fast it would drain.
    """

    memory_starts: float
    starts: float = 0.0
    waited_s: float = 0.0
    stalled_s: float = 0.0

    def pass_time(self, elapsed_s: float) -> None:
        self.stalled_s += elapsed_s
        keep = math.exp(-elapsed_s / MEMORY_S)
        self.starts *= keep
        self.waited_s = self.waited_s * keep + MEMORY_S * (1.0 - keep)

    def start(self) -> None:
        keep = 1.0 - 1.0 / self.memory_starts
        self.starts, self.waited_s, self.stalled_s = self.starts * keep + 1.0, self.waited_s * keep, 0.0

    @property
    def interval_s(self) -> float | None:
        """Expected seconds from one start to the next; ``None`` where none was observed."""
        return self.waited_s / self.starts if self.starts > 0.0 and self.waited_s > 0.0 else None

    @property
    def interval_now_s(self) -> float | None:
        """``interval_s``, but not much less than the time since the last start.

        Where starts come by chance, one in twenty takes three times as long as the mean.
        """
        interval_s = self.interval_s
        return None if interval_s is None else max(interval_s, self.stalled_s / 3.0)


@dataclass(slots=True)
class SteadyRate:
    """The rate by which latencies are predicted: as :class:`DrainRate`, but one long gap does not move it.

    A gap is the time from one start to the next during which a request waits. Once enough starts were seen, a gap
    counts at most ``FAR`` times the gap within which a moment of waiting falls on average (sum of squares over sum; of
    requests that start together all but one gap are 0, which leaves that average alone). An engine that has become
    slower is believed within a few starts, since each raises the average; and at once while the gap lasts.
    """

    starts: float = 0.0
    waited_s: float = 0.0
    squares: float = 0.0
    stalled_s: float = 0.0

    def pass_time(self, elapsed_s: float) -> None:
        self.stalled_s += elapsed_s

    def scale(self, factor: float) -> None:
        """Multiply the expected seconds from one start to the next by ``factor``."""
        self.waited_s *= factor
        self.squares *= factor * factor

    def start(self) -> None:
        gap_s = self.stalled_s
        if self.starts >= ENOUGH_STARTS and self.waited_s > 0.0:
            gap_s = min(gap_s, FAR * self.squares / self.waited_s)
        keep = math.exp(-gap_s / MEMORY_S)
        self.starts = self.starts * keep + 1.0
        self.waited_s = self.waited_s * keep + MEMORY_S * (1.0 - keep)
        self.squares = self.squares * keep + gap_s * gap_s
        self.stalled_s = 0.0

    @property
    def interval_s(self) -> float | None:
        """Expected seconds from one start to the next, not much less than the time since the last start.

        The value is ``None`` if no start was observed.
        """
        if not self.waited_s:
            return None
        return max(self.waited_s / self.starts, self.stalled_s / 3.0)
