"""Requests of one class that are not equally urgent: each kind is predicted by what became of its own kind."""

import heapq
from dataclasses import dataclass, field

import numpy as np
import pytest

from sloserve.core.finished import Latency
from sloserve.core.predicted import LEVELS
from sloserve.core.promises import PromiseWish
from sloserve.core.slo import SLO, ClassTable, SLOClass, Targets
from sloserve.scheduler.admission.admission import Admission
from sloserve.scheduler.admission.prediction import ArrivingRequest
from sloserve.scheduler.admission.ticket import Ticket
from sloserve.scheduler.admission.urgency import Urgency

CLASSES = ClassTable({"chat": SLOClass("chat", 0)}, "chat")
WISH = PromiseWish(0.9, falls_back=True)
SERVICE_S = 0.1
TARGETS = Targets(ttft_s=20.0)
ORDER = tuple(Urgency)


def request(now_s: float, asks: Urgency) -> ArrivingRequest:
    targets = Targets() if asks is Urgency.NO_TARGETS else TARGETS
    return ArrivingRequest(SLO(CLASSES["chat"], targets, WISH if asks is Urgency.PROMISED else None), now_s, 100)


@dataclass
class MostUrgentFirst:
    """A server of one request at a time, the most urgent first, each within ``SERVICE_S`` give or take a fifth."""

    admission: Admission = field(default_factory=lambda: Admission(("chat",), lambda place: True))
    busy_until_s: float = 0.0
    queue: list[tuple[int, int, Ticket]] = field(default_factory=list)
    latency_s: dict[Ticket, float] = field(default_factory=dict)
    offered: int = 0
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))
    serves: Ticket | None = None

    def offer(self, now_s: float, asks: Urgency) -> Ticket:
        self.until(now_s)
        new = request(now_s, asks)
        ticket = self.admission.admit(new, self.admission.forecast(new, now_s), None, now_s)
        self.offered += 1
        heapq.heappush(self.queue, (ORDER.index(ticket.forecast.urgency), self.offered, ticket))
        self.until(now_s)
        return ticket

    def until(self, now_s: float) -> None:
        while self.busy_until_s <= now_s:
            if self.serves is not None:
                self.latency_s[self.serves] = taken_s = self.busy_until_s - self.serves.new.arrival_s
                self.serves.started(self.busy_until_s)
                self.serves.ended(Latency(taken_s, 0.0, taken_s), 1, self.busy_until_s)
                self.serves = None
            if not self.queue:
                return
            _, _, self.serves = heapq.heappop(self.queue)
            begins_s = max(self.busy_until_s, self.serves.new.arrival_s)
            self.busy_until_s = begins_s + SERVICE_S * float(self.rng.uniform(0.8, 1.2))


def served(load: float, kinds: tuple[Urgency, ...], count: int = 6000) -> list[tuple[Urgency, list[bool]]]:
    """Return, for each request after the first third, its urgency and which quantiles of its TTFT were kept."""
    server, rng, now_s = MostUrgentFirst(), np.random.default_rng(0), 0.0
    tickets = []
    for _ in range(count):
        now_s += float(rng.exponential(SERVICE_S / load))
        tickets.append(server.offer(now_s, kinds[int(rng.integers(len(kinds)))]))
    server.until(np.inf)
    found = []
    for ticket in tickets[count // 3 :]:
        predicted = ticket.forecast.predicted
        assert predicted is not None and predicted.ttft is not None
        found.append(
            (ticket.forecast.urgency, [server.latency_s[ticket] <= limit_s for limit_s in predicted.ttft.each])
        )
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [(Urgency.TARGETS, Urgency.NO_TARGETS), tuple(Urgency)])
def test_each_kind_keeps_its_quantiles_near_saturation(kinds: tuple[Urgency, ...]) -> None:
    found = served(0.9, kinds)
    for kind in kinds:
        kept = np.array([each for urgency, each in found if urgency is kind])
        assert len(kept) > 500
        assert kept.mean(axis=0) == pytest.approx(LEVELS, abs=0.06)


def test_what_is_predicted_for_the_urgent_does_not_depend_on_how_many_others_wait() -> None:
    server = MostUrgentFirst()
    for i in range(60):
        server.offer(i * 1.0, ORDER[1 + i % 2])
    server.until(60.0)
    alone = server.admission.forecast(request(60.0, Urgency.TARGETS), 60.0)
    for _ in range(50):
        server.offer(60.0, Urgency.NO_TARGETS)
    behind = [server.admission.forecast(request(60.0, asks), 60.0) for asks in (Urgency.TARGETS, Urgency.NO_TARGETS)]
    assert [one.ahead for one in behind] == [50, 50] and alone.ahead == 0
    assert alone.ttft is not None and behind[0].ttft is not None and behind[1].ttft is not None
    assert behind[0].ttft.prediction.predicted == pytest.approx(alone.ttft.prediction.predicted)
    assert behind[1].ttft.prediction.predicted > 40 * SERVICE_S


def test_a_kind_without_outcomes_has_the_quantiles_of_the_kind_with_most() -> None:
    server = MostUrgentFirst()
    for i in range(40):
        server.offer(i * 1.0, Urgency.NO_TARGETS)
    server.until(40.0)
    first = server.admission.forecast(request(40.0, Urgency.TARGETS), 40.0)
    other = server.admission.forecast(request(40.0, Urgency.NO_TARGETS), 40.0)
    assert first.ttft is not None and first.ttft.prediction.quantiles is None
    assert first.predicted is not None and first.predicted == other.predicted


def test_a_promise_gives_a_prediction_of_its_own_and_a_place_in_its_own_lane() -> None:
    server = MostUrgentFirst()
    for i in range(200):
        server.offer(i * 1.0, Urgency.TARGETS)
    server.until(200.0)
    for _ in range(30):
        server.offer(200.0, Urgency.TARGETS)
    without = server.admission.forecast(request(200.0, Urgency.PROMISED), 200.0)
    ticket = server.offer(200.0, Urgency.PROMISED)
    assert ticket.promised is not None and ticket.forecast.urgency is Urgency.PROMISED
    assert ticket.forecast.ttft is not None and without.ttft is not None
    assert ticket.forecast.ttft.prediction.predicted <= without.ttft.prediction.predicted
    still = server.admission.still_waiting(ticket, 200.0)
    position = ticket.place.position(200.0)
    assert still is not None and position is not None and still.position == 31 and position.in_lane == 1
