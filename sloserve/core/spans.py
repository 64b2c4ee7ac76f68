"""The phases of each instance of a fleet over time, in seconds from the start of a run."""

from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    """Phase of an instance, live and simulated. Reports and ``/state`` show these words."""

    EMPTY = "empty"
    """No model is active."""
    SERVING = "serving"
    """The active model of the instance takes requests."""
    DRAINING = "draining"
    """Another model is to come: the streams of the present one end, and it takes no requests."""
    SWITCHING = "swapping"
    """The weights of one model leave and another's come; the instance takes no requests."""
    FAILED = "failed"
    """The engine died or failed its check, and another is being started."""


@dataclass(frozen=True, slots=True)
class PhaseSpan:
    """A span of time in which an instance was in one phase with one model.

    Args:
        warm: Whether, in a swap of models, the weights came from host memory.
    """

    instance: str
    phase: Phase
    model: str | None
    start_s: float
    end_s: float
    warm: bool = False
