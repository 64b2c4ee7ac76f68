"""The waiting requests of each class in this process, and the number of them in the other processes.

The keeper of the requests may not see every first token (an output that is not streamed is seen when it is complete),
so a class can be swept: the keeper is asked which of its requests still wait.

Where several processes admit requests to one engine, each has a backlog of its own, and :class:`Elsewhere` says how
many wait in the others. Rates are of a backlog's own requests: each process has its share of the engine's speed as it
has its share of the queue.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from sloserve.core.tenants import TenantTable, has_share_left
from sloserve.scheduler.admission.waiting_queue import Queue, WaitingPlace, sweep_interval_s


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
        still_waiting: Callable[[WaitingPlace], bool],
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

    def queue_of(self, class_name: str, tenant: str | None = None) -> Queue:
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
        """Return how many requests of the class are counted as waiting in this process."""
        return self._classes[class_name].waiting

    def waiting_anywhere(self, class_name: str) -> int:
        """Return how many requests of the class are counted as waiting in all processes."""
        return self._classes[class_name].waiting_anywhere

    @property
    def all_waiting(self) -> int:
        """Number of requests that are counted as waiting in this process, of all classes."""
        return sum(of_class.waiting for of_class in self._classes.values())

    @property
    def is_empty(self) -> bool:
        """Whether no request waits, in no class and in no process."""
        return not any(of_class.waiting_anywhere for of_class in self._classes.values())

    def has_share_left(self, class_name: str, queue: Queue, places: int) -> bool:
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
    queues: dict[int, Queue] = field(default_factory=dict)
    waiting: int = 0
    swept_s: float | None = None

    def queue(self, tenant: int) -> Queue:
        found = self.queues.get(tenant)
        if found is None:
            found = self.queues[tenant] = Queue(self.count, tenant)
        return found

    def count(self, more: int) -> None:
        self.waiting += more
        self.elsewhere.set_waiting(self.class_id, self.waiting)

    @property
    def waiting_anywhere(self) -> int:
        return self.waiting + self.elsewhere.waiting(self.class_id)

    def to_look_at(self, now_s: float) -> list[WaitingPlace]:
        """Return all places, unless they were looked at just now; then none."""
        if self.swept_s is not None and now_s - self.swept_s < sweep_interval_s(self.waiting):
            return []
        self.swept_s = now_s
        return [place for queue in self.queues.values() for place in queue.waiting]
