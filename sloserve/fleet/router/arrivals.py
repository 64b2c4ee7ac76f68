"""Arrivals of requests in the systems of an environment: at a fixed rate, or at one that changes at random.

Source: Quality-of-Service Aware LLM Serving, Sec. 5.1: stable, and two unpredictable processes. The paper gives neither
rates nor durations of the latter: rates are drawn evenly by their logarithm, and hold for a number of requests drawn
evenly (``counted``) or for a time drawn exponentially (``timed``).
"""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sloserve.core.arrays import BoolArray, FloatArray, IntArray


class Arrivals(Protocol):
    """Poisson arrivals in n systems.

    Args:
        rate_per_s: Present rate of each system in requests per second, ``[n]``.
        entered: Whether the rate of each system is new, ``[n]``.
    """

    rate_per_s: FloatArray
    entered: BoolArray

    def gaps_s(self, systems: IntArray, now_s: FloatArray) -> FloatArray:
        """Return the seconds until the next arrival in each of ``systems``, infinite where none comes.

        The present times of all systems are ``now_s``, ``[n]``.
        """
        ...


class Stable:
    """Rates that stay, ``[n]``, until ``until_s`` of each system."""

    def __init__(self, rate_per_s: FloatArray, until_s: float, rng: np.random.Generator) -> None:
        self.rate_per_s = rate_per_s
        self.entered = np.zeros(rate_per_s.shape, np.bool_)
        self._until_s, self._rng = until_s, rng

    def gaps_s(self, systems: IntArray, now_s: FloatArray) -> FloatArray:
        gaps = self._rng.exponential(1.0 / self.rate_per_s[systems])
        return np.where(now_s[systems] + gaps <= self._until_s, gaps, np.inf)


@dataclass(frozen=True, slots=True)
class Phases:
    """Phases of changing rates.

    Args:
        rates: Least and greatest rate, in requests per second.
        requests: Least and greatest number of requests at one rate.
        mean_s: Mean time at one rate, in seconds.
        timed: Share of the systems in which phases last a time, not a number of requests.
    """

    rates: tuple[float, float] = (0.25, 64.0)
    requests: tuple[int, int] = (20, 200)
    mean_s: float = 8.0
    timed: float = 0.5

    @classmethod
    def between(cls, rates: tuple[float, float], limit_s: float) -> "Phases":
        """Return rates that hold for one to ten times what a request may take, ``limit_s`` seconds.

        A phase lasts as many requests as come then at the middle rate, or a time that is 1.5 times the limit in the
        mean.
        """
        held = limit_s * math.sqrt(rates[0] * rates[1])
        return cls(rates, (max(round(held), 1), max(round(10.0 * held), 2)), 1.5 * limit_s)


class Changing:
    """Rates that change, in ``systems`` systems; ``until_s`` as in :class:`Stable`."""

    def __init__(self, phases: Phases, systems: int, rng: np.random.Generator, until_s: float = np.inf) -> None:
        self._phases, self._rng, self._until_s = phases, rng, until_s
        self.rate_per_s = np.ones(systems)
        self.entered = np.zeros(systems, np.bool_)
        self._timed = np.arange(systems) < round(phases.timed * systems)
        self._left = np.zeros(systems, np.int64)
        self._ends_s = np.zeros(systems)
        self._enter(np.arange(systems), np.zeros(systems))

    def gaps_s(self, systems: IntArray, now_s: FloatArray) -> FloatArray:
        self.entered[systems] = False
        self._left[systems] -= 1
        over = systems[~self._timed[systems] & (self._left[systems] < 0)]
        self._enter(over, now_s[over])
        gaps = self._rng.exponential(1.0 / self.rate_per_s[systems])
        while True:  # a rate that ends before its next arrival is followed by another
            cut = np.flatnonzero(self._timed[systems] & (now_s[systems] + gaps > self._ends_s[systems]))
            if not cut.size:
                break
            of = systems[cut]
            passed_s = self._ends_s[of] - now_s[of]
            self._enter(of, self._ends_s[of])
            gaps[cut] = passed_s + self._rng.exponential(1.0 / self.rate_per_s[of])
        return np.where(now_s[systems] + gaps <= self._until_s, gaps, np.inf)

    def _enter(self, systems: IntArray, now_s: FloatArray) -> None:
        low, high = np.log(self._phases.rates)
        self.rate_per_s[systems] = np.exp(self._rng.uniform(low, high, systems.size))
        self._left[systems] = self._rng.integers(*self._phases.requests, systems.size)
        self._ends_s[systems] = now_s + self._rng.exponential(self._phases.mean_s, systems.size)
        self.entered[systems] = True
