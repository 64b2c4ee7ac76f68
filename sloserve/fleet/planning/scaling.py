"""How many hosts of each kind of device a fleet should have, from what its planner expects.

This is pure, without clock or store. The target goes up to what was needed all through ``up_s``, and down to the most
that was needed at any time within ``down_s``: a short burst starts no host, a short lull ends none.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sloserve.fleet.contract.plan_in_force import PlanInForce

FULL: Final = 0.7
"""Target pressure of a fleet's size: expected time to serve what waits over the time that its deadlines leave."""

REPLAYED_S: Final = 240.0
"""Seconds for which a need by replays counts; they are made every minute."""


@dataclass(frozen=True, slots=True)
class ScaledKind:
    """Hosts of one kind of device.

    Args:
        instances: Number of instances of one host.
        least: The fewest hosts of this kind.
        most: The most hosts of this kind.
    """

    instances: int
    least: int
    most: int


def instances_needed(plan: PlanInForce) -> int:
    """Return how many instances like the planned ones would keep the objective.

    A recent need by replays counts for streams, by the upper end of its interval, and more at once where there are more
    streams than its instances have at their busiest; the need of lines of batches is the one of the plan. It is 0 if
    replays found no request and none waits. Without replays it is at least 1: the planner's own count where the plan
    misses deadlines, else in proportion to the pressure.
    """
    replayed = plan.replayed
    if replayed is None or plan.made_s - replayed.read_s > REPLAYED_S:
        return max(_planned(plan, plan.pressure), 1)
    of_lines = {group.slo_class for queue in plan.queues.values() for group in queue if group.durable}
    lines = _planned(plan, {name: plan.pressure.get(name, 0.0) for name in of_lines}) if of_lines else 0
    streams = 0 if replayed.in_flight is None else math.ceil(plan.streams / replayed.in_flight)
    return max(replayed.high, lines, streams, int(plan.waiting > 0))


def _planned(plan: PlanInForce, pressure: Mapping[str, float]) -> int:
    if plan.instances_needed is not None:
        return plan.instances_needed
    return math.ceil(len(plan.queues) * max(pressure.values(), default=0.0) / FULL)


def hosts_for(instances: int, kinds: Mapping[str, ScaledKind]) -> dict[str, int]:
    """Return hosts for ``instances`` instances, the first kinds first, within the limits of each kind."""
    left, found = instances, {}
    for name, kind in kinds.items():
        hosts = min(max(math.ceil(left / kind.instances), kind.least), kind.most)
        found[name], left = hosts, max(left - hosts * kind.instances, 0)
    return found


class Scaling:
    """Decides how many hosts of each kind are needed.

    Args:
        kinds: Kinds of hosts by device, in the order in which they are filled.
        up_s: Seconds for which more must be needed before hosts are added.
        down_s: Seconds for which less must be needed before hosts go.
    """

    def __init__(self, kinds: Mapping[str, ScaledKind], up_s: float, down_s: float) -> None:
        self._kinds, self._up_s, self._down_s = kinds, up_s, down_s
        self._since_s: float | None = None
        self._needed: deque[tuple[float, int]] = deque()
        self._target = sum(kind.least * kind.instances for kind in kinds.values())

    def want(self, now_s: float, needed: int, there: int) -> dict[str, int]:
        """Return the hosts that are needed next, by kind of device.

        Args:
            now_s: Seconds on a clock that never goes back; calls may be seldom or often.
            needed: Number of instances; see :func:`instances_needed`.
            there: Number of instances that exist already; the first call starts from these.
        """
        if self._since_s is None:
            self._since_s, self._target = now_s, max(self._target, there)
        self._needed.append((now_s, needed))
        while self._needed[0][0] < now_s - max(self._up_s, self._down_s):
            self._needed.popleft()
        if needed and not self._target:  # the first request after a time without any does not wait for the rest
            self._target = 1
        if now_s - self._since_s >= self._up_s:
            self._target = max(self._target, min(self._within(now_s - self._up_s)))
        if now_s - self._since_s >= self._down_s:
            self._target = min(self._target, max(self._within(now_s - self._down_s)))
        most = sum(kind.most * kind.instances for kind in self._kinds.values())
        self._target = min(self._target, most)
        return hosts_for(self._target, self._kinds)

    def _within(self, since_s: float) -> list[int]:
        return [needed for at_s, needed in self._needed if at_s >= since_s]
