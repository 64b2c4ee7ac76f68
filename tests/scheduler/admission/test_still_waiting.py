"""What is known of a request while it waits: its place, and the time that is left until its first token."""

import heapq
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.core.finished import Latency
from sloserve.core.predicted import LEVELS
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.core.tenants import TenantTable
from sloserve.scheduler.admission.admission import Admission
from sloserve.scheduler.admission.prediction import ArrivingRequest
from sloserve.scheduler.admission.ticket import Ticket

T0 = 1_000.0


class Queue:
    """An admission, and tickets of requests that wait."""

    def __init__(self, tenants: TenantTable | None = None) -> None:
        self.started: set[Any] = set()
        self.admission = Admission(
            ("interactive", "batch"), lambda place: place.request not in self.started, tenants=tenants
        )

    def admit(self, now_s: float, slo_class: str = "batch", tenant: str | None = None, request: Any = None) -> Ticket:
        new = ArrivingRequest(DEFAULT_CLASSES.slo(slo_class, Targets()), now_s, 100, tenant=tenant)
        return self.admission.admit(new, self.admission.forecast(new, now_s), request, now_s)

    def place(self, ticket: Ticket, now_s: float) -> int | None:
        found = self.admission.still_waiting(ticket, now_s)
        return None if found is None else found.position


def test_the_place_is_that_among_the_waiting_of_its_class() -> None:
    queue = Queue()
    tickets = [queue.admit(T0) for _ in range(4)]
    other = queue.admit(T0, "interactive")
    assert [queue.place(one, T0) for one in tickets] == [1, 2, 3, 4] and queue.place(other, T0) == 1
    tickets[1].started(T0 + 1)
    tickets[0].ended(None, 0, T0 + 1)
    assert [queue.place(one, T0 + 1) for one in tickets] == [None, None, 1, 2]


def test_where_tenants_have_shares_the_place_is_among_the_tenants_own() -> None:
    queue = Queue(TenantTable({}))
    for _ in range(3):
        queue.admit(T0, tenant="acme")
    assert queue.place(queue.admit(T0, tenant="other"), T0) == 1


def test_a_start_that_was_not_seen_moves_the_others_on_once_the_class_is_swept() -> None:
    queue = Queue()
    first, second = queue.admit(T0, request="first"), queue.admit(T0, request="second")
    assert queue.place(second, T0) == 2
    queue.started.add("first")
    assert queue.place(second, T0 + 1) == 1 and queue.place(first, T0 + 1) is None


@pytest.mark.slow
def test_places_are_counted_now_and_then_however_many_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 3,000 clients asks every second: counting anew for each would be nine million steps a second."""
    queue = Queue()
    tickets = [queue.admit(T0) for _ in range(3_000)]
    counted = Counter[str]()

    def counting(items: Any, start: int) -> Any:
        counted["all"] += 1
        yield from zip(range(start, start + 10**9), items, strict=False)

    monkeypatch.setattr("sloserve.scheduler.admission.waiting_queue.enumerate", counting, raising=False)
    for number, ticket in enumerate(tickets):
        queue.place(ticket, T0 + number / 3_000)
    assert counted["all"] <= 4


@given(st.lists(st.tuples(st.sampled_from(["admit", "start", "leave", "ask"]), st.floats(0, 0.1)), max_size=60))
def test_nobody_has_a_place_before_the_first_or_behind_the_last(events: list[tuple[str, float]]) -> None:
    queue, waiting, now_s = Queue(), list[Ticket](), T0
    for event, after_s in events:
        now_s += after_s
        if event == "admit":
            waiting.append(queue.admit(now_s))
        elif event == "start" and waiting:
            waiting.pop(0).started(now_s)
        elif event == "leave" and waiting:
            waiting.pop().ended(None, 0, now_s)
        else:
            found = [queue.place(one, now_s + 1.0) for one in waiting]
            assert found == list(range(1, len(waiting) + 1))


class Engine:
    """Requests at random times, for an engine that serves some at a time; samples what is said as they wait.

    Args:
        load: Arrivals per second.
        slots: Requests that run at once, for 4 s each in the median.
    """

    def __init__(self, load: float, slots: int, seed: int) -> None:
        self._queue, self._slots, self._chance = Queue(), slots, np.random.default_rng(seed)
        self._waiting: list[tuple[float, Ticket]] = []
        self.asked: list[tuple[Ticket, float, Any]] = []
        self.first_s: dict[Ticket, float] = {}
        self._events: list[Any] = []
        arrivals_s = T0 + np.cumsum(self._chance.exponential(1.0 / load, 1_500))
        for at_s in arrivals_s:
            self._at(float(at_s), "comes", None)
        for at_s in np.arange(T0, arrivals_s[-1]):
            self._at(float(at_s), "asks", None)

    def _at(self, at_s: float, what: str, given: Any) -> None:
        heapq.heappush(self._events, (at_s, len(self._events) + self._chance.random(), what, given))

    def run(self) -> None:
        free = self._slots
        while self._events:
            now_s, _, what, given = heapq.heappop(self._events)
            if what == "comes":
                self._waiting.append((now_s, self._queue.admit(now_s)))
            elif what == "asks":
                for _, ticket in self._waiting:
                    found = self._queue.admission.still_waiting(ticket, now_s)
                    if found is not None and found.remaining is not None:
                        self.asked.append((ticket, now_s, found))
            elif what == "first":
                began_s, ticket = given
                ticket.started(now_s)
                self.first_s[ticket] = now_s
                tokens = max(int(self._chance.lognormal(np.log(200.0), 0.6)), 2)
                self._at(now_s + 0.02 * (tokens - 1), "ends", (began_s, ticket, now_s - began_s, tokens))
            else:
                began_s, ticket, ttft_s, tokens = given
                ticket.ended(Latency(ttft_s, 0.02, now_s - began_s), tokens, now_s)
                free += 1
            while free and self._waiting:
                free -= 1
                self._at(now_s + 0.05 + 0.05 * self._chance.random(), "first", self._waiting.pop(0))


@pytest.mark.slow
@pytest.mark.parametrize(("load", "slots"), [(8.0, 40), (8.4, 40), (0.7, 4)])
def test_the_rest_of_the_wait_is_as_sure_as_it_says(load: float, slots: int) -> None:
    """Of the prediction at admission, less the time that has passed, the median is off by a third more and over."""
    engine = Engine(load, slots, seed=1)
    engine.run()
    assert len(engine.asked) > 500
    left_s = np.array([engine.first_s[ticket] - at_s for ticket, at_s, _ in engine.asked])
    said = np.array([found.remaining.each for _, _, found in engine.asked])
    assert (said > 0.0).all() and (np.diff(said, axis=1) >= 0.0).all()
    kept = (left_s[:, None] <= said).mean(axis=0)
    assert 0.35 <= kept[0] <= 0.75, kept
    for level, share in zip(LEVELS[1:], kept[1:], strict=True):
        assert share >= level - 0.05, kept
    at_admission = [ticket.forecast.ttft for ticket, _, _ in engine.asked]
    known = np.array([one is not None and one.prediction.quantiles is not None for one in at_admission])
    assert known.sum() > 500
    before_s = np.array(
        [
            max(one.prediction.quantiles[LEVELS[0]] + ticket.new.arrival_s - at_s, 0.0)
            for (ticket, at_s, _), one in zip(engine.asked, at_admission, strict=True)
            if one is not None and one.prediction.quantiles is not None
        ]
    )
    assert np.abs(said[known, 0] - left_s[known]).mean() < 0.8 * np.abs(before_s - left_s[known]).mean()


def test_until_enough_was_seen_there_is_a_place_and_no_time() -> None:
    queue = Queue()
    found = queue.admission.still_waiting(queue.admit(T0), T0)
    assert found == (1, None)
