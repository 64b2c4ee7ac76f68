"""What each instance of a fleet did at which time, in seconds from the start of a run."""

from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    """What an instance is at."""

    SERVING = "serving"
    DRAINING = "draining"
    """It takes no requests; its streams end."""
    SWAPPING = "swapping"
    """One model's weights leave, and another's come."""


@dataclass(frozen=True, slots=True)
class Span:
    """An instance was in one phase with one model. warm: of a swap, whether the weights came from host memory."""

    instance: str
    phase: Phase
    model: str | None
    start_s: float
    end_s: float
    warm: bool = False
