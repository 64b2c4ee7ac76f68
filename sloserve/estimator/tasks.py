"""Estimate of how many calls a task still makes, how long its tools run, and when it ends, from tasks that ended.

A task is a sequence of calls with tools between them, such as an agent makes. After each of its calls it either ends or
makes another one. The share of tasks that end after their k-th call is the hazard at k, and hazards give the chance of
each number of calls still to come, as in the estimator of Kaplan and Meier: a task of which neither is known yet counts
for the calls before. Hazards are kept by ranges of k that grow with k. A range with little evidence is drawn towards
the hazard of all ranges by one observation's weight.

The times of calls and tools are kept by the same ranges, since the prompts of a task grow. Tool times are kept by their
length as well, which gives the chance that the next call comes soon although it has not come yet.

Nothing is said before :data:`LEAST_TASKS` tasks have ended. Older evidence counts half after each :data:`EVIDENCE`
tasks that ended, so that estimates follow the traffic. The module is deterministic and reads no clock; memory is
constant.
"""

from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Final, NamedTuple

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray

LEAST_TASKS: Final = 8
"""Tasks that must have ended before anything is said; fewer have no 0.9-quantile."""
EVIDENCE: Final = 256
"""Tasks that ended after which all evidence counts half."""
MOST_AHEAD: Final = 1024
"""Most calls still to come that are distinguished."""
RANGES: Final[IntArray] = np.unique(np.round(1.25 ** np.arange(31)).astype(np.int64))
"""Numbers of calls so far at which a range begins: 1 to 6 one by one, then steps of a quarter; the last has no end."""
AGES_S: Final[FloatArray] = np.append(0.0, 0.0625 * 2.0 ** (0.5 * np.arange(32)))
"""Tool times at which a range begins, in seconds, up to 45 minutes; the last range has no end."""

_STRATA: Final = 16
_LEVELS: Final[FloatArray] = (np.arange(_STRATA) + 0.5) / _STRATA
_NORMAL: Final[FloatArray] = np.array([NormalDist().inv_cdf(level) for level in _LEVELS.tolist()])


class Estimate(NamedTuple):
    """An amount that is not known yet.

    Args:
        expected: The mean.
        quantiles: The amount that is not exceeded with the probability of each level.
    """

    expected: float
    quantiles: Mapping[float, float]


class TaskHabits:
    """The habits of tasks of one kind, for example of one tenant and class."""

    def __init__(self) -> None:
        self._ended: FloatArray = np.zeros(RANGES.size)
        self._continued: FloatArray = np.zeros(RANGES.size)
        self._call, self._tool = _Times(), _Times()
        self._tool_ages: FloatArray = np.zeros(AGES_S.size)
        self._tasks = 0.0

    @property
    def is_known(self) -> bool:
        """Whether enough tasks have ended to say anything."""
        return self._tasks >= LEAST_TASKS

    def call_ended(self, calls_so_far: int, call_s: float) -> None:
        """Note that a call of a task has ended.

        Args:
            calls_so_far: Number of calls of the task, this one counted.
            call_s: Seconds from the call's arrival to its end.
        """
        self._call.add(_range_of(calls_so_far), call_s)

    def next_call(self, after_calls: int, tool_s: float) -> None:
        """Note that a task makes another call.

        Args:
            after_calls: Number of its calls that have ended.
            tool_s: Seconds from the end of the last of them to the new call.
        """
        tool_s, place = max(tool_s, 0.0), _range_of(after_calls)
        self._continued[place] += 1.0
        self._tool.add(place, tool_s)
        self._tool_ages[int(AGES_S.searchsorted(tool_s, side="right")) - 1] += 1.0

    def task_ended(self, calls: int) -> None:
        """Note that a task has ended after ``calls`` calls, at least 1."""
        self._ended[_range_of(calls)] += 1.0
        self._tasks += 1.0
        if self._tasks > EVIDENCE:
            for evidence in (self._ended, self._continued, self._tool_ages, *self._call.parts, *self._tool.parts):
                evidence *= 0.5
            self._tasks *= 0.5

    def calls_to_come(self, calls_so_far: int, levels: Sequence[float] = ()) -> Estimate | None:
        """Return how many further calls a task makes; ``None`` while nothing is known.

        Args:
            calls_so_far: Number of its calls up to now, running ones counted; 0 for a task that is about to begin.
            levels: Levels of the quantiles, each within 0..1, ends excluded.
        """
        if not self.is_known:
            return None
        at_most = self._at_most(calls_so_far)
        return Estimate(
            float((1.0 - at_most).sum()), {level: float(at_most.searchsorted(level, side="left")) for level in levels}
        )

    def chance_of_end(self, calls_so_far: int) -> float | None:
        """Return the chance that a task ends after ``calls_so_far`` calls; ``None`` while nothing is known."""
        return float(self._at_most(calls_so_far)[0]) if self.is_known else None

    def tool_s(self, after_calls: int, levels: Sequence[float] = ()) -> Estimate | None:
        """Return the seconds until the next call of a task that makes another one; ``None`` while nothing is known.

        Args:
            after_calls: Number of its calls that have ended, at least 1.
            levels: Levels of the quantiles, each within 0..1, ends excluded.
        """
        if not (self.is_known and self._tool.known):
            return None
        mean, _ = self._tool.moments(np.array([max(after_calls, 1)]))
        return Estimate(float(mean[0]), {level: self._tool_quantile(level) for level in levels})

    def chance_of_call(self, after_calls: int, waited_s: float, within_s: float) -> float | None:
        """Return the chance that the next call comes soon; ``None`` while nothing is known.

        Args:
            after_calls: Number of calls that have ended.
            waited_s: Seconds since the last of them ended, in which no other call came.
            within_s: Seconds from now in which the call would have to come.
        """
        ends = self.chance_of_end(after_calls)
        if ends is None:
            return None
        waited, later = (self._tool_share(waited_s), self._tool_share(waited_s + max(within_s, 0.0)))
        possible = ends + (1.0 - ends) * (1.0 - waited)
        return (1.0 - ends) * (later - waited) / possible if possible > 0.0 else 0.0

    def rest_s(self, calls_so_far: int, levels: Sequence[float] = (), *, calling: bool = False) -> Estimate | None:
        """Return the seconds until a task ends; ``None`` while nothing is known.

        The times of its calls and tools are taken as independent of each other and of their number. Quantiles that
        a user sees should be corrected by how earlier ones came out, see :mod:`sloserve.estimator.conformal`.

        Args:
            calls_so_far: Number of its calls that have ended.
            levels: Levels of the quantiles, each within 0..1, ends excluded.
            calling: Whether a call begins now; otherwise the last call has just ended, and a tool may run.
        """
        if not (self.is_known and self._call.known):
            return None
        first = calls_so_far + calling
        at_most = self._at_most(first)
        numbers = np.arange(first, first + MOST_AHEAD)
        tool_mean, tool_variance = self._tool.moments(np.maximum(numbers, 1))
        call_mean, call_variance = self._call.moments(numbers + 1)
        means = np.append(0.0, (tool_mean + call_mean).cumsum())
        variances = np.append(0.0, (tool_variance + call_variance).cumsum())
        if calling:
            now_mean, now_variance = self._call.moments(np.array([first]))
            means, variances = means + now_mean, variances + now_variance
        # A stratum of each probability mass, of the numbers of calls and of the time that such a number takes.
        ahead = np.minimum(at_most.searchsorted(_LEVELS, side="left"), MOST_AHEAD - 1)
        samples = np.sort(_lognormal(means[ahead], variances[ahead]), axis=None)
        chances = np.append(np.diff(np.append(0.0, at_most)), 1.0 - at_most[-1])
        return Estimate(
            float(chances @ means),
            {level: float(np.interp(level * samples.size - 0.5, np.arange(samples.size), samples)) for level in levels},
        )

    def _at_most(self, calls_so_far: int) -> FloatArray:
        """Return the chances that no more than 0, 1, ... calls are still to come, ``[MOST_AHEAD]``."""
        known = self._ended + self._continued
        overall = self._ended.sum() / known.sum()
        hazards = (self._ended + overall) / (known + 1.0)
        numbers = np.arange(calls_so_far, calls_so_far + MOST_AHEAD)
        found = hazards[np.maximum(RANGES.searchsorted(numbers, side="right") - 1, 0)]
        if calls_so_far == 0:
            found[0] = 0.0  # a task has a call
        at_most: FloatArray = 1.0 - np.cumprod(1.0 - found)
        return at_most

    def _tool_share(self, seconds: float) -> float:
        """Return the share of tool times that are at most ``seconds``, interpolated within their range."""
        total = self._tool_ages.sum()
        if total == 0.0:
            return 0.0
        shares = np.append(0.0, self._tool_ages.cumsum() / total)
        return float(np.interp(seconds, np.append(AGES_S, 2.0 * AGES_S[-1]), shares))

    def _tool_quantile(self, level: float) -> float:
        shares = np.append(0.0, self._tool_ages.cumsum() / self._tool_ages.sum())
        place = int(np.flatnonzero(shares >= level - 1e-12)[0])
        if place == 0:
            return 0.0
        edges = np.append(AGES_S, 2.0 * AGES_S[-1])
        return float(np.interp(level, shares[place - 1 : place + 1], edges[place - 1 : place + 1]))


class _Times:
    """Seconds that something took, by ranges of the number of calls so far."""

    def __init__(self) -> None:
        self._count, self._sum, self._squares = (np.zeros(RANGES.size) for _ in range(3))

    @property
    def parts(self) -> tuple[FloatArray, ...]:
        return self._count, self._sum, self._squares

    @property
    def known(self) -> bool:
        return bool(self._count.any())

    def add(self, place: int, seconds: float) -> None:
        self._count[place] += 1.0
        self._sum[place] += seconds
        self._squares[place] += seconds * seconds

    def moments(self, calls: IntArray) -> tuple[FloatArray, FloatArray]:
        """Return the mean and the variance of the times at numbers of calls; zeros if none was seen."""
        total = self._count.sum()
        if total == 0.0:
            return np.zeros(calls.size), np.zeros(calls.size)
        means = (self._sum + self._sum.sum() / total) / (self._count + 1.0)
        squares = (self._squares + self._squares.sum() / total) / (self._count + 1.0)
        places = np.maximum(RANGES.searchsorted(calls, side="right") - 1, 0)
        return means[places], np.maximum(squares - means**2, 0.0)[places]


def _range_of(calls: int) -> int:
    return max(int(RANGES.searchsorted(calls, side="right")) - 1, 0)


def _lognormal(means: FloatArray, variances: FloatArray) -> FloatArray:
    """Return samples of sums of times with these moments, ``[means, strata]``: sums of skewed times are skewed."""
    safe = np.maximum(means, 1e-12)
    log_variance = np.log1p(variances / safe**2)
    scale = np.sqrt(log_variance)[:, np.newaxis]
    found: FloatArray = safe[:, np.newaxis] * np.exp(scale * _NORMAL - 0.5 * log_variance[:, np.newaxis])
    return found
