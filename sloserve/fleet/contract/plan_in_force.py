"""The plan in force, as the store keeps it: the request groups of each instance, in the order of serving."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec


@dataclass(frozen=True, slots=True)
class PlannedGroup:
    """A group's place in a virtual queue.

    Args:
        ref: Number of a durable group in the store, from 0; a number below 0 for requests that gateways stream.
        model, slo_class: Model and class name of its requests.
        due_in_s: Seconds from when the plan was made until its first deadline; ``None`` for no deadline.
    """

    ref: int
    model: str
    slo_class: str
    due_in_s: float | None = None

    @property
    def durable(self) -> bool:
        """Whether agents pull it from the store; otherwise gateways route it."""
        return self.ref >= 0


@dataclass(frozen=True, slots=True)
class ReplayedNeed:
    """Instances that the fleet needs, by replays of its recent traffic; the sum over its models.

    Args:
        read_s: Time at which the traffic was read, in epoch seconds by the store's clock.
        objective: Share of the requests that shall meet their targets, in each class.
        low, expected, high: Fewest instances that may keep the objective, that keep it as expected, and that keep it
            with certainty; 0 without any request for the whole window.
        covers_s: Seconds of traffic that were replayed.
        requests: Number of requests in them.
        in_flight: Streams that each of the instances has at the busiest times; ``None`` where that is not known.
    """

    read_s: float
    objective: float
    low: int
    expected: int
    high: int
    covers_s: float = 0.0
    requests: int = 0
    in_flight: float | None = None


@dataclass(frozen=True, slots=True)
class PlanInForce:
    """The plan that the planner writes, and that agents and gateways follow.

    Args:
        made_s: Time at which it was made, in epoch seconds by the store's clock.
        queues: Groups of each instance, by the instance's name; the head of the queue stands first.
        late_s, instances_needed, solver: see :class:`sloserve.scheduler.virtual_queues.contract.FleetPlan`.
        pressure: Expected time to serve what waits of each class, divided by the time that its deadlines leave; 1 is
            full.
        waiting: Number of requests that wait: streams that gateways hold, and lines in the store.
        streams: Number of streams that wait or run.
        replayed: Need by replays; ``None`` where there is none.
    """

    made_s: float
    queues: Mapping[str, tuple[PlannedGroup, ...]]
    late_s: float = 0.0
    instances_needed: int | None = None
    solver: str = "search"
    pressure: Mapping[str, float] = field(default_factory=dict)
    waiting: int = 0
    streams: int = 0
    replayed: ReplayedNeed | None = None

    @property
    def order(self) -> dict[str, list[int]]:
        """Numbers of each instance's groups, by the instance's name, in the order of serving."""
        return {name: [group.ref for group in queue] for name, queue in self.queues.items()}

    def places_by_group(self) -> dict[tuple[str, str], dict[str, int]]:
        """Return the instances that have requests of each model and class in their queues, each with its place.

        Places count from 0, the instance with the earliest place in its queue first, and of equal ones by name.
        """
        found: dict[tuple[str, str], list[tuple[int, str]]] = {}
        for name, queue in self.queues.items():
            for place, group in enumerate(queue):
                found.setdefault((group.model, group.slo_class), []).append((place, name))
        return {
            key: {name: place for place, name in enumerate(dict.fromkeys(name for _, name in sorted(places)))}
            for key, places in found.items()
        }


def to_json(plan: PlanInForce) -> dict[str, Any]:
    """Return plain values for :class:`sloserve.fleet.store.records.StoredPlan`."""
    made: dict[str, Any] = msgspec.to_builtins(plan)
    return made


def plan_of(value: Mapping[str, Any]) -> PlanInForce | None:
    """Read a plan; return ``None`` if another version wrote it and this one cannot read it."""
    try:
        return msgspec.convert(dict(value), PlanInForce)
    except msgspec.ValidationError:
        return None
