"""An engine under load in virtual time, behind an admission with a cap, and clients that come when they are told to."""

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from sloserve.core.errors import QueueFull
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.scheduler.admission.admission import Admission
from sloserve.scheduler.admission.prediction import ArrivingRequest
from sloserve.scheduler.admission.retry_after import MAX_RETRY_AFTER_S
from sloserve.scheduler.admission.ticket import Ticket

SLOTS: Final = 8
"""Requests that run at once, for a second each in the mean: as many a second as the engine completes."""
CAP: Final = 32
T0: Final = 1_700_000_000.0
_PREFILL_S: Final = 0.05
_PATIENCE_S: Final = 60.0


@dataclass
class Seen:
    """What became of clients. promised: that came again after less than the longest wait, in time."""

    completed: int = 0
    refused: int = 0
    promised: int = 0
    promised_in: int = 0
    waited_most: int = 0


class Overload:
    """load: arrivals in parts of what the engine completes, by time. slower: of a step, by time."""

    def __init__(
        self,
        load: Callable[[float], float],
        slower: Callable[[float], float] = lambda s: 1.0,
        *,
        for_s: float = 60.0,
        polite: float = 1.0,
    ) -> None:
        self._slower, self._for_s, self._polite = slower, for_s, polite
        self._chance, self._number = np.random.default_rng(0), itertools.count()
        self._admission = Admission(("batch",), lambda place: True, caps={"batch": CAP})
        self._events: list[tuple[float, int, Callable[..., None], Any]] = []
        self._waiting: list[Ticket] = []
        self._running = 0
        self.seen = Seen()
        at_s = 0.0
        while at_s < for_s:
            at_s += self._chance.exponential(1.0 / (load(at_s) * SLOTS))
            self._at(at_s, self._comes, next(self._number), at_s, None)

    def run(self) -> Seen:
        while self._events:
            at_s, _, call, given = heapq.heappop(self._events)
            call(at_s, *given)
        return self.seen

    def _at(self, at_s: float, call: Callable[..., None], *given: Any) -> None:
        heapq.heappush(self._events, (at_s, next(self._number), call, given))

    def _comes(self, now_s: float, key: int, born_s: float, told_s: int | None) -> None:
        new = ArrivingRequest(DEFAULT_CLASSES.slo("batch", Targets()), T0 + now_s, key=lambda: key)
        promised = told_s is not None and told_s < MAX_RETRY_AFTER_S
        self.seen.promised += promised
        try:
            ticket = self._admission.admit(new, self._admission.forecast(new, T0 + now_s), None, T0 + now_s)
        except QueueFull as error:
            self.seen.refused += 1
            wait_s = error.retry_after_s
            comes_s = now_s + wait_s + self._chance.uniform(0.0, 0.1)
            is_polite = told_s is not None or self._chance.random() < self._polite
            if is_polite and comes_s < min(born_s + _PATIENCE_S, self._for_s):
                self._at(comes_s, self._comes, key, born_s, wait_s)
            return
        self.seen.promised_in += promised
        self._waiting.append(ticket)
        self.seen.waited_most = max(self.seen.waited_most, len(self._waiting))
        self._start(now_s)

    def _start(self, now_s: float) -> None:
        while self._running < SLOTS and self._waiting:
            ticket = self._waiting.pop(0)
            self._running += 1
            self._at(now_s + _PREFILL_S, lambda at_s, ticket=ticket: ticket.started(T0 + at_s))
            self._at(now_s + self._slower(now_s) * self._chance.uniform(0.5, 1.5), self._ends)

    def _ends(self, now_s: float) -> None:
        self._running -= 1
        self.seen.completed += now_s <= self._for_s
        self._start(now_s)
