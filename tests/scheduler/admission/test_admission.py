"""Admission by cap: who may wait, who is refused, and when the refused are told to come again."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.core.errors import ConfigError, QueueFull
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.scheduler.admission.admission import Admission
from sloserve.scheduler.admission.prediction import ArrivingRequest
from sloserve.scheduler.admission.retry_after import DEFAULT_RETRY_AFTER_S, MAX_RETRY_AFTER_S, MIN_RETRY_AFTER_S
from sloserve.scheduler.admission.ticket import Ticket
from sloserve.scheduler.admission.waiting_queue import SWEEP_INTERVAL_S, WaitingPlace

T0 = 1_700_000_000.0


def all_wait(place: WaitingPlace) -> bool:
    return True


class Capped:
    """An admission by cap alone, of requests without targets."""

    def __init__(self, caps: dict[str, int], still_waiting: Callable[[WaitingPlace], bool]) -> None:
        self._admission = Admission(tuple(caps), still_waiting, caps=caps)
        self.waiting, self.set_rules = self._admission.waiting, self._admission.set_rules

    def admit(self, class_name: str, request: object, now_s: float) -> Ticket:
        new = ArrivingRequest(DEFAULT_CLASSES.slo(class_name, Targets()), now_s)
        return self._admission.admit(new, self._admission.forecast(new, now_s), request, now_s)


def left(ticket: Ticket, now_s: float) -> None:
    ticket.ended(None, 0, now_s)


def refused(admission: Capped, now_s: float, class_name: str = "batch") -> QueueFull:
    with pytest.raises(QueueFull) as caught:
        admission.admit(class_name, None, now_s)
    return caught.value


def drained_at(per_s: float, cap: int = 4, for_s: float = 120.0) -> tuple[Capped, list[Ticket], float]:
    """A full class whose requests started, evenly, ``per_s`` a second for ``for_s`` s; who waits, and the time."""
    admission = Capped({"batch": cap}, all_wait)
    tickets = [admission.admit("batch", None, T0) for _ in range(cap)]
    now_s = T0
    for i in range(int(for_s * per_s)):
        now_s = T0 + (i + 1) / per_s
        tickets.pop(0).started(now_s)
        tickets.append(admission.admit("batch", None, now_s))
    return admission, tickets, now_s


def test_the_cap_is_per_class_and_the_message_says_what_to_do() -> None:
    admission = Capped({"interactive": 1, "batch": 2}, all_wait)
    admission.admit("batch", None, T0)
    admission.admit("batch", None, T0)
    error = refused(admission, T0)
    assert str(error) == ("queue full: 2 of 2 requests of class 'batch' wait; retry in 5 s")
    assert (error.slo_class, error.retry_after_s) == ("batch", DEFAULT_RETRY_AFTER_S)
    admission.admit("interactive", None, T0)
    assert (admission.waiting("interactive"), admission.waiting("batch")) == (1, 2)


@pytest.mark.parametrize("release", [Ticket.started, left])
def test_a_released_place_can_be_taken_once(release: Callable[[Ticket, float], None]) -> None:
    admission = Capped({"batch": 2}, all_wait)
    first, second = (admission.admit("batch", None, T0) for _ in range(2))
    release(first, T0 + 1.0)
    left(first, T0 + 2.0)
    first.started(T0 + 2.0)
    assert admission.waiting("batch") == 1
    admission.admit("batch", None, T0 + 2.0)
    refused(admission, T0 + 2.0)
    left(second, T0 + 3.0)
    assert admission.waiting("batch") == 1


def test_a_full_class_is_swept_before_anybody_is_refused_and_not_at_every_request() -> None:
    emitted: set[str] = set()
    asked: list[str] = []

    def still_waiting(place: WaitingPlace) -> bool:
        asked.append(place.request)
        return place.request not in emitted

    admission = Capped({"batch": 2}, still_waiting)
    first = admission.admit("batch", "a", T0)
    admission.admit("batch", "b", T0)
    assert asked == []
    refused(admission, T0 + 1.01 * SWEEP_INTERVAL_S)
    assert asked == ["a", "b"]
    refused(admission, T0 + 1.5 * SWEEP_INTERVAL_S)
    emitted.add("a")
    refused(admission, T0 + 2.0 * SWEEP_INTERVAL_S)
    assert asked == ["a", "b"]
    admission.admit("batch", "c", T0 + 2.1 * SWEEP_INTERVAL_S)
    first.started(T0 + 1.0)  # the keeper sees it late; the place is not freed a second time
    assert admission.waiting("batch") == 2


@pytest.mark.parametrize(("per_s", "for_s"), [(0.2, 120.0), (1.0, 120.0), (10.0, 60.0), (100.0, 20.0)])
def test_the_refused_are_told_to_come_one_by_one_at_the_rate_the_queue_drains(per_s: float, for_s: float) -> None:
    admission, _, now_s = drained_at(per_s, for_s=for_s)
    for nth in range(1, 41):
        expected_s = min(max(nth / per_s, MIN_RETRY_AFTER_S), MAX_RETRY_AFTER_S)
        assert refused(admission, now_s).retry_after_s == pytest.approx(expected_s, rel=0.15, abs=1.0)


def test_promised_places_pass_with_time() -> None:
    admission, _, now_s = drained_at(1.0)
    first = [refused(admission, now_s).retry_after_s for _ in range(10)]
    assert first[0] < first[4] < first[9]
    assert refused(admission, now_s + 5.0).retry_after_s < first[9]
    assert refused(admission, now_s + 1000.0).retry_after_s == MAX_RETRY_AFTER_S  # nothing has started for so long


def test_an_empty_queue_tells_nothing_of_its_speed() -> None:
    admission, tickets, now_s = drained_at(10.0, cap=1)
    assert refused(admission, now_s).retry_after_s == 1
    left(tickets[0], now_s)
    next_day_s = now_s + 86_400.0
    admission.admit("batch", None, next_day_s)
    assert refused(admission, next_day_s).retry_after_s == 1


def test_requests_that_leave_unserved_do_not_make_the_queue_look_fast() -> None:
    admission = Capped({"batch": 50}, all_wait)
    for ticket in [admission.admit("batch", None, T0) for _ in range(50)]:
        left(ticket, T0 + 1.0)
    for _ in range(50):
        admission.admit("batch", None, T0 + 1.0)
    assert refused(admission, T0 + 1.0).retry_after_s == DEFAULT_RETRY_AFTER_S


def test_a_cap_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="admission.max_waiting of class 'batch': 0 is not a whole number >= 1"):
        Capped({"interactive": 1, "batch": 0}, all_wait)
    with pytest.raises(ConfigError, match="admission.min_chance: 1.0 is not within"):
        Admission(["batch"], all_wait, min_chance=1.0)


events = st.lists(
    st.tuples(
        st.sampled_from(["admit", "emit", "started", "left"]),
        st.sampled_from(["interactive", "batch"]),
        st.integers(0, 20),
        st.floats(-0.5, 5.0) | st.just(0.0),
    ),
    max_size=80,
)


@given(caps=st.tuples(st.integers(1, 4), st.integers(1, 4)), history=events)
def test_never_above_the_cap_never_refused_below_it_released_once(
    caps: tuple[int, int], history: list[tuple[str, str, int, float]]
) -> None:
    """Against a model that knows which tickets are held; ``emit`` is a first token that only a sweep can see."""
    limits = dict(zip(("interactive", "batch"), caps, strict=True))
    held: dict[str, list[Ticket]] = {name: [] for name in limits}
    emitted: set[Ticket] = set()
    found: list[Ticket] = []

    def still_waiting(place: WaitingPlace) -> bool:
        gone = [t for t in emitted if t.place is place]
        found.extend(gone)
        return not gone

    admission = Capped(limits, still_waiting)
    issued: dict[str, list[Ticket]] = {name: [] for name in limits}
    now_s = T0
    for action, name, nth, elapsed_s in history:
        now_s += elapsed_s
        if action == "admit":
            try:
                issued[name].append(admission.admit(name, None, now_s))
            except QueueFull as error:
                assert MIN_RETRY_AFTER_S <= error.retry_after_s <= MAX_RETRY_AFTER_S
                assert isinstance(error.retry_after_s, int)
                assert len([t for t in held[name] if t not in found]) == limits[name]
            else:
                held[name].append(issued[name][-1])
        elif issued[name]:
            ticket = issued[name][nth % len(issued[name])]
            if action == "emit":
                emitted.add(ticket)
            else:
                ticket.started(now_s) if action == "started" else left(ticket, now_s)
                held[name] = [t for t in held[name] if t is not ticket]
        held[name] = [t for t in held[name] if t not in found]
        assert len(found) == len(set(found)), "a released ticket was asked about again"
        for each, limit in limits.items():
            assert admission.waiting(each) == len(held[each]) <= limit


def test_a_cap_may_change_and_requests_that_wait_keep_their_places() -> None:
    admission = Capped({"batch": 2}, all_wait)
    tickets = [admission.admit("batch", None, T0) for _ in range(2)]
    refused(admission, T0)
    admission.set_rules({"batch": 3}, None)
    tickets.append(admission.admit("batch", None, T0 + 60.0))
    admission.set_rules({"batch": 1}, None)
    assert admission.waiting("batch") == 3
    for ticket in tickets[:2]:
        left(ticket, T0 + 61.0)
    refused(admission, T0 + 100.0)
    admission.set_rules(None, None)
    admission.admit("batch", None, T0 + 100.0)
    with pytest.raises(ConfigError):
        admission.set_rules({"batch": 0}, None)
    admission.admit("batch", None, T0 + 100.0)
