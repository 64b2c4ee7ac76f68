"""Held requests by model."""

import heapq
from collections.abc import Iterable

from sloserve.fleet.simulated.dispatcher import WaitingRequest


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
