"""Waiting requests of each class, the rate at which they start, and the time at which refused ones should retry.

The time to retry is a reservation (:mod:`sloserve.scheduler.admission.kept_places`): the next place that is not
reserved yet, at the rate of the latest starts. Neither a profile nor a nominal step time has a part in it, only what
the engine did.

A request waits from :meth:`Backlog.enter` until its place is notified that the first token is out, or that the request
ended before. The keeper of the places may not see every first token (an output that is not streamed is seen when it is
complete), so a class can be swept: the keeper is asked which of its requests still wait.

Requests of one queue that are equally urgent are a lane (:mod:`sloserve.scheduler.admission.urgency`), with a rate of
its own for predictions. The time to retry goes by all starts of the queue, since any of them makes room.

Where several processes admit requests to one engine, each has a backlog of its own, and :class:`Elsewhere` says how
many wait in the others. Rates are of a backlog's own requests: each process has its share of the engine's speed as it
has its share of the queue.

Guarantees: a place counts once, however often it is released. The module is deterministic: time is an argument, in
seconds of a clock that is never set. It must be used from one thread alone.
"""

import math
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from sloserve.core.tenants import TenantTable, has_share_left
from sloserve.scheduler.admission.drain_rates import MEMORY_STARTS, DrainRate, SteadyRate
from sloserve.scheduler.admission.kept_places import KeptPlaces
from sloserve.scheduler.admission.urgency import Urgency

MIN_RETRY_AFTER_S = 1
MAX_RETRY_AFTER_S = 30
"""Longest wait in seconds that a refusal asks for; conventions of the ecosystem ask for at most 30 s."""

DEFAULT_RETRY_AFTER_S = 5
"""Wait in seconds that a refusal asks for while no request of its class was ever seen to start.

The queue's speed is unknown then.
"""

SWEEP_INTERVAL_S = 0.02
SWEEP_INTERVAL_S_PER_WAITING = 1e-4
"""Seconds between two sweeps of a class, for each waiting request.

A sweep looks at every waiting request, a microsecond each, and an overload asks thousands of times per second. A place
is thus found free at most this late.
"""


def _sweep_interval_s(waiting: int) -> float:
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


class Elsewhere(Protocol):
    """The other processes that admit requests to the same engine. Classes go by their place in the table."""

    @property
    def processes(self) -> int:
        """How many processes admit requests to the engine, this one counted."""
        ...

    def set_waiting(self, class_id: int, waiting: int) -> None:
        """Set how many requests of the class wait in this process."""
        ...

    def waiting(self, class_id: int) -> int:
        """Return how many requests of the class wait in the other processes."""
        ...


class Nowhere:
    """Stands for other processes where there are none."""

    processes = 1

    def set_waiting(self, class_id: int, waiting: int) -> None:
        pass

    def waiting(self, class_id: int) -> int:
        return 0


class Backlog:
    """The waiting requests of each class, and the time from one start to the next.

    Where tenants have shares, the requests of each tenant in a class are a queue of their own, with a rate and kept
    places of their own. Otherwise all requests of a class are one queue, which belongs to tenant 0.
    """

    def __init__(
        self,
        class_names: Iterable[str],
        still_waiting: Callable[["WaitingPlace"], bool],
        elsewhere: Elsewhere | None = None,
        tenants: TenantTable | None = None,
    ) -> None:
        """Create a backlog without requests.

        Args:
            class_names: Names of the service classes.
            still_waiting: Function that returns whether a place's request has yet to emit its first token; it must not
                call back.
            elsewhere: Other processes that admit requests to this engine; ``None`` for none.
            tenants: The tenants and their weights; ``None`` where tenants have no shares.
        """
        self._still_waiting = still_waiting
        self._tenants = tenants
        self._elsewhere = elsewhere or Nowhere()
        self._classes = {name: _WaitingClass(i, self._elsewhere) for i, name in enumerate(class_names)}

    def queue_of(self, class_name: str, tenant: str | None = None) -> "Queue":
        """Return the queue that a tenant's requests of a class join.

        Raises: KeyError for an unknown class.
        """
        return self._classes[class_name].queue(0 if self._tenants is None else self._tenants.number_of(tenant))

    @property
    def by_tenant(self) -> bool:
        """Whether each tenant has a queue of its own."""
        return self._tenants is not None

    def sweep(self, class_name: str, now_s: float) -> None:
        """Ask the keeper which requests still wait, unless it was asked just now."""
        for place in self._classes[class_name].to_look_at(now_s):
            if not self._still_waiting(place):
                place.started(now_s)

    def sweep_all(self, now_s: float) -> bool:
        """Sweep every class; return whether any request still waits."""
        for name in self._classes:
            self.sweep(name, now_s)
        return any(of_class.waiting for of_class in self._classes.values())

    def waiting(self, class_name: str) -> int:
        """Return how many requests of the class are booked as waiting in this process."""
        return self._classes[class_name].waiting

    def waiting_anywhere(self, class_name: str) -> int:
        """Return how many requests of the class are booked as waiting in all processes."""
        return self._classes[class_name].waiting_anywhere

    @property
    def all_waiting(self) -> int:
        """Number of requests that are booked as waiting in this process, of all classes."""
        return sum(of_class.waiting for of_class in self._classes.values())

    @property
    def is_empty(self) -> bool:
        """Whether no request waits, in no class and in no process."""
        return not any(of_class.waiting_anywhere for of_class in self._classes.values())

    def has_share_left(self, class_name: str, queue: "Queue", places: int) -> bool:
        """Return whether a tenant has no more waiting requests than its share of the places of a class.

        Requests of other processes are not known by tenant, so that each of several processes divides its part of the
        places among the tenants that wait there, see :func:`~sloserve.core.tenants.has_share_left`.

        Args:
            class_name: Name of the class.
            queue: The tenant's queue, in which the request has been entered.
            places: Waiting requests of the class that may be, without places that are kept from the request.
        """
        if self._tenants is None:
            return False
        weights = self._tenants.weights
        numbers = [number for number, one in self._classes[class_name].queues.items() if one.waiting]
        mine = places / self._elsewhere.processes
        return has_share_left(len(queue.waiting), float(weights[queue.tenant]), float(weights[numbers].sum()), mine)


@dataclass(slots=True)
class _WaitingClass:
    """One class: the queues of its tenants by their numbers, and how many requests wait in all of them."""

    class_id: int
    elsewhere: Elsewhere
    queues: dict[int, "Queue"] = field(default_factory=dict)
    waiting: int = 0
    swept_s: float | None = None

    def queue(self, tenant: int) -> "Queue":
        found = self.queues.get(tenant)
        if found is None:
            found = self.queues[tenant] = Queue(self, tenant)
        return found

    def count(self, more: int) -> None:
        self.waiting += more
        self.elsewhere.set_waiting(self.class_id, self.waiting)

    @property
    def waiting_anywhere(self) -> int:
        return self.waiting + self.elsewhere.waiting(self.class_id)

    def to_look_at(self, now_s: float) -> list["WaitingPlace"]:
        """Return all places, unless they were looked at just now; then none."""
        if self.swept_s is not None and now_s - self.swept_s < _sweep_interval_s(self.waiting):
            return []
        self.swept_s = now_s
        return [place for queue in self.queues.values() for place in queue.waiting]


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
    """

    of_class: _WaitingClass
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
        """Book a request as waiting.

        Args:
            request: An object that ``still_waiting`` finds again in ``place.request``.
            now_s: The present time, in seconds.
            urgency: How urgently it is served.
        """
        self.pass_time(now_s)
        place = WaitingPlace(request, self, urgency)
        self.waiting[place] = None
        self._lanes[urgency].waiting += 1
        self.of_class.count(1)
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
        self.of_class.count(-1)

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
        if place not in self._positions or now_s - self._counted_s >= _sweep_interval_s(len(self.waiting)):
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


def retry_after_s(seconds: float) -> int:
    """Return the whole seconds of Retry-After for a time to wait: rounded up, between the least and the most."""
    # Times are doubles, of which epoch seconds lie 2e-7 s apart: a whole second shall not become the next one.
    return min(max(math.ceil(seconds - 1e-6), MIN_RETRY_AFTER_S), MAX_RETRY_AFTER_S)
