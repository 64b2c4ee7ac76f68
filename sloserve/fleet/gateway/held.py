"""Requests that wait in a gateway because no instance has room: dispatched in the order of their deadlines.

Where tenants have shares, tenants that have had less of all instances come first, and the deadlines decide within each
level (see ``held_shares.py``). The hold is then full only for tenants with more than their share of its places.

:class:`HeldRequests` is synchronous: callers report that requests come, that room may have come and what the time is,
and it returns which request goes to which instance. A request that finds room, and none of its model waiting, goes at
once. :class:`Hold` has a gateway's tasks wait for it.

Both the time that each request waits and the number that wait are limited.
"""

import asyncio
import heapq
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from sloserve.core.clock import Clock
from sloserve.fleet.gateway.gateway_instance import SentRequest
from sloserve.fleet.gateway.held_request import HeldRequest
from sloserve.fleet.gateway.held_shares import HeldShares
from sloserve.fleet.gateway.instances import Instances
from sloserve.scheduler.share_settings import ShareSettings

LATE_EVERY: Final = 10
"""Number of places of which one goes to a request that is late already, while one waits."""


class HoldFull(Exception):
    """The waiting list is full."""


_Place = tuple[float, int, int, HeldRequest]
_Queue = list[_Place]
"""A heap of waiting requests, of which some may wait no more."""


_PROMISED, _IN_TIME, _LATE = range(3)
"""Kinds of requests that wait."""
_Key = tuple[str, int]
"""The tenant of the requests of a heap, and their kind."""


_LATE_TURN: Final = (3, 1)
"""Group in which late requests are sent: after the ones in time, or before them; promised ones are in group 0."""


class HeldRequests:
    """Decides to which instance each request goes, and when.

    Args:
        instances: Instances of the fleet.
        most: Most requests that may wait at a time; with shares, see :func:`~sloserve.core.tenants.has_share_left`.
        shares: Shares of the tenants; ``None``: all requests are as if of one tenant.
    """

    def __init__(self, instances: Instances, most: int, shares: ShareSettings | None = None) -> None:
        self._instances, self._most = instances, most
        self._shares = None if shares is None else HeldShares(instances, shares)
        self._queues: dict[str, dict[_Key, _Queue]] = {}  # by model
        self._numbers = itertools.count()
        self._held: dict[HeldRequest, None] = {}
        self._held_of = Counter[str]()  # by tenant
        self._held_of_model = Counter[str]()
        self._late_heaps = Counter[str]()  # by model
        self._changes = 0  # of the heaps that there are
        self._before_late = Counter[str]()  # by model, requests that were sent before late ones since a late one was

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[HeldRequest]:
        """Iterate over the waiting requests, in order of their arrival here."""
        return iter(self._held)

    def arrived(self, request: HeldRequest, now_s: float) -> SentRequest | None:
        """Book the request with an instance at once, or hold it. Raises: HoldFull."""
        flight = None if self._held_of_model[request.model] else self._book(request, now_s)
        if flight is not None:
            return flight
        tenant = self._tenant(request)
        if len(self._held) >= self._most and (
            self._shares is None or not self._shares.has_place(tenant, self._held_of, self._most)
        ):
            raise HoldFull
        self._held[request] = None
        self._queue(request, tenant)
        return None

    def set_limits(self, most: int, shares: ShareSettings | None) -> None:
        """Set the most requests that may wait, and the shares of the tenants; all that wait already go on waiting."""
        self._most = most
        self._shares = None if shares is None else HeldShares(self._instances, shares)
        # With shares each tenant has heaps of its own, without them all have the same.
        for counted in (self._queues, self._late_heaps, self._before_late, self._held_of, self._held_of_model):
            counted.clear()
        for request in self._held:
            self._queue(request, self._tenant(request))

    def let_go(self, now_s: float, models: Iterable[str] | None = None) -> Iterator[tuple[HeldRequest, SentRequest]]:
        """Book waiting requests, since room may have come, until no instance has room.

        The first is the one of the lowest level; of these a promised one that comes first by now; then the one with the
        earliest deadline that has not passed, where a promised request has the time from which it comes first for its
        deadline; and last the one that has been late for longest. So an overload does not make all late: a place that
        goes to a late request makes one late that could be in time. Every ``LATE_EVERY``-th place goes to a late
        request, so that each gets one in the end.
        """
        for model in list(self._queues) if models is None else models:
            self._tidy(model, now_s)
            levels: Mapping[str, int] = {}
            seen = -1
            while heaps := self._queues.get(model):
                if self._shares is not None and seen != self._changes:
                    levels, seen = self._shares.levels({tenant for tenant, _ in heaps}, now_s), self._changes
                first = self._first(model, heaps, levels, now_s)
                request = heaps[first][0][-1]
                if request in self._held:
                    flight = self._book(request, now_s)
                    if flight is None:
                        break
                    self._pop(model, first)
                    self.left(request)
                    if first[1] == _LATE:
                        self._before_late.pop(model, None)
                    elif self._late_heaps[model]:
                        self._before_late[model] += 1
                    yield request, flight
                else:
                    self._pop(model, first)

    def left(self, request: HeldRequest) -> None:
        """Remove a request that waits no more."""
        if request in self._held:
            del self._held[request]
            tenant = self._tenant(request)
            for held_of, name in ((self._held_of, tenant), (self._held_of_model, request.model)):
                held_of[name] -= 1
                if not held_of[name]:
                    del held_of[name]

    def _queue(self, request: HeldRequest, tenant: str) -> None:
        self._held_of[tenant] += 1
        self._held_of_model[request.model] += 1
        place = (request.wanted_first_s, request.rank, next(self._numbers), request)
        self._push(request.model, (tenant, _IN_TIME if request.first_from_s is None else _PROMISED), place)

    def _push(self, model: str, key: _Key, place: _Place) -> None:
        heaps = self._queues.setdefault(model, {})
        heap = heaps.get(key)
        if heap is None:
            heap = heaps[key] = []
            self._changes += 1
            self._late_heaps[model] += key[1] == _LATE
        elif len(heap) > 2 * len(self._held) + 1:  # most places belong to requests that left
            heap[:] = [one for one in heap if one[-1] in self._held]
            heapq.heapify(heap)
        heapq.heappush(heap, place)

    def _pop(self, model: str, key: _Key) -> _Place:
        heaps = self._queues[model]
        place = heapq.heappop(heaps[key])
        if not heaps[key]:
            del heaps[key]
            self._changes += 1
            self._late_heaps[model] -= key[1] == _LATE
            if not heaps:
                for of_model in (self._queues, self._before_late, self._late_heaps):
                    of_model.pop(model, None)
        return place

    def _tidy(self, model: str, now_s: float) -> None:
        """Let each heap begin with a request that waits, and in time if it is a heap of such requests."""
        for tenant, kind in list(self._queues.get(model, ())):
            while heap := self._queues.get(model, {}).get((tenant, kind)):
                request = heap[0][-1]
                waits, is_late = request in self._held, kind == _IN_TIME and request.due_s < now_s
                if waits and not is_late:
                    break
                if waits:
                    self._push(model, (tenant, _LATE), heap[0])
                self._pop(model, (tenant, kind))

    def _tenant(self, request: HeldRequest) -> str:
        return "" if self._shares is None else request.tenant

    def _first(self, model: str, heaps: Mapping[_Key, _Queue], levels: Mapping[str, int], now_s: float) -> _Key:
        """Return the heap of the request that is sent next."""
        late_first = self._before_late[model] >= LATE_EVERY - 1

        def turn(key: _Key) -> tuple[int, int, float, int, int]:
            (tenant, kind), (wanted_s, rank, number, request) = key, heaps[key][0]
            group = _LATE_TURN[late_first] if kind == _LATE else 0 if request.comes_first(now_s) else 2
            return levels.get(tenant, 0), group, wanted_s, rank, number

        return min(heaps, key=turn)

    def _book(self, request: HeldRequest, now_s: float) -> SentRequest | None:
        wanted = (request.model, request.slo_class, request.work, request.prompt, now_s)
        chosen = None if request.home is None else request.home.find(self._instances, *wanted)
        chosen = chosen or self._instances.choose(*wanted, request.among)
        return None if chosen is None else self._instances.send(chosen, request.work, request.prompt, now_s)


class HeldTooLong(Exception):
    """No instance took the request within the time that it may wait."""


class Hold:
    """The requests that one gateway holds.

    Args:
        instances: Instances of the fleet.
        clock: Clock of this process.
        most: Most requests that may wait at a time.
        shares: Shares of the tenants; ``None`` for none.
    """

    def __init__(self, instances: Instances, clock: Clock, most: int, shares: ShareSettings | None = None) -> None:
        self._clock = clock
        self.held = HeldRequests(instances, most, shares)
        self._booked: dict[HeldRequest, asyncio.Future[SentRequest]] = {}
        self.waits = asyncio.Event()
        """Event that is set while any request waits."""

    def __len__(self) -> int:
        return len(self.held)

    async def flight(self, request: HeldRequest) -> SentRequest:
        """Book the request with an instance, at once or as soon as one has room.

        Raises: HoldFull, HeldTooLong.
        """
        began_s = self._clock.monotonic_s()
        flight = self.held.arrived(request, began_s)
        if flight is not None:
            return flight
        booked: asyncio.Future[SentRequest] = asyncio.get_running_loop().create_future()
        self._booked[request] = booked
        self.waits.set()
        self.let_go((request.model,))
        try:
            async with asyncio.timeout(max(request.refused_s - began_s, 0.0)):
                return await asyncio.shield(booked)
        except TimeoutError:
            if booked.done():
                return booked.result()
            raise HeldTooLong from None
        except asyncio.CancelledError:
            if booked.done():
                booked.result().end()
            raise
        finally:
            request.held_s += self._clock.monotonic_s() - began_s
            self.held.left(request)
            self._waits_no_more(request)
            booked.cancel()

    def set_limits(self, most: int, shares: ShareSettings | None) -> None:
        """Set other limits, see :meth:`HeldRequests.set_limits`."""
        self.held.set_limits(most, shares)

    def let_go(self, models: Iterable[str] | None = None) -> None:
        """Book waiting requests, since room may have come."""
        for request, flight in self.held.let_go(self._clock.monotonic_s(), models):
            booked = self._booked[request]
            self._waits_no_more(request)
            booked.set_result(flight)

    def _waits_no_more(self, request: HeldRequest) -> None:
        self._booked.pop(request, None)
        if not self.held:
            self.waits.clear()
