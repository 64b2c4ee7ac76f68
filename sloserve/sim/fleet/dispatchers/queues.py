"""Held requests by model, in an order of the dispatcher's own."""

import heapq
from collections.abc import Callable, Iterable

from sloserve.sim.fleet.contract import Held

Key = Callable[[Held], float]


def by_arrival(request: Held) -> float:
    """First come, first served."""
    return request.arrival_s


def by_deadline(request: Held) -> float:
    """Earliest deadline first."""
    return request.due_s


class Queues:
    """One queue for each model. Equal keys are served in the order in which they were put in."""

    def __init__(self, key: Key) -> None:
        self._key = key
        self._heaps: dict[str, list[tuple[float, int, Held]]] = {}
        self._count = 0

    def __len__(self) -> int:
        return sum(map(len, self._heaps.values()))

    def put(self, request: Held) -> None:
        """The request waits in the queue of its model."""
        heapq.heappush(self._heaps.setdefault(request.model, []), (self._key(request), self._count, request))
        self._count += 1

    def head(self, model: str | None) -> Held | None:
        """Who is served first of the model; ``None`` where none waits."""
        heap = self._heaps.get(model or "")
        return heap[0][2] if heap else None

    def pop(self, model: str) -> Held:
        """Takes the head out."""
        return heapq.heappop(self._heaps[model])[2]

    def size(self, model: str | None) -> int:
        """How many wait."""
        return len(self._heaps.get(model or "", ()))

    def waiting(self) -> Iterable[tuple[str, Held]]:
        """Each model that is waited for, and its head; the first key first."""
        heads = sorted((heap[0] for heap in self._heaps.values() if heap), key=lambda entry: entry[:2])
        return [(head.model, head) for _, _, head in heads]
