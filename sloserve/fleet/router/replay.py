"""Memory of transitions with a reward that comes later than the next state.

It is bounded: the oldest transitions of each system go first.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sloserve.core.arrays import BoolArray, FloatArray, IntArray

_FEWEST = 20
"""Fewest requests of each system before the training begins to learn."""


@dataclass(frozen=True, slots=True, eq=False)
class Transitions:
    """Transitions, with columns ``[n]`` or ``[n, ...]``.

    Args:
        gap_s: Seconds between the two arrivals.
    """

    states: NDArray[np.float32]
    models: IntArray
    rewards: NDArray[np.float32]
    next_states: NDArray[np.float32]
    next_allowed: BoolArray
    gap_s: FloatArray


class ReplayMemory:
    """Memory of ``length`` requests of each of ``systems``. A ticket names the system and counts its requests."""

    def __init__(self, systems: int, length: int, inputs: int, models: int) -> None:
        self._length = length
        self._states = np.zeros((systems, length, inputs), np.float32)
        self._models = np.zeros((systems, length), np.int64)
        self._allowed = np.zeros((systems, length, models), np.bool_)
        self._rewards = np.full((systems, length), np.nan, np.float32)
        self._arrival_s = np.zeros((systems, length))
        self._added = np.zeros(systems, np.int64)

    def add(
        self,
        systems: IntArray,
        states: NDArray[np.float32],
        models: IntArray,
        allowed: BoolArray,
        arrival_s: FloatArray,
    ) -> IntArray:
        """Add one request of each of ``systems``, and return their tickets."""
        added = self._added[systems]
        at = added % self._length
        self._states[systems, at] = states
        self._models[systems, at] = models
        self._allowed[systems, at] = allowed
        self._rewards[systems, at] = np.nan
        self._arrival_s[systems, at] = arrival_s
        self._added[systems] += 1
        return added * self._added.size + systems

    def fill(self, tickets: IntArray, rewards: FloatArray) -> None:
        """Record the rewards of requests that ended; forgotten requests are left out."""
        added, systems = np.divmod(tickets, self._added.size)
        known = self._added[systems] - added <= self._length
        self._rewards[systems[known], added[known] % self._length] = rewards[known]

    def sample(self, size: int, rng: np.random.Generator) -> Transitions | None:
        """Draw ``size`` transitions with known rewards, evenly from all; return ``None`` while there are too few."""
        if self._added.min() < _FEWEST:
            return None
        systems = rng.integers(self._added.size, size=4 * size)
        newest = self._added[systems] - 1  # which has no next state yet
        oldest = np.maximum(self._added[systems] - self._length, 0)
        added = rng.integers(oldest, newest)
        known = np.flatnonzero(~np.isnan(self._rewards[systems, added % self._length]))[:size]
        if known.size < size:
            return None
        of, at, after = systems[known], added[known] % self._length, (added[known] + 1) % self._length
        return Transitions(
            self._states[of, at],
            self._models[of, at],
            self._rewards[of, at],
            self._states[of, after],
            self._allowed[of, after],
            self._arrival_s[of, after] - self._arrival_s[of, at],
        )
