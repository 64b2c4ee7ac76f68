"""The method by which an instance switches to a model: the valid one with the least expected time, chosen purely."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sloserve.scheduler.virtual_queues.model_swap import DISK_BYTES_PER_S


class SwitchMethod(StrEnum):
    """Ways in which a model becomes active."""

    ADAPTER = "adapter"
    """The base is active: the engine loads an adapter, and nothing leaves."""
    IN_PLACE = "in-place"
    """The active model's engine reads other weights, of a model that is built alike."""
    WAKE = "wake"
    """The model's engine sleeps with its weights in host memory."""
    RELOAD = "reload"
    """The model's engine sleeps without weights, and reads them again."""
    FORKED = "forked"
    """An engine is forked from a process that has vLLM imported."""
    COLD = "cold"
    """An engine is started from nothing."""

    @property
    def starts(self) -> bool:
        """Whether an engine is started."""
        return self in (SwitchMethod.FORKED, SwitchMethod.COLD)

    @property
    def stays(self) -> bool:
        """Whether the active engine continues, with another model."""
        return self in (SwitchMethod.ADAPTER, SwitchMethod.IN_PLACE)


_ADDED_S: Final = {
    SwitchMethod.ADAPTER: 0.2,
    SwitchMethod.IN_PLACE: 1.0,
    SwitchMethod.WAKE: 0.5,
    SwitchMethod.RELOAD: 1.5,
    SwitchMethod.FORKED: 10.0,
}
"""Seconds assumed beside the bytes, in the order in which the methods are tried, until they are measured."""
_COLD_S: Final = 40.0
_LINK_BYTES_PER_S: Final = 20e9


@dataclass(frozen=True, slots=True)
class Situation:
    """Situation of an instance before a switch.

    Args:
        base_is_active: Whether the coming model is what the active engine holds, or an adapter of it.
        is_alike: Whether the active model can be replaced in place.
        sleeps_at: Level of the coming model's sleeping engine; ``None`` for none.
        can_fork: Whether a launcher has vLLM imported.
        weights_bytes: Bytes of the coming model's weights.
    """

    base_is_active: bool = False
    is_alike: bool = False
    sleeps_at: int | None = None
    can_fork: bool = True
    weights_bytes: int = 0


def valid(at: Situation) -> list[SwitchMethod]:
    """Return the methods that lead there, at least one."""
    if at.base_is_active:
        return [SwitchMethod.ADAPTER]
    found = [SwitchMethod.IN_PLACE] if at.is_alike else []
    if at.sleeps_at is not None:
        found.append(SwitchMethod.WAKE if at.sleeps_at == 1 else SwitchMethod.RELOAD)
    return found or [SwitchMethod.FORKED if at.can_fork else SwitchMethod.COLD]


def expected_s(method: SwitchMethod, at: Situation, measured_s: float | None, leaves_s: float) -> float:
    """Return the expected seconds of a switch.

    Args:
        method: Method of the switch.
        at: Situation of the instance.
        measured_s: Seconds that it took before; ``None`` if it was never measured.
        leaves_s: Seconds that the active model takes to leave.
    """
    leaving = 0.0 if method.stays else leaves_s
    if measured_s is not None:
        return leaving + measured_s
    rate = _LINK_BYTES_PER_S if method is SwitchMethod.WAKE else DISK_BYTES_PER_S
    return leaving + _ADDED_S.get(method, _COLD_S) + at.weights_bytes / rate


def choose(
    at: Situation, measured_s: Callable[[SwitchMethod], float | None], leaves_s: float
) -> tuple[SwitchMethod, float]:
    """Return the method with the least expected time, and the seconds that it is expected to take."""
    costs = {method: expected_s(method, at, measured_s(method), leaves_s) for method in valid(at)}
    best = min(costs, key=lambda method: costs[method])
    return best, costs[best]
