"""Admission by a cap on waiting requests per class, and when the refused should come again.

A request waits from :meth:`Admission.admit` until its ticket is told that the first token is out, or that the request
ended before. Who keeps the tickets may not see every first token (a reply that is not streamed is seen when it is
complete), so a class at its cap is swept before anybody is refused: the keeper is asked which of its requests still
wait.

Guarantees: no class ever has more than its cap waiting; below the cap nobody is refused; a ticket counts once, however
often it is released; memory is bounded by the caps. Deterministic: time is an argument, in epoch seconds. Not for
several threads.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sloserve.core.errors import ConfigError, QueueFull

MIN_RETRY_AFTER_S = 1
MAX_RETRY_AFTER_S = 30
"""Longest wait a client is told to make; conventions of the ecosystem ask for at most 30 s."""

DEFAULT_RETRY_AFTER_S = 5
"""What a client is told while no request of its class was ever seen to start: the queue's speed is unknown."""

SWEEP_INTERVAL_S = 0.02
"""A class is swept at most this often: a sweep looks at every waiting request, and an overload refuses thousands of
times per second. A place is thus found free at most this late."""

MEMORY_S = 30.0
"""Time constant of the observed rate, in seconds during which somebody waited: as far back as it predicts ahead."""


class Admission:
    """Answers one question: may this request wait, and if not, when is a place free?"""

    def __init__(self, max_waiting: Mapping[str, int], still_waiting: Callable[["Ticket"], bool]) -> None:
        """
        Args:
            max_waiting: cap of waiting requests for each class, at least 1.
            still_waiting: whether a ticket's request has yet to emit its first token; must not call back.

        Raises: ConfigError for a cap below 1.
        """
        for name, cap in max_waiting.items():
            if cap < 1:
                raise ConfigError(f"admission.max_waiting of class {name!r}: {cap} is not a whole number from 1")
        self._still_waiting = still_waiting
        self._queues = {name: _ClassQueue(name, cap) for name, cap in max_waiting.items()}

    def admit(self, class_name: str, request: Any, now_s: float) -> "Ticket":
        """Books a request as waiting.

        request: what ``still_waiting`` finds again in ``ticket.request``.

        Raises: QueueFull where the class is at its cap. KeyError for an unknown class.
        """
        queue = self._queues[class_name]
        queue.pass_time(now_s)
        if len(queue.waiting) >= queue.cap and queue.may_sweep(now_s):
            for ticket in [t for t in queue.waiting if not self._still_waiting(t)]:
                ticket.started(now_s)
        if len(queue.waiting) >= queue.cap:
            retry_after_s = queue.promise_place(now_s)
            raise QueueFull(
                f"queue full: {len(queue.waiting)} of {queue.cap} requests of class {class_name!r} wait; "
                f"retry in {retry_after_s} s or raise admission.max_waiting",
                retry_after_s,
                class_name,
            )
        ticket = Ticket(request, queue)
        queue.waiting[ticket] = None
        return ticket

    def waiting(self, class_name: str) -> int:
        """How many requests of the class are booked as waiting."""
        return len(self._queues[class_name].waiting)


class Ticket:
    """One admitted request's place among the waiting.

    Released once; every further release changes nothing, so that ``left`` may be called at the end of every request.
    """

    __slots__ = ("request", "_queue")

    def __init__(self, request: Any, queue: "_ClassQueue") -> None:
        self.request = request
        self._queue = queue

    def started(self, now_s: float) -> None:
        """The first token is out: the place is free, and counts towards the rate at which the queue drains."""
        if self._release(now_s):
            self._queue.rate.starts += 1.0

    def left(self, now_s: float) -> None:
        """The request ended. Before its first token: its place is free, which says nothing about the queue's speed."""
        self._release(now_s)

    def _release(self, now_s: float) -> bool:
        if self not in self._queue.waiting:
            return False
        self._queue.pass_time(now_s)
        del self._queue.waiting[self]
        return True


@dataclass(slots=True)
class _DrainRate:
    """Requests started per second of time during which somebody waited, older time weighing exponentially less.

    Idle time does not count: a queue that is empty because nobody came says nothing about how fast it would drain.
    """

    starts: float = 0.0
    waited_s: float = 0.0

    def pass_time(self, elapsed_s: float) -> None:
        keep = math.exp(-elapsed_s / MEMORY_S)
        self.starts *= keep
        self.waited_s = self.waited_s * keep + MEMORY_S * (1.0 - keep)

    @property
    def interval_s(self) -> float | None:
        """Expected seconds from one start to the next; ``None`` where none was observed."""
        return self.waited_s / self.starts if self.starts > 0.0 and self.waited_s > 0.0 else None


@dataclass(slots=True)
class _ClassQueue:
    """One class: its tickets in order of admission, its rate, and the places promised to those it refused.

    promised_until_s: when the last place is predicted to be free that a refused client was told to come for.
    """

    name: str
    cap: int
    waiting: dict[Ticket, None] = field(default_factory=dict)
    rate: _DrainRate = field(default_factory=_DrainRate)
    promised_until_s: float = -math.inf
    seen_s: float | None = None
    swept_s: float | None = None

    def pass_time(self, now_s: float) -> None:
        """Credits the time since the last event to the rate if somebody waited in it; a clock set back counts as 0."""
        if self.waiting and self.seen_s is not None and now_s > self.seen_s:
            self.rate.pass_time(now_s - self.seen_s)
        self.seen_s = now_s

    def may_sweep(self, now_s: float) -> bool:
        """Whether the last sweep is long enough ago; if so, now is the last sweep."""
        if self.swept_s is not None and 0.0 <= now_s - self.swept_s < SWEEP_INTERVAL_S:
            return False
        self.swept_s = now_s
        return True

    def promise_place(self, now_s: float) -> int:
        """Whole seconds until the next place that nobody was promised yet is predicted to be free.

        Refused clients thus queue virtually: the n-th is told to come for the n-th place, which keeps them from coming
        back all at once. Places beyond the longest wait are not kept: those clients are told that wait.
        """
        interval_s = self.rate.interval_s
        if interval_s is None:
            return DEFAULT_RETRY_AFTER_S
        horizon_s = now_s + MAX_RETRY_AFTER_S
        # A clock set back leaves promises in the far future; none may lie beyond the horizon.
        promised_s = min(max(self.promised_until_s, now_s), horizon_s)
        self.promised_until_s = min(promised_s + interval_s, horizon_s)
        # Epoch seconds are doubles, 2e-7 s apart: without the microsecond a whole second could become the next one.
        seconds = math.ceil(self.promised_until_s - now_s - 1e-6)
        return min(max(seconds, MIN_RETRY_AFTER_S), MAX_RETRY_AFTER_S)
