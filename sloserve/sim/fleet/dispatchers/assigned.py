"""Requests are assigned to an instance when they arrive, and each instance serves its own.

``least-loaded`` assigns to the instance that has the fewest, or, where one should have the beginning of the prompt in
its prefix cache, to the one that should complete the request first; ``random`` to any. An instance serves what it has
of the active model, first come, first served, and then turns to the model of its oldest request, which waits at most as
long as the fleet's file allows. ``static`` never switches.
"""

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np

from sloserve.sim.fleet.contract import Dispatcher, FleetView, Give, Held, InstanceView, Operation, Refuse, Switch
from sloserve.sim.fleet.dispatchers.prefixes import SentPrefixes, first_to_complete
from sloserve.sim.fleet.dispatchers.queues import Queues, by_arrival
from sloserve.sim.fleet.dispatchers.room import Room


class Assigned(Dispatcher):
    """What the two have in common."""

    def __init__(self) -> None:
        self._queues: dict[str, Queues] = {}

    @abstractmethod
    def pick(self, request: Held, instances: Sequence[InstanceView], view: FleetView) -> InstanceView:
        """One of those that can serve the request."""

    def given(self, request: Held, instance: InstanceView) -> None:
        """It goes to the instance now."""

    def queued(self, instance: InstanceView) -> int:
        """Requests that are assigned to it and not given yet."""
        queues = self._queues.get(instance.name)
        return 0 if queues is None else len(queues)

    def begin(self, view: FleetView) -> Sequence[Switch]:
        return ()

    def arrived(self, request: Held, view: FleetView) -> None:
        can = [instance for instance in view.instances if request.model in instance.models]
        self._queues.setdefault(self.pick(request, can, view).name, Queues(by_arrival)).put(request)

    def tick(self, view: FleetView) -> Sequence[Operation]:
        operations: list[Operation] = []
        for instance in view.instances:
            queues = self._queues.get(instance.name)
            if queues is None or not instance.serving:
                continue
            oldest = next(iter(queues.waiting()), None)
            if oldest is None:
                continue
            model, head = oldest
            if model != instance.active and view.now_s - head.arrival_s >= view.switching.max_wait_s:
                operations.append(Switch(instance.name, model))
                continue
            room = Room(instance)
            while (own := queues.head(instance.active)) is not None and room.takes(own.prompt_tokens):
                operations.append(Give(queues.pop(own.model).request_id, instance.name))
                self.given(own, instance)
            if model != instance.active and not queues.size(instance.active):
                operations.append(Switch(instance.name, model))
        return operations


class LeastLoaded(Assigned):
    """To the instance with the fewest requests, given or not. prefixes: whether hits in prefix caches count."""

    def __init__(self, prefixes: bool = True) -> None:
        super().__init__()
        self._prefixes = SentPrefixes() if prefixes else None

    def pick(self, request: Held, instances: Sequence[InstanceView], view: FleetView) -> InstanceView:
        load = {instance.name: instance.num_in_flight + self.queued(instance) for instance in instances}
        if self._prefixes is not None:
            hits = self._prefixes.hits(request, instances)
            if hits:
                tokens, _ = view.expected_output(request)
                return first_to_complete(request, tokens, instances, load, hits)
        return min(instances, key=lambda i: (load[i.name], i.name))

    def given(self, request: Held, instance: InstanceView) -> None:
        if self._prefixes is not None:
            self._prefixes.sent(request, instance)


class Random(Assigned):
    """To any instance."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self._rng = np.random.default_rng(seed)

    def pick(self, request: Held, instances: Sequence[InstanceView], view: FleetView) -> InstanceView:
        return instances[int(self._rng.integers(len(instances)))]


class Static(Dispatcher):
    """Each instance keeps one model; requests go at once to the instance of theirs that has the fewest.

    The placement serves as much of the expected demand as any that gives whole instances: one after another goes to the
    model whose demand is least served. Requests of models that have none are refused.
    """

    def __init__(self) -> None:
        self._refused: list[str] = []
        self._arrived: list[Held] = []

    def begin(self, view: FleetView) -> Sequence[Switch]:
        wanted = {model: share for model, share in view.shares.items()}
        unserved, placed = dict(wanted), []
        share_of_instance = sum(wanted.values()) / len(view.instances)
        for instance in view.instances:
            model = max(instance.models, key=lambda m: (unserved[m], wanted[m]))
            unserved[model] -= share_of_instance
            placed.append(Switch(instance.name, model))
        return placed

    def arrived(self, request: Held, view: FleetView) -> None:
        self._arrived.append(request)

    def tick(self, view: FleetView) -> Sequence[Operation]:
        operations: list[Operation] = []
        load = {instance.name: instance.num_in_flight for instance in view.instances}
        for request in self._arrived:
            can = [instance.name for instance in view.instances if instance.active == request.model]
            if not can:
                operations.append(Refuse(request.request_id))
                continue
            name = min(can, key=lambda n: (load[n], n))
            load[name] += 1
            operations.append(Give(request.request_id, name))
        self._arrived = []
        return operations
