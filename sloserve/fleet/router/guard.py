"""Compares a trained policy with greedy while it serves, and says when greedy must take over.

Requests change what later requests find, so that two policies cannot be compared request by request. They decide in
turns: seven parts of the time belong to the trained policy, one part to greedy. Each cycle gives the difference of
their mean quality in time, and a changing load is the same for both in the mean. Requests that arrive while requests of
the other policy still run are not counted. The trained policy has lost once its mean difference is below 0 by more than
a confidence sequence (a normal mixture), which may be looked at after every cycle.

There is no clock here: callers pass times. The state is a few sums.

Source: Waudby-Smith et al., "Time-uniform central limit theory and asymptotic confidence sequences", 2021, for the
interval.
"""

import math
from dataclasses import dataclass, field
from typing import Final

from sloserve.fleet.router.decision import Arm, Trial

TRAINED_PARTS: Final = 7
"""Parts of a cycle in which the trained policy decides, beside one part in which greedy does."""
PART_LIMITS: Final = 8.0
"""Least length of a part, in times that a request may take."""
PART_REQUESTS: Final = 32
"""Least number of requests that arrive in a part."""
FEWEST_CYCLES: Final = 8
MOST_CYCLES: Final = 256
"""Number of cycles after which the comparison begins again, so that a world that changes late is noticed."""
ERROR: Final = 0.01
"""Greatest probability that a policy as good as greedy is given up within ``MOST_CYCLES`` cycles."""
_TIGHTEST_AT: Final = 24
"""Number of cycles for which the interval is made tightest."""
_MEMORY: Final = 16.0
"""Number of requests over which the time that a request may take is averaged."""


def half_width(cycles: int, deviation: float) -> float:
    """Return half the width of the interval of a mean that holds at all numbers of cycles at once.

    Args:
        cycles: Number of differences.
        deviation: Standard deviation of the differences.
    """
    # The optimal choice for one number of cycles (equation 24 of the source), up to a smaller term.
    rho2 = (-2.0 * math.log(ERROR) + math.log(1.0 - 2.0 * math.log(ERROR))) / _TIGHTEST_AT
    scaled = cycles * rho2 + 1.0
    return deviation * math.sqrt(2.0 * scaled / (cycles * cycles * rho2) * math.log(math.sqrt(scaled) / ERROR))


@dataclass(slots=True)
class _Sums:
    """Number of counted requests of one cycle, and the sum of their quality in time, by policy."""

    count: dict[Arm, int] = field(default_factory=lambda: dict.fromkeys(Arm, 0))
    quality: dict[Arm, float] = field(default_factory=lambda: dict.fromkeys(Arm, 0.0))

    def difference(self) -> float | None:
        """Return the trained policy's mean quality minus greedy's, or ``None`` if one of them has no request."""
        if not all(self.count.values()):
            return None
        return self._mean(Arm.TRAINED) - self._mean(Arm.GREEDY)

    def _mean(self, arm: Arm) -> float:
        return self.quality[arm] / self.count[arm]


class PolicyGuard:
    """The comparison of one trained policy with greedy. ``has_lost`` says that greedy decides in its place."""

    def __init__(self) -> None:
        self.has_lost = False
        self.cycles, self.mean = 0, 0.0
        """Number of differences, and their mean."""
        self._squares = 0.0
        self._cycle, self._arm, self._began_s, self._arrived = 0, Arm.TRAINED, 0.0, 0
        self._limit_s: float | None = None
        self._now, self._before = _Sums(), _Sums()

    @property
    def half(self) -> float:
        """Half the width of the interval of ``mean``; infinite while there are too few cycles."""
        if self.cycles < FEWEST_CYCLES:
            return math.inf
        return half_width(self.cycles, math.sqrt(self._squares / (self.cycles - 1)))

    def arrived(self, now_s: float, limit_s: float) -> Trial:
        """Record a request that arrives, and return which policy decides about it.

        Args:
            now_s: Monotonic time in seconds.
            limit_s: Seconds that the request may take.
        """
        if self._limit_s is None:
            self._limit_s, self._began_s = limit_s, now_s
        self._limit_s += (limit_s - self._limit_s) / _MEMORY
        parts, passed_s = TRAINED_PARTS if self._arm is Arm.TRAINED else 1, now_s - self._began_s
        if self._arrived >= parts * PART_REQUESTS and passed_s >= parts * PART_LIMITS * self._limit_s:
            self._next_phase(now_s)
            passed_s = 0.0
        self._arrived += 1
        if self.has_lost:
            return Trial(self._cycle, Arm.GREEDY, counts=False)
        return Trial(self._cycle, self._arm, counts=passed_s >= self._limit_s)

    def ended(self, trial: Trial, quality: float) -> None:
        """Record the quality of the model that served a request, or 0 if the response was late."""
        sums = {self._cycle: self._now, self._cycle - 1: self._before}.get(trial.cycle)
        if trial.counts and sums is not None:
            sums.count[trial.arm] += 1
            sums.quality[trial.arm] += quality

    def _next_phase(self, now_s: float) -> None:
        self._began_s, self._arrived = now_s, 0
        if self._arm is Arm.TRAINED:
            self._arm = Arm.GREEDY
            self._compare(self._before.difference())  # its last requests ended during the trained policy's phase
            return
        self._arm, self._cycle = Arm.TRAINED, self._cycle + 1
        self._before, self._now = self._now, _Sums()

    def _compare(self, difference: float | None) -> None:
        if difference is None or self.has_lost:
            return
        if self.cycles >= MOST_CYCLES:
            self.cycles, self.mean, self._squares = 0, 0.0, 0.0
        self.cycles += 1
        off = difference - self.mean
        self.mean += off / self.cycles
        self._squares += off * (difference - self.mean)
        self.has_lost = self.mean + self.half < 0.0
