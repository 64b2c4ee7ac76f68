"""Requests are assigned to an instance when they arrive, and each instance serves its own.

``least-loaded`` assigns to the instance that has the fewest, ``random`` to any. An instance serves its requests for the
active model, first come, first served, and then switches to the model of its oldest request, which waits at most as
long as the fleet's file allows. ``static`` never switches.
"""

import heapq
from abc import abstractmethod
from collections.abc import Iterable, Sequence

import numpy as np

from sloserve.fleet.contract.engine_places import EnginePlaces
from sloserve.fleet.simulated.dispatcher import (
    Dispatcher,
    Give,
    InstanceView,
    Operation,
    Refuse,
    SimulatedView,
    Switch,
    WaitingRequest,
    model_shares,
)


class Queues:
    """One queue for each model, first come, first served; simultaneous requests stay in the order of the puts."""

    def __init__(self) -> None:
        self._heaps: dict[str, list[tuple[float, int, WaitingRequest]]] = {}
        self._count = 0

    def __len__(self) -> int:
        return sum(map(len, self._heaps.values()))

    def put(self, request: WaitingRequest) -> None:
        """Put the request into the queue of its model."""
        heapq.heappush(self._heaps.setdefault(request.model, []), (request.arrival_s, self._count, request))
        self._count += 1

    def head(self, model: str | None) -> WaitingRequest | None:
        """Return the request that the model serves first, or ``None`` if none waits."""
        heap = self._heaps.get(model or "")
        return heap[0][2] if heap else None

    def pop(self, model: str) -> WaitingRequest:
        """Remove and return the head of the model's queue."""
        return heapq.heappop(self._heaps[model])[2]

    def size(self, model: str | None) -> int:
        """Return how many requests wait for the model."""
        return len(self._heaps.get(model or "", ()))

    def waiting(self) -> Iterable[tuple[str, WaitingRequest]]:
        """Return each model with waiting requests, and its head; the oldest head is first."""
        heads = sorted((heap[0] for heap in self._heaps.values() if heap), key=lambda entry: entry[:2])
        return [(head.model, head) for _, _, head in heads]


class Assigned(Dispatcher):
    """The common part of the dispatchers that assign on arrival and switch."""

    def __init__(self) -> None:
        self._queues: dict[str, Queues] = {}

    @abstractmethod
    def pick(self, request: WaitingRequest, instances: Sequence[InstanceView], view: SimulatedView) -> InstanceView:
        """Return one of the instances that can serve the request."""

    def queued(self, instance: InstanceView) -> int:
        """Return how many requests are assigned to the instance and not given yet."""
        queues = self._queues.get(instance.name)
        return 0 if queues is None else len(queues)

    def begin(self, view: SimulatedView) -> Sequence[Switch]:
        return ()

    def arrived(self, request: WaitingRequest, view: SimulatedView) -> None:
        can = [instance for instance in view.instances if request.model in instance.models]
        self._queues.setdefault(self.pick(request, can, view).name, Queues()).put(request)

    def tick(self, view: SimulatedView) -> Sequence[Operation]:
        operations: list[Operation] = []
        for instance in view.instances:
            queues = self._queues.get(instance.name)
            if queues is None or not instance.serving:
                continue
            oldest = next(iter(queues.waiting()), None)
            if oldest is None:
                continue
            model, head = oldest
            if model != instance.active and view.now_s - head.arrival_s >= view.fleet.switching.max_wait_s:
                operations.append(Switch(instance.name, model))
                continue
            places = EnginePlaces(instance.limits(str(instance.active)).max_num_seqs)
            for _ in range(places.left(instance.num_in_flight)):
                if (own := queues.head(instance.active)) is None:
                    break
                operations.append(Give(queues.pop(own.model).request_id, instance.name))
            if model != instance.active and not queues.size(instance.active):
                operations.append(Switch(instance.name, model))
        return operations


class LeastLoaded(Assigned):
    """A dispatcher that assigns each request to the instance with the fewest requests, given or not."""

    def pick(self, request: WaitingRequest, instances: Sequence[InstanceView], view: SimulatedView) -> InstanceView:
        return min(instances, key=lambda i: (i.num_in_flight + self.queued(i), i.name))


class Random(Assigned):
    """A dispatcher that assigns each request to any instance at random."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self._rng = np.random.default_rng(seed)

    def pick(self, request: WaitingRequest, instances: Sequence[InstanceView], view: SimulatedView) -> InstanceView:
        return instances[int(self._rng.integers(len(instances)))]


class Static(Dispatcher):
    """A dispatcher that keeps one model on each instance; a request goes at once to its model's least busy instance.

    The placement serves as much of the expected demand as any that gives whole instances: each instance in turn goes to
    the model with the least served demand. Requests of models without an instance are refused.
    """

    def __init__(self) -> None:
        self._refused: list[str] = []
        self._arrived: list[WaitingRequest] = []

    def begin(self, view: SimulatedView) -> Sequence[Switch]:
        wanted = model_shares(view.fleet)
        unserved, placed = dict(wanted), []
        share_of_instance = sum(wanted.values()) / len(view.instances)
        for instance in view.instances:
            model = max(instance.models, key=lambda m: (unserved[m], wanted[m]))
            unserved[model] -= share_of_instance
            placed.append(Switch(instance.name, model))
        return placed

    def arrived(self, request: WaitingRequest, view: SimulatedView) -> None:
        self._arrived.append(request)

    def tick(self, view: SimulatedView) -> Sequence[Operation]:
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
