"""One queue of waiting requests: their places, the rate at which they start, and when refused ones should retry.

The time to retry is a reservation (:mod:`sloserve.scheduler.admission.kept_places`): the next place that is not
reserved yet, at the rate of the latest starts. Neither a profile nor a nominal step time has a part in it, only what
the engine did.

A request waits from :meth:`Queue.enter` until its place is notified that the first token is out, or that the request
ended before.

Requests of one queue that are equally urgent are a lane (:mod:`sloserve.scheduler.admission.urgency`), with a rate of
its own for predictions. The time to retry goes by all starts of the queue, since any of them makes room.

Guarantees: a place counts once, however often it is released. The module is deterministic: time is an argument, in
seconds of a clock that is never set. It must be used from one thread alone.
"""

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sloserve.scheduler.admission.drain_rates import MEMORY_STARTS, DrainRate, SteadyRate
from sloserve.scheduler.admission.kept_places import KeptPlaces
from sloserve.scheduler.admission.retry_after import DEFAULT_RETRY_AFTER_S, MAX_RETRY_AFTER_S, retry_after_s
from sloserve.scheduler.admission.urgency import Urgency

SWEEP_INTERVAL_S = 0.02
SWEEP_INTERVAL_S_PER_WAITING = 1e-4
"""Seconds between two sweeps of a class, for each waiting request.

A sweep looks at every waiting request, a microsecond each, and an overload asks thousands of times per second. A place
is thus found free at most this late.
"""


def sweep_interval_s(waiting: int) -> float:
    """Return the seconds between two looks at ``waiting`` requests."""
    return max(SWEEP_INTERVAL_S, SWEEP_INTERVAL_S_PER_WAITING * waiting)


class QueueAhead(NamedTuple):
    """What waits ahead of a request that arrives.

    Args:
        ahead: Number of waiting requests of its queue.
        alike: Number of waiting requests that start before it, as far as is known.
        interval_s: Seconds from one start of these to the next; ``None`` if unknown.
    """

    ahead: int
    alike: int
    interval_s: float | None

    def wait_s(self, service_s: float) -> float:
        """Return the seconds for which the request is predicted to wait.

        Args:
            service_s: Seconds that its own prompt takes, which stand in for an unknown interval.
        """
        return self.alike * (service_s if self.interval_s is None else self.interval_s)


class Position(NamedTuple):
    """The place of a waiting request, 1 for the first.

    Args:
        in_queue: Place among the waiting requests of its queue.
        in_lane: Place among the ones that are equally urgent.
    """

    in_queue: int
    in_lane: int


class WaitingPlace:
    """One request's place among the waiting. It is released once; every further release has no effect."""

    __slots__ = ("request", "urgency", "on_start", "_queue")

    def __init__(self, request: Any, queue: "Queue", urgency: Urgency) -> None:
        self.request = request
        self.urgency = urgency
        self.on_start: Callable[[float], None] | None = None
        """Called with the present time once the first token is known to be out."""
        self._queue = queue

    def started(self, now_s: float) -> None:
        """Record that the first token is out: the place is free, and counts towards the rate of the queue."""
        if self._release(now_s):
            self._queue.start(self.urgency)
            if self.on_start is not None:
                self.on_start(now_s)

    def left(self, now_s: float) -> None:
        """Record that the request ended.

        If it ended before its first token, its place is free, which says nothing about the queue's speed.
        """
        self._release(now_s)

    def becomes(self, urgency: Urgency, now_s: float) -> None:
        """Move the request to another lane of its queue."""
        self._queue.move(self, urgency, now_s)

    def position(self, now_s: float) -> Position | None:
        """Return its place among the waiting requests of its queue; ``None`` once it is released."""
        return self._queue.position(self, now_s)

    def interval_s(self, now_s: float) -> float | None:
        """Return the expected seconds from one start of its lane to the next; ``None`` if unknown."""
        return self._queue.interval_s(self.urgency, now_s)

    def _release(self, now_s: float) -> bool:
        if self not in self._queue.waiting:
            return False
        self._queue.pass_time(now_s)
        self._queue.remove(self)
        return True


@dataclass(slots=True)
class _Lane:
    """The requests of one queue that are equally urgent: how many wait, and the rate at which they start."""

    waiting: int = 0
    rate: SteadyRate = field(default_factory=SteadyRate)


@dataclass(slots=True, eq=False)
class Queue:
    """The waiting requests of one tenant in one class: places in order of entering, rates, and kept places.

    Places are kept for clients that were refused; ``reserved_until_s`` is when the last such place is predicted to
    be free.

    Args:
        count: Function that adds to the number of waiting requests of the class.
        tenant: Number of the tenant; 0 where tenants have no shares.
    """

    count: Callable[[int], None]
    tenant: int
    waiting: dict[WaitingPlace, None] = field(default_factory=dict)
    rate_lately: DrainRate = field(default_factory=lambda: DrainRate(MEMORY_STARTS))
    kept_places: KeptPlaces = field(default_factory=KeptPlaces)
    reserved_until_s: float = -math.inf
    seen_s: float | None = None
    _lanes: dict[Urgency, _Lane] = field(default_factory=lambda: {urgency: _Lane() for urgency in Urgency})
    _positions: dict[WaitingPlace, Position] = field(default_factory=dict)
    _counted_s: float = -math.inf

    def enter(self, request: Any, now_s: float, urgency: Urgency = Urgency.TARGETS) -> WaitingPlace:
        """Let a request wait.

        Args:
            request: An object that ``still_waiting`` finds again in ``place.request``.
            now_s: The present time, in seconds.
            urgency: How urgently it is served.
        """
        self.pass_time(now_s)
        place = WaitingPlace(request, self, urgency)
        self.waiting[place] = None
        self._lanes[urgency].waiting += 1
        self.count(1)
        return place

    def move(self, place: WaitingPlace, urgency: Urgency, now_s: float) -> None:
        """Move a waiting request to another lane."""
        if place in self.waiting:
            self.pass_time(now_s)
            self._lanes[place.urgency].waiting -= 1
            self._lanes[urgency].waiting += 1
        place.urgency = urgency

    def remove(self, place: WaitingPlace) -> None:
        """Free the place of a request."""
        del self.waiting[place]
        self._positions.pop(place, None)
        self._lanes[place.urgency].waiting -= 1
        self.count(-1)

    def start(self, urgency: Urgency) -> None:
        """Record that a request of this urgency has got its first token."""
        self._lanes[urgency].rate.start()
        self.rate_lately.start()

    def ahead_of(self, urgency: Urgency, now_s: float) -> QueueAhead:
        """Return what waits ahead of a request that arrives now.

        Until a request of this urgency has started, the starts of all requests of the queue stand in.
        """
        interval_s = self.interval_s(urgency, now_s)
        if interval_s is None:
            return QueueAhead(len(self.waiting), len(self.waiting), self.rate_lately.interval_s)
        return QueueAhead(len(self.waiting), self._lanes[urgency].waiting, interval_s)

    def position(self, place: WaitingPlace, now_s: float) -> Position | None:
        """Return the place of a request that waits; ``None`` if it does not wait here.

        Places are counted no more often than a class is swept, since every client that waits may ask.
        """
        if place not in self.waiting:
            return None
        if place not in self._positions or now_s - self._counted_s >= sweep_interval_s(len(self.waiting)):
            self._counted_s = now_s
            self._positions, in_lanes = {}, dict.fromkeys(Urgency, 0)
            for number, one in enumerate(self.waiting, 1):
                in_lanes[one.urgency] += 1
                self._positions[one] = Position(number, in_lanes[one.urgency])
        return self._positions[place]

    def interval_s(self, urgency: Urgency, now_s: float) -> float | None:
        """Return the expected seconds from one start of a lane to the next while any waits; ``None`` if unknown."""
        self.pass_time(now_s)
        return self._lanes[urgency].rate.interval_s

    def has_kept_places(self) -> bool:
        """Return whether there are clients that were refused and may retry."""
        return len(self.kept_places) > 0

    def kept(self, key: Hashable | None, cap: int, now_s: float) -> int:
        """Return how many of ``cap`` places are kept from a request of this key for clients that were refused.

        No place is kept from a client that has a kept place. At most half of the places are kept, so that the
        engine has requests to start even if no client retries.
        """
        places = self.kept_places
        places.pass_time(now_s)
        if not len(places) or (key is not None and places.claim(key)):
            return 0
        return min(places.kept, cap // 2)

    def came(self, key: Hashable | None, now_s: float) -> None:
        """Record that a request of this key came and needs no place any more; a place kept for it is released."""
        if key is not None:
            self.kept_places.pass_time(now_s)
            self.kept_places.fulfil(key)

    def pass_time(self, now_s: float) -> None:
        """Credit the time since the last event to the rates of which a request waited in it."""
        if self.waiting and self.seen_s is not None and now_s > self.seen_s:
            elapsed_s = now_s - self.seen_s
            self.rate_lately.pass_time(elapsed_s)
            for lane in self._lanes.values():
                if lane.waiting:
                    lane.rate.pass_time(elapsed_s)
        self.seen_s = now_s

    def reserve_place(self, now_s: float, after_s: float = 0.0, key: Hashable | None = None) -> int:
        """Return the whole seconds, from 1 to 30, until the next unreserved place is predicted to be free.

        Refused clients thus queue virtually: the n-th is asked to retry for the n-th place, which keeps them from
        coming back all at once. Places beyond the longest wait are neither kept nor reserved: their clients are asked
        to wait that long.

        Args:
            now_s: The present time, in seconds.
            after_s: Seconds for which no place can be free, for a client that needs a shorter queue.
            key: Key of the request, by which it is known when it is sent again; its place is kept then.
        """
        self.kept_places.pass_time(now_s)
        interval_s = self.rate_lately.interval_now_s
        if interval_s is None:
            return DEFAULT_RETRY_AFTER_S
        places = self.kept_places
        if key is not None and places.claim(key):  # it came in time: the engine has become slower
            seconds = retry_after_s(interval_s * places.kept)
            places.renew(key, now_s + seconds)
            return seconds
        horizon_s = now_s + MAX_RETRY_AFTER_S
        # Where the engine has become slower, places become free later than they were predicted to.
        earliest_s = now_s + max(after_s, interval_s * len(places))
        reserved_s = min(max(self.reserved_until_s, earliest_s), horizon_s)
        free_s = reserved_s + interval_s
        seconds = retry_after_s(min(free_s, horizon_s) - now_s)
        if key is None or places.may_make(key):
            self.reserved_until_s = min(free_s, horizon_s)
            if key is not None and free_s <= horizon_s:
                places.make(key, free_s, now_s + seconds)
        return seconds
