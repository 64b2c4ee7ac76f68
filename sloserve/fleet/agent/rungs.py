"""The rung by which a model is activated: of the valid ones, the one with the least expected time. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sloserve.virtual_queues.model_swap import DISK_BYTES_PER_S


class Rung(StrEnum):
    """How a model becomes active."""

    ADAPTER = "adapter"
    """Its base is active: the engine loads an adapter, and nothing leaves."""
    IN_PLACE = "in-place"
    """The active model's engine reads other weights, of a model that is built alike."""
    WAKE = "wake"
    """Its engine sleeps with its weights in host memory."""
    RELOAD = "reload"
    """Its engine sleeps without weights, and reads them again."""
    FORKED = "forked"
    """An engine is forked from a process that has vLLM imported."""
    COLD = "cold"
    """An engine is started from nothing."""


_ADDED_S: Final = {Rung.ADAPTER: 0.2, Rung.IN_PLACE: 1.0, Rung.WAKE: 0.5, Rung.RELOAD: 1.5, Rung.FORKED: 10.0}
"""Assumed beside the bytes, in the order in which the rungs are tried, until they are measured."""
_COLD_S: Final = 40.0
_LINK_BYTES_PER_S: Final = 20e9


@dataclass(frozen=True, slots=True)
class Situation:
    """Args:
    base_is_active: the coming model is an adapter of what the active engine holds, or is what it holds.
    is_alike: the active model can be replaced in place.
    sleeps_at: level of the coming model's sleeping engine; ``None`` for none.
    can_fork: a launcher has vLLM imported.
    weights_bytes: of the coming model.
    """

    base_is_active: bool = False
    is_alike: bool = False
    sleeps_at: int | None = None
    can_fork: bool = True
    weights_bytes: int = 0


def valid(at: Situation) -> list[Rung]:
    """The rungs that lead there, at least one."""
    if at.base_is_active:
        return [Rung.ADAPTER]
    found = [Rung.IN_PLACE] if at.is_alike else []
    if at.sleeps_at is not None:
        found.append(Rung.WAKE if at.sleeps_at == 1 else Rung.RELOAD)
    return found or [Rung.FORKED if at.can_fork else Rung.COLD]


def expected_s(rung: Rung, at: Situation, measured_s: float | None, leaves_s: float) -> float:
    """measured_s: what it took before. leaves_s: what it takes the active model to leave."""
    leaving = 0.0 if rung in (Rung.ADAPTER, Rung.IN_PLACE) else leaves_s
    if measured_s is not None:
        return leaving + measured_s
    rate = _LINK_BYTES_PER_S if rung is Rung.WAKE else DISK_BYTES_PER_S
    return leaving + _ADDED_S.get(rung, _COLD_S) + at.weights_bytes / rate


def choose(at: Situation, measured_s: Callable[[Rung], float | None], leaves_s: float) -> tuple[Rung, float]:
    """The rung, and the seconds that it is expected to take."""
    costs: Mapping[Rung, float] = {rung: expected_s(rung, at, measured_s(rung), leaves_s) for rung in valid(at)}
    best = min(costs, key=lambda rung: costs[rung])
    return best, costs[best]
