"""Requests that wait in a gateway because no instance has room: let go in the order of their deadlines.

Synchronous: it is told when requests come, when room may have come and what the time is, and says which goes where. A
request that finds room, and none of its model waiting, goes at once.
"""

import heapq
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self

from sloserve.fleet.gateway.instances import Instances, SentRequest
from sloserve.fleet.gateway.prediction import Work
from sloserve.fleet.gateway.prefixes import Beginning


class HoldFull(Exception):
    """As many requests wait as may."""


@dataclass(slots=True, eq=False)
class HeldRequest:
    """A request that looks for an instance.

    Args:
        model, slo_class: what it asks for; of the class its name.
        due_s: deadline by the monotonic clock, inf for none. rank, then arrival, decide between those without one.
        until_s: until when the gateway lets it wait, by the same clock; instances that send it back move that.
        ends_s: when the time to live that its client gave it is over.
        work: its size.
        prompt: beginnings of its prompt.
    """

    model: str
    slo_class: str
    arrival_s: float
    due_s: float = math.inf
    rank: int = 0
    until_s: float = math.inf
    ends_s: float = math.inf
    work: Work = Work()
    prompt: Sequence[Beginning] = ()
    held_s: float = field(default=0.0, init=False)
    """How long it has waited here so far."""
    away_s: float = field(default=0.0, init=False)
    """How long instances had it that sent it back."""

    @property
    def wanted_s(self) -> float:
        """By when an instance should have taken it: its deadline, or the end of the wait that the gateway grants.

        Not its time to live, with which a client could make its model come sooner than its targets may.
        """
        return min(self.due_s, self.until_s)

    @property
    def refused_s(self) -> float:
        """When it has waited too long."""
        return min(self.until_s, self.ends_s)

    def sent_back(self, after_s: float) -> None:
        """It looks for an instance again; while one had it, it has not waited."""
        self.away_s += after_s
        self.until_s += after_s

    def after(self, other: "HeldRequest") -> Self:
        """This one, which looks for an instance in place of ``other``."""
        self.until_s, self.held_s, self.away_s = other.until_s, other.held_s, other.away_s
        return self


class HeldRequests:
    """Which instance does each request go to, and when? most: requests that may wait at a time."""

    def __init__(self, instances: Instances, most: int) -> None:
        self._instances, self._most = instances, most
        self._queues: dict[str, list[tuple[float, int, int, HeldRequest]]] = {}
        self._numbers = itertools.count()
        self._held: dict[HeldRequest, None] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[HeldRequest]:
        """Those that wait, in order of their arrival here."""
        return iter(self._held)

    def arrived(self, request: HeldRequest, now_s: float) -> SentRequest | None:
        """Books it with an instance at once, or holds it from now on. Raises: HoldFull."""
        flight = None if self._queue(request.model) else self._book(request, now_s)
        if flight is not None:
            return flight
        if len(self._held) >= self._most:
            raise HoldFull
        self._held[request] = None
        place = (request.due_s, request.rank, next(self._numbers), request)
        heapq.heappush(self._queues.setdefault(request.model, []), place)
        return None

    def let_go(self, now_s: float, models: Iterable[str] | None = None) -> Iterator[tuple[HeldRequest, SentRequest]]:
        """Room may have come: books those that wait, the earliest deadline first, until none has room."""
        for model in list(self._queues) if models is None else models:
            while queue := self._queue(model):
                request = queue[0][-1]
                flight = self._book(request, now_s)
                if flight is None:
                    break
                heapq.heappop(queue)
                self.left(request)
                yield request, flight

    def left(self, request: HeldRequest) -> None:
        """It waits no more."""
        self._held.pop(request, None)

    def _queue(self, model: str) -> list[tuple[float, int, int, HeldRequest]]:
        """Those that wait for a model, without any at its head that waits no more."""
        queue = self._queues.get(model)
        if queue is None:
            return []
        while queue and queue[0][-1] not in self._held:
            heapq.heappop(queue)
        if len(queue) > 2 * len(self._held) + 1:  # most have left behind one that stays
            queue[:] = [place for place in queue if place[-1] in self._held]
            heapq.heapify(queue)
        if not queue:
            del self._queues[model]
        return queue

    def _book(self, request: HeldRequest, now_s: float) -> SentRequest | None:
        chosen = self._instances.choose(request.model, request.slo_class, request.work, request.prompt, now_s)
        return None if chosen is None else chosen.send(request.work, request.prompt)
