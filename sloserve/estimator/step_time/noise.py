"""Noise of step times: real steps scatter around their profile, and now and then one stalls.

Without it, whatever fits step times on line is fitted to the very form that made them.
"""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from sloserve.core.errors import ConfigError

STALL_CHANCE = 0.001
STALL_FACTOR = 5.0
_BLOCK = 1024
_STREAM = 7
"""Number that separates this stream of chance from others under the same seed."""


class StepFactors(Protocol):
    """Factors on the step times of an engine in virtual time."""

    def factor(self, step: int, now_s: float) -> float:
        """Return the factor of a step.

        Args:
            step: Number of the step, counted from 0.
            now_s: When it is scheduled, in seconds from the start of the run.
        """
        ...


@dataclass(slots=True)
class StepNoise:
    """Factors on step times, which depend on a step's number alone, whatever runs in it.

    One step in a thousand takes five times as long, unless ``scatter`` is 0.

    Args:
        seed: Seed of the factors, at least 0.
        scatter: Coefficient of variation of the lognormal factors, which have a mean of 1; at 0 nothing scatters and
            nothing stalls.

    Raises: ConfigError for a scatter outside 0..1.
    """

    seed: int
    scatter: float
    _factors: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not 0.0 <= self.scatter <= 1.0:
            raise ConfigError(f"--step-noise: {self.scatter} is not within 0..1")

    def factor(self, step: int, now_s: float = 0.0) -> float:
        """Return the factor of the ``step``-th step, counted from 0; the time does not matter."""
        if not self.scatter:
            return 1.0
        while step >= len(self._factors):
            self._factors += self._block(len(self._factors) // _BLOCK)
        return self._factors[step]

    def _block(self, index: int) -> list[float]:
        rng = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(_STREAM, index)))
        sigma = np.sqrt(np.log1p(self.scatter**2))
        factors = np.exp(sigma * rng.standard_normal(_BLOCK) - 0.5 * sigma**2)
        stalls = np.where(rng.random(_BLOCK) < STALL_CHANCE, STALL_FACTOR, 1.0)
        return [float(factor) for factor in factors * stalls]
