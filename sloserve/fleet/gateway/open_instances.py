"""The instances that take requests now, by model and by planned group, kept as they change: no choice scans all.

A set of instances changes in constant time, and any of its members can be drawn in constant time. Draws follow from a
seed alone: the same requests, reports and plans give the same choices.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from sloserve.fleet.contract.plan_in_force import PlanInForce
from sloserve.fleet.gateway.gateway_instance import GatewayInstance

DRAWN: Final = 8
"""Instances that are drawn of many. Two are known to do nearly as well as all where they differ in their load alone."""
_TRIES: Final = 4 * DRAWN
"""Most draws for one choice: the same instance may be drawn twice, or an agent may be silent."""
_MULTIPLIER: Final = 6364136223846793005
_INCREMENT: Final = 1442695040888963407
_MASK: Final = (1 << 64) - 1
"""A linear congruential generator modulo 2**64, of which the high bits are used. Source: Knuth, MMIX."""

Key = tuple[str, str | None]
"""A model, and a class of a planned group; ``None`` for all instances with the model."""


class Drawable:
    """A set of instances from which any can be drawn; its order follows from the changes."""

    def __init__(self) -> None:
        self._members: list[GatewayInstance] = []
        self._places: dict[GatewayInstance, int] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[GatewayInstance]:
        return iter(self._members)

    def __contains__(self, one: object) -> bool:
        return one in self._places

    def add(self, one: GatewayInstance) -> None:
        """Add an instance that is not in the set."""
        self._places[one] = len(self._members)
        self._members.append(one)

    def discard(self, one: GatewayInstance) -> None:
        """Remove an instance, if it is in the set."""
        place = self._places.pop(one, None)
        if place is None:
            return
        last = self._members.pop()
        if last is not one:
            self._members[place], self._places[last] = last, place

    def within(self, names: Collection[str]) -> "Drawable":
        """Return the members with one of these names, as a set of their own; the time grows with all members."""
        found = Drawable()
        for one in self._members:
            if one.name in names:
                found.add(one)
        return found

    def draw(self, seed: int, now_s: float) -> list[GatewayInstance]:
        """Return up to :data:`DRAWN` different members with fresh reports; fewer if many of those drawn have none."""
        found: dict[GatewayInstance, None] = {}
        size = len(self._members)
        for _ in range(_TRIES):
            seed = (seed * _MULTIPLIER + _INCREMENT) & _MASK
            one = self._members[(seed >> 33) % size]
            if one.is_fresh(now_s):
                found[one] = None
                if len(found) == DRAWN:
                    break
        return list(found)


_NONE: Final = Drawable()


class OpenInstances:
    """The instances that take requests now. Only whether an agent's report is fresh is left to the reader."""

    def __init__(self) -> None:
        self._sets: dict[Key, Drawable] = {}
        self._open_for: dict[GatewayInstance, str] = {}
        self._places: Mapping[tuple[str, str], Mapping[str, int]] = {}
        """Place of each instance in the plan, by model and class, and the instance's name."""
        self._classes: dict[tuple[str, str], list[str]] = {}
        """Classes of the groups that an instance has in its queue, by its name and the model."""

    def of(self, model: str, slo_class: str | None = None) -> Drawable:
        """Return the open instances of a model.

        Args:
            model: Name of the model.
            slo_class: Class, to get only the instances that the plan names for the group; ``None`` for all.
        """
        return self._sets.get((model, slo_class), _NONE)

    def place(self, model: str, slo_class: str, name: str) -> int:
        """Return the place of an instance among the instances that the plan names for a group."""
        return self._places[model, slo_class][name]

    def planned(self, model: str, slo_class: str) -> list[str]:
        """Return the names of the instances that the plan names for a group, the earliest place first."""
        return list(self._places.get((model, slo_class), ()))

    def changed(self, one: GatewayInstance) -> None:
        """Note that an instance may have begun or ceased to take requests of a model."""
        now, before = one.open_for, self._open_for.get(one)
        if now == before:
            return
        if before is not None:
            del self._open_for[one]
            for key in self._keys(one.name, before):
                self._sets[key].discard(one)
        if now is not None:
            self._add(one, now)

    def forget(self, one: GatewayInstance) -> None:
        """Remove an instance that is in the fleet no more."""
        model = self._open_for.pop(one, None)
        if model is not None:
            for key in self._keys(one.name, model):
                self._sets[key].discard(one)

    def follow(self, plan: PlanInForce | None) -> None:
        """Take in another plan; this takes as long as the plan and the instances are many."""
        self._places = {} if plan is None else plan.places_by_group()
        self._classes = {}
        for (model, slo_class), places in self._places.items():
            for name in places:
                self._classes.setdefault((name, model), []).append(slo_class)
        known, self._open_for, self._sets = self._open_for, {}, {}
        for one, model in known.items():
            self._add(one, model)

    def _add(self, one: GatewayInstance, model: str) -> None:
        self._open_for[one] = model
        for key in self._keys(one.name, model):
            if key not in self._sets:
                self._sets[key] = Drawable()
            self._sets[key].add(one)

    def _keys(self, name: str, model: str) -> Iterable[Key]:
        yield model, None
        for slo_class in self._classes.get((name, model), ()):
            yield model, slo_class
