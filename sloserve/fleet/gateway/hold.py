"""Requests that wait in the gateway because no instance has room: let go in the order of their deadlines.

A request that finds room, and none of its model waiting, goes at once. The others are let go when a report comes or a
request ends. Each waits only so long, and there may be only so many.
"""

import asyncio
import heapq
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self

from sloserve.core.clock import Clock
from sloserve.fleet.gateway.instances import Flight, Instances
from sloserve.fleet.gateway.prediction import Work
from sloserve.fleet.gateway.prefixes import Beginning


class HoldFull(Exception):
    """As many requests wait as may."""


class HeldTooLong(Exception):
    """No instance took the request in the time that it may wait."""


@dataclass(slots=True, eq=False)
class Wanted:
    """A request that looks for an instance.

    Args:
        model, slo_class: what it asks for; of the class its name.
        due_s: deadline by the monotonic clock, inf for none. rank, then arrival, decide between those without one.
        until_s: until when it may wait, by the same clock; instances that send it back move that, up to ends_s.
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

    def sent_back(self, after_s: float) -> None:
        """It looks for an instance again; while one had it, it has not waited."""
        self.away_s += after_s
        self.until_s = min(self.until_s + after_s, self.ends_s)

    def after(self, other: "Wanted") -> Self:
        """This one, which looks for an instance in place of ``other``."""
        self.until_s, self.held_s, self.away_s = other.until_s, other.held_s, other.away_s
        return self


@dataclass(slots=True, eq=False)
class _Waiting:
    wanted: Wanted
    flight: asyncio.Future[Flight]


class Hold:
    """Answers: which instance does this request go to, and when?"""

    def __init__(self, instances: Instances, clock: Clock, most: int) -> None:
        """most: requests that may wait at a time."""
        self._instances, self._clock, self._most = instances, clock, most
        self._queues: dict[str, list[tuple[float, int, int, _Waiting]]] = {}
        self._numbers = itertools.count()
        self._held: dict[_Waiting, None] = {}
        self.waits = asyncio.Event()
        """Set while any request waits."""

    def __len__(self) -> int:
        return len(self._held)

    @property
    def held(self) -> Iterator[Wanted]:
        """Those that wait, in order of their arrival here."""
        return (waiting.wanted for waiting in self._held)

    async def flight(self, wanted: Wanted) -> Flight:
        """Books the request with an instance, at once or as soon as one has room.

        Raises: HoldFull, HeldTooLong.
        """
        flight = None if self._queue(wanted.model) else self._book(wanted)
        if flight is not None:
            return flight
        if len(self._held) >= self._most:
            raise HoldFull
        waiting = _Waiting(wanted, asyncio.get_running_loop().create_future())
        self._held[waiting] = None
        self.waits.set()
        place = (wanted.due_s, wanted.rank, next(self._numbers), waiting)
        heapq.heappush(self._queues.setdefault(wanted.model, []), place)
        began_s = self._clock.monotonic_s()
        self.let_go((wanted.model,))
        try:
            async with asyncio.timeout(max(wanted.until_s - began_s, 0.0)):
                return await asyncio.shield(waiting.flight)
        except TimeoutError:
            if waiting.flight.done():
                return waiting.flight.result()
            raise HeldTooLong from None
        except asyncio.CancelledError:
            if waiting.flight.done():
                waiting.flight.result().end()
            raise
        finally:
            wanted.held_s += self._clock.monotonic_s() - began_s
            self._no_longer(waiting)
            waiting.flight.cancel()

    def let_go(self, models: Iterable[str] | None = None) -> None:
        """Room may have come: books those that wait, the earliest deadline first."""
        for model in list(self._queues) if models is None else models:
            while queue := self._queue(model):
                waiting = queue[0][-1]
                flight = self._book(waiting.wanted)
                if flight is None:
                    break
                heapq.heappop(queue)
                self._no_longer(waiting)
                waiting.flight.set_result(flight)

    def _no_longer(self, waiting: _Waiting) -> None:
        self._held.pop(waiting, None)
        if not self._held:
            self.waits.clear()

    def _queue(self, model: str) -> list[tuple[float, int, int, _Waiting]]:
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

    def _book(self, wanted: Wanted) -> Flight | None:
        now_s = self._clock.monotonic_s()
        chosen = self._instances.choose(wanted.model, wanted.slo_class, wanted.work, wanted.prompt, now_s)
        return None if chosen is None else chosen.send(wanted.work, wanted.prompt)
