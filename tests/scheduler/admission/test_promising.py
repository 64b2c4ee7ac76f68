"""Promises at admission: when one is given, refused or kept, against a server that serves promised requests first."""

import heapq
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from sloserve.core.errors import PromiseRefused
from sloserve.core.finished import Latency
from sloserve.core.promises import PromiseWish
from sloserve.core.slo import SLO, ClassTable, SLOClass, Targets
from sloserve.scheduler.admission.admission import Admission
from sloserve.scheduler.admission.prediction import ArrivingRequest
from sloserve.scheduler.admission.ticket import Ticket

T0 = 1_700_000_000.0
CLASSES = ClassTable({"chat": SLOClass("chat", 0)}, "chat")
WISH, FALLS_BACK = PromiseWish(0.99), PromiseWish(0.99, falls_back=True)


def request(
    now_s: float, ttft_s: float | None = 2.0, promise: PromiseWish | None = WISH, prompt_tokens: int = 100
) -> ArrivingRequest:
    slo = SLO(CLASSES["chat"], Targets(ttft_s=ttft_s), promise)
    return ArrivingRequest(slo, now_s, prompt_tokens)


@dataclass
class PromisedFirst:
    """A server of one request at a time, 1 ms a prompt token, that takes promised requests first."""

    admission: Admission = field(default_factory=lambda: Admission(("chat",), lambda place: True))
    busy_until_s: float = T0
    queue: list[tuple[bool, int, Ticket]] = field(default_factory=list)
    uses: list[float] = field(default_factory=list)
    offered: int = 0

    def offer(self, new: ArrivingRequest) -> Ticket:
        self.until(new.arrival_s)
        forecast = self.admission.forecast(new, new.arrival_s)
        ticket = self.admission.admit(new, forecast, None, new.arrival_s)
        self.offered += 1
        heapq.heappush(self.queue, (ticket.promised is None, self.offered, ticket))
        return ticket

    def until(self, now_s: float) -> None:
        while self.queue:
            starts_s = max(self.busy_until_s, self.queue[0][2].new.arrival_s)
            first_s = starts_s + 1e-3 * (self.queue[0][2].new.prompt_tokens or 0)
            if first_s > now_s:
                return
            _, _, ticket = heapq.heappop(self.queue)
            self.busy_until_s = first_s
            ticket.started(first_s)
            latency = Latency(first_s - ticket.new.arrival_s, 0.0, first_s - ticket.new.arrival_s)
            ticket.ended(latency, 1, first_s)
            if ticket.promised is not None:
                self.uses.append(latency.ttft_s / (ticket.new.slo.targets.ttft_s or 1.0))


def taught() -> PromisedFirst:
    """A server that is idle, and that has served 250 requests, some together; the later ones were promised."""
    server = PromisedFirst()
    for i in range(50):
        for k in range(5):
            promise = None if i < 25 else FALLS_BACK
            server.offer(request(T0 + i, 0.2 + 0.2 * k, promise, prompt_tokens=50 + 10 * (i % 6)))
    server.until(T0 + 50.0)
    return server


def test_nothing_is_promised_of_a_class_of_which_nothing_is_known() -> None:
    server = PromisedFirst()
    with pytest.raises(PromiseRefused, match="promise of 0.99: too few requests of its class have ended") as refused:
        server.offer(request(T0))
    assert refused.value.why == "unknown" and server.admission.waiting("chat") == 0
    ticket = server.offer(request(T0, promise=FALLS_BACK))
    assert ticket.promised is None and ticket.why_no_promise == "unknown" and server.admission.waiting("chat") == 1


@pytest.mark.slow
def test_targets_that_can_be_kept_are_promised_and_others_are_not() -> None:
    server = taught()
    with pytest.raises(
        PromiseRefused, match=r"a latency of [\d.]+ times its target is predicted at that probability"
    ) as refused:
        server.offer(request(T0 + 60.0, ttft_s=0.03))
    assert refused.value.why == "late"
    given = server.offer(request(T0 + 60.0, ttft_s=0.5)).promised
    assert given is not None and given.level == 0.99 and given.delayed_s == 0.0
    lower = server.offer(request(T0 + 70.0, promise=PromiseWish(0.8))).promised
    assert lower is not None and lower.level == 0.8


@pytest.mark.slow
def test_a_promised_request_waits_for_promised_ones_alone_and_has_a_price() -> None:
    server = taught()
    for _ in range(50):
        server.offer(request(T0 + 60.0, promise=None))
    ticket = server.offer(request(T0 + 60.0, ttft_s=2.0))  # behind all of them it would take 5 s
    assert ticket.promised is not None and ticket.promised.delayed_s == pytest.approx(50 * 0.1, rel=0.1)
    server.until(T0 + 61.0)
    assert server.uses[-1] <= 0.2


@pytest.mark.slow
def test_no_promise_is_given_at_the_expense_of_an_earlier_one() -> None:
    server = taught()
    assert server.offer(request(T0 + 60.0, ttft_s=0.29, prompt_tokens=200)).promised is not None
    with pytest.raises(PromiseRefused, match="it would delay a request that was promised") as refused:
        server.offer(request(T0 + 60.0, ttft_s=0.28, prompt_tokens=100))  # due earlier: it may be served before
    assert refused.value.why == "others"
    assert server.offer(request(T0 + 60.0, ttft_s=5.0)).promised is not None  # due later


@pytest.mark.slow
@pytest.mark.parametrize(
    ("promises", "why", "words"),
    [("policy", "policy", "order of arrival"), ("off", "off", "gives requests of class 'chat' no such promise")],
)
def test_an_operator_decides_who_may_be_promised_what(promises: str, why: str, words: str) -> None:
    server = taught()
    server.admission.set_rules(None, None, promises=promises)
    with pytest.raises(PromiseRefused, match=words) as refused:
        server.offer(request(T0 + 60.0))
    assert refused.value.why == why
    server.admission.set_rules(None, None, promises="classes")
    with pytest.raises(PromiseRefused, match="no such promise"):
        server.offer(request(T0 + 60.0))
    of_class = replace(CLASSES["chat"], promise=WISH)
    asked = replace(request(T0 + 60.0), slo=SLO(of_class, Targets(ttft_s=2.0), WISH))
    assert server.offer(asked).promised is not None


@pytest.mark.slow
def test_an_aborted_request_gives_its_place_back_and_teaches_nothing() -> None:
    server = taught()
    admission, now_s = server.admission, T0 + 60.0
    tickets = [admission.admit(new, admission.forecast(new, now_s), None, now_s) for new in [request(now_s)] * 5]
    before = admission.forecast(request(now_s), now_s).ahead
    for ticket in tickets:
        ticket.ended(None, 0, now_s + 100.0)
    assert before == 5 and admission.waiting("chat") == 0
    assert server.offer(request(T0 + 170.0, ttft_s=0.5)).promised is not None


@pytest.mark.slow
def test_a_promised_request_that_is_not_streamed_waits_no_longer_than_it_is_seen_to() -> None:
    """Its first token is known from a sweep, or taken to be out when it was predicted to be."""
    for swept in (True, False):
        server = taught()
        admission, now_s = server.admission, T0 + 60.0
        new = replace(request(now_s), streamed=False)
        ticket = admission.admit(new, admission.forecast(new, now_s), None, now_s)
        assert ticket.promised is not None and admission._promising.waiting == 1
        if swept:
            ticket.place.started(now_s + 0.1)
        later = request(now_s + 30.0)
        admission.admit(later, admission.forecast(later, now_s + 30.0), None, now_s + 30.0)
        assert admission._promising.waiting == 1, "the later one alone"
        ticket.ended(Latency(0.1, 0.0, 40.0), 1, now_s + 40.0)


@pytest.mark.slow
def test_promises_to_several_classes_see_each_other() -> None:
    names = ("a", "b", "c", "d")
    admission = Admission(names, lambda place: True)
    table = ClassTable({name: SLOClass(name, i) for i, name in enumerate(names)}, "a")

    def offered(name: str, now_s: float, ttft_s: float, promise: PromiseWish | None) -> Ticket:
        new = ArrivingRequest(SLO(table[name], Targets(ttft_s=ttft_s), promise), now_s, 100)
        return admission.admit(new, admission.forecast(new, now_s), None, now_s)

    now_s = T0
    for i in range(300):  # bursts of up to nine, each of one class, that were served one after another
        now_s += 10.0
        tickets = [offered(names[i % 4], now_s, 1.0, None) for _ in range(1 + i % 9)]
        for k, ticket in enumerate(tickets):
            first_s = 0.1 * (k + 1)
            ticket.started(now_s + first_s)
            ticket.ended(Latency(first_s, 0.0, first_s), 1, now_s + first_s)
    given = [offered(name, now_s + 10.0, 1.0, FALLS_BACK).promised for name in names * 9]
    assert 1 <= sum(one is not None for one in given) <= 10  # no more can start within a second


def test_a_complete_response_that_is_read_slowly_is_no_miss() -> None:
    admission = Admission(("chat",), lambda place: True)
    for _ in range(30):
        slo = SLO(CLASSES["chat"], Targets(e2e_s=10.0))
        new = ArrivingRequest(slo, T0, 100)
        ticket = admission.admit(new, admission.forecast(new, T0), None, T0)
        ticket.started(T0 + 0.1)
        ticket.holds()
        admission._promising.foresee(new, ticket.forecast, T0 + 12.0)
        ticket.ended(Latency(0.1, 0.1, 5.0), 50, T0 + 12.0)
    assert not admission._promising._classes["chat"].every._missed


@pytest.mark.slow
def test_the_promise_of_a_class_may_be_asked_for_with_a_fallback() -> None:
    server = taught()
    server.admission.set_rules(None, None, promises="classes")
    of_class = replace(CLASSES["chat"], promise=WISH)
    for wish, given in ((FALLS_BACK, True), (PromiseWish(0.9), True), (None, False)):
        asked = replace(request(T0 + 60.0), slo=SLO(of_class, Targets(ttft_s=2.0), wish))
        assert (server.offer(asked).promised is not None) == given


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_few_promises_are_broken_at_one_and_a_half_times_the_load(seed: int) -> None:
    """A request takes 0.1 s in the mean, 15 come a second, and all of them ask for a promise."""
    server, rng, now_s = taught(), np.random.default_rng(seed), T0 + 100.0
    given = offered = 0
    for gap_s in rng.exponential(1.0 / 15.0, 6000):
        now_s += float(gap_s)
        new = request(now_s, float(rng.choice([1.0, 3.0])), FALLS_BACK, int(rng.integers(20, 181)))
        given += server.offer(new).promised is not None
        offered += 1
    server.until(now_s + 1e6)
    broken = sum(use > 1.0 for use in server.uses)
    assert given > 0.5 * offered  # the server can serve two of three
    assert broken <= 0.01 * given


def test_a_promise_of_a_gateway_is_taken_over_before_anything_is_known() -> None:
    server = PromisedFirst()
    given = replace(WISH, given_after_s=0.5)
    ticket = server.offer(request(T0, promise=given))
    assert ticket.promised is not None and (ticket.promised.level, ticket.promised.first_after_s) == (0.99, 0.5)
    server.until(T0 + 1.0)
    assert not server.admission._promising.waiting and len(server.uses) == 1
    with pytest.raises(PromiseRefused, match="are needed to tell"):
        server.offer(request(T0 + 2.0))


@pytest.mark.slow
def test_a_promise_with_much_time_does_not_keep_others_from_theirs_while_it_is_not_served_first() -> None:
    server = taught()
    assert server.offer(request(T0 + 50.0, 600.0)).promised is not None
    server.busy_until_s = T0 + 500.0  # it waits
    for i in range(20):
        new = request(T0 + 51.0 + i, 2.0)
        ticket = server.admission.admit(new, server.admission.forecast(new, new.arrival_s), None, new.arrival_s)
        assert ticket.promised is not None
        ticket.ended(None, 0, new.arrival_s)


@pytest.mark.slow
def test_what_was_taken_over_is_ahead_of_later_promises() -> None:
    """Thirty requests that a gateway promised take three seconds, so that nothing due before their end is promised."""
    server = taught()
    for _ in range(30):
        assert server.offer(request(T0 + 50.0, 1.0, replace(WISH, given_after_s=0.0))).promised is not None
    with pytest.raises(PromiseRefused):
        server.offer(request(T0 + 50.0, 1.5))
    assert server.offer(request(T0 + 50.0, 60.0)).promised is not None
