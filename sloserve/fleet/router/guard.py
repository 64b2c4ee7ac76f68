"""Compares a trained policy with greedy while it serves, and says when greedy must take over.

Requests change what later requests find, so that two policies cannot be compared request by request. They decide in
turns: seven parts of the time belong to the trained policy, one part to greedy. Each cycle gives the difference of
their mean quality in time, and a changing load is the same for both in the mean. Requests that arrive while requests of
the other policy still run are not counted. The trained policy has lost once its mean difference is below 0 by more than
a confidence sequence (a normal mixture), which may be looked at after every cycle.

The confidence sequence is asymptotic, and failures may be rare: greedy has fewer requests, so that it often has no
failure in the first cycles, in which the differences then look sure and negative. The deviation of the differences is
therefore never taken to be less than the variance of the single requests of both policies explains.

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
"""Approximate greatest probability that a policy as good as greedy is given up within ``MOST_CYCLES`` cycles."""
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
    """Number of counted requests, and the sums of their quality in time and of its square, by policy."""

    count: dict[Arm, int] = field(default_factory=lambda: dict.fromkeys(Arm, 0))
    quality: dict[Arm, float] = field(default_factory=lambda: dict.fromkeys(Arm, 0.0))
    square: dict[Arm, float] = field(default_factory=lambda: dict.fromkeys(Arm, 0.0))

    def add(self, arm: Arm, quality: float) -> None:
        """Add one request."""
        self.count[arm] += 1
        self.quality[arm] += quality
        self.square[arm] += quality * quality

    def add_all(self, other: "_Sums") -> None:
        """Add the requests of ``other``."""
        for arm in Arm:
            self.count[arm] += other.count[arm]
            self.quality[arm] += other.quality[arm]
            self.square[arm] += other.square[arm]

    def difference(self) -> float | None:
        """Return the trained policy's mean quality minus greedy's, or ``None`` if one of them has no request."""
        if not all(self.count.values()):
            return None
        return self._mean(Arm.TRAINED) - self._mean(Arm.GREEDY)

    def request_variance(self, cycles: int) -> float:
        """Return the variance of a cycle's difference that single requests explain.

        One failure more or less is always possible, so that a request's variance is at least one in their number.

        Args:
            cycles: Number of cycles that were added; each has requests of both policies.
        """
        number = sum(self.count.values())
        within = sum(self.square[arm] - self.quality[arm] * self._mean(arm) for arm in Arm)
        return max(within, 1.0) / number * sum(cycles / self.count[arm] for arm in Arm)

    def _mean(self, arm: Arm) -> float:
        return self.quality[arm] / self.count[arm]


class PolicyGuard:
    """The comparison of one trained policy with greedy. ``has_lost`` says that greedy decides in its place."""

    def __init__(self) -> None:
        self.has_lost = False
        self.cycles, self.mean = 0, 0.0
        """Number of differences, and their mean."""
        self._squares = 0.0
        self._compared = _Sums()
        self._cycle, self._arm, self._began_s, self._arrived = 0, Arm.TRAINED, 0.0, 0
        self._limit_s: float | None = None
        self._now, self._before = _Sums(), _Sums()

    @property
    def half(self) -> float:
        """Half the width of the interval of ``mean``; infinite while there are too few cycles."""
        if self.cycles < FEWEST_CYCLES:
            return math.inf
        variance = max(self._squares / (self.cycles - 1), self._compared.request_variance(self.cycles))
        return half_width(self.cycles, math.sqrt(variance))

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
            sums.add(trial.arm, quality)

    def _next_phase(self, now_s: float) -> None:
        self._began_s, self._arrived = now_s, 0
        if self._arm is Arm.TRAINED:
            self._arm = Arm.GREEDY
            self._compare(self._before)  # its last requests ended during the trained policy's phase
            return
        self._arm, self._cycle = Arm.TRAINED, self._cycle + 1
        self._before, self._now = self._now, _Sums()

    def _compare(self, sums: _Sums) -> None:
        difference = sums.difference()
        if difference is None or self.has_lost:
            return
        if self.cycles >= MOST_CYCLES:
            self.cycles, self.mean, self._squares = 0, 0.0, 0.0
            self._compared = _Sums()
        self.cycles += 1
        self._compared.add_all(sums)
        off = difference - self.mean
        self.mean += off / self.cycles
        self._squares += off * (difference - self.mean)
        self.has_lost = self.mean + self.half < 0.0
