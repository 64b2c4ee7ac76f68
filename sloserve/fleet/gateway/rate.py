"""A recent rate: how many events per second."""

import math
from dataclasses import dataclass
from typing import Final

MEMORY_S: Final = 30.0
"""Time constant in seconds: a few times as far as the planner looks ahead."""
_LEAST_S: Final = 3.0
"""Least seconds over which the first amounts are averaged."""


@dataclass(slots=True)
class Rate:
    """Recent mean of an amount per second. Times are seconds of one monotonic clock."""

    _per_s: float = 0.0
    _seen_s: float = float("-inf")
    _first_s: float = float("inf")

    def at(self, now_s: float) -> float:
        """Return the amount per second."""
        known = -math.expm1(-max(now_s - self._first_s, _LEAST_S) / MEMORY_S)  # share of the memory that is filled
        return self._faded(now_s) / known

    def add(self, amount: float, now_s: float) -> None:
        """Record that ``amount`` has come."""
        self._per_s, self._seen_s = self._faded(now_s) + amount / MEMORY_S, now_s
        self._first_s = min(self._first_s, now_s)

    def _faded(self, now_s: float) -> float:
        return self._per_s * math.exp(min(self._seen_s - now_s, 0.0) / MEMORY_S)
