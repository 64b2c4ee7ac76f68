"""Arrivals of requests: Poisson, Gamma and burst processes, and traces generated from them.

A process is drawn at unit rate and scaled by one constant, so the same seed gives the same pattern at every rate: load
is the only thing that changes along a load axis.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sloserve.core.arrays import FloatArray
from sloserve.sim.workloads.length_models import TokenLengths
from sloserve.sim.workloads.seeding import stream
from sloserve.sim.workloads.trace import Trace, make_trace


class ArrivalProcess(Protocol):
    """A process of arrival times with a mean rate of one request a second."""

    def draw(self, n: int, rng: np.random.Generator) -> FloatArray:
        """Return ascending arrivals in seconds since the start of the process, ``[n]``."""
        ...


@dataclass(frozen=True, slots=True)
class Poisson:
    """Independent arrivals: exponential gaps, CV 1."""

    def draw(self, n: int, rng: np.random.Generator) -> FloatArray:
        return np.cumsum(rng.standard_exponential(n))


@dataclass(frozen=True, slots=True)
class Gamma:
    """Gamma gaps of coefficient of variation ``cv``: above 1 is burstier than Poisson, below 1 more regular.

    Raises: ValueError unless ``cv`` is a positive number.
    """

    cv: float

    def __post_init__(self) -> None:
        if not (np.isfinite(self.cv) and self.cv > 0.0):
            raise ValueError(f"cv: {self.cv!r} is not a positive number")

    def draw(self, n: int, rng: np.random.Generator) -> FloatArray:
        shape = self.cv**-2
        return np.asarray(np.cumsum(rng.standard_gamma(shape, n)) / shape, np.float64)


@dataclass(frozen=True, slots=True)
class Bursts:
    """Requests that come ``size`` at once: burst k at (k + phase) * size seconds, so one request a second on average.

    Args:
        size: Number of requests in a burst.
        phase: Position of a burst within its period, 0..1.

    Raises: ValueError unless ``size`` is at least 1 and ``phase`` within 0..1.
    """

    size: int
    phase: float = 0.5

    def __post_init__(self) -> None:
        if self.size < 1 or not 0.0 <= self.phase <= 1.0:
            raise ValueError(f"bursts of {self.size} at phase {self.phase}: size is at least 1, phase within 0..1")

    def draw(self, n: int, rng: np.random.Generator) -> FloatArray:
        return np.asarray((np.arange(n) // self.size + self.phase) * float(self.size), np.float64)


@dataclass(frozen=True, slots=True)
class OnOff:
    """A Poisson base that carries ``1 - burst_share`` of the requests, and bursts of ``burst_size`` with the rest.

    Raises: ValueError unless ``burst_share`` lies strictly between 0 and 1 and ``burst_size`` is at least 1.
    """

    burst_size: int
    burst_share: float

    def __post_init__(self) -> None:
        Bursts(self.burst_size)
        if not 0.0 < self.burst_share < 1.0:
            raise ValueError(f"burst_share: {self.burst_share!r} is not between 0 and 1")

    def draw(self, n: int, rng: np.random.Generator) -> FloatArray:
        base_s = Poisson().draw(n, rng) / (1.0 - self.burst_share)
        burst_s = Bursts(self.burst_size).draw(n, rng) / self.burst_share
        return np.sort(np.concatenate([base_s, burst_s]))[:n]


def generate(
    name: str, arrivals: ArrivalProcess, lengths: TokenLengths, n: int, seed: int, rate_per_s: float, task: str = ""
) -> Trace:
    """Return ``n`` requests with arrivals at ``rate_per_s`` and lengths drawn from two streams of ``seed``.

    Raises: ConfigError if ``n`` is below 1 or the rate is not a positive number.
    """
    arrival_s = arrivals.draw(max(n, 0), stream(seed, f"{name}/arrivals"))
    prompt_tokens, output_tokens = lengths.draw(max(n, 0), stream(seed, f"{name}/lengths"))
    trace = make_trace(name, f"generator {name}", arrival_s, prompt_tokens, output_tokens, [task] * n)
    return trace.faster(rate_per_s)
