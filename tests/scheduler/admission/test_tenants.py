"""Admission where tenants have shares: nobody is refused, or waits longer, because of another tenant's queue."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sloserve.core.errors import QueueFull
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.core.tenants import TenantTable
from sloserve.scheduler.admission.admission import Admission
from sloserve.scheduler.admission.prediction import ArrivingRequest
from sloserve.scheduler.admission.ticket import Ticket, Together

T0 = 1_700_000_000.0


class Shared:
    """An admission with a cap on one class, whose tenants have shares."""

    def __init__(self, cap: int, **weights: float) -> None:
        self.admission = Admission(("batch",), lambda place: True, caps={"batch": cap}, tenants=TenantTable(weights))

    def admit(self, tenant: str, now_s: float = T0) -> Ticket:
        new = ArrivingRequest(DEFAULT_CLASSES.slo("batch", Targets()), now_s, tenant=tenant)
        return self.admission.admit(new, self.admission.forecast(new, now_s), None, now_s)

    def admitted(self, tenant: str, most: int) -> int:
        """Return how many requests of a tenant are admitted until one is refused, at most ``most``."""
        for number in range(most):
            try:
                self.admit(tenant)
            except QueueFull:
                return number
        return most


def test_a_tenant_alone_has_all_places_and_leaves_the_others_their_shares() -> None:
    shared = Shared(12)
    assert shared.admitted("a", 100) == 12
    assert shared.admitted("b", 100) == 6
    assert shared.admitted("c", 100) == 4
    assert shared.admitted("a", 100) == 0


def test_places_are_divided_by_weight() -> None:
    shared = Shared(12, a=3.0)
    assert shared.admitted("b", 100) == 12
    assert shared.admitted("a", 100) == 9


def test_a_refusal_says_how_many_of_those_that_wait_are_the_tenants_own() -> None:
    shared = Shared(4)
    shared.admitted("a", 4)
    shared.admit("b")
    with pytest.raises(QueueFull, match="queue full: 4 of 4 requests of class 'batch' wait, 4 of them yours; retry in"):
        shared.admit("a")


def test_a_class_is_full_for_the_tenant_that_fills_it() -> None:
    shared = Shared(4)
    shared.admitted("a", 4)
    assert shared.admission.is_full("batch", T0, "a")
    assert not shared.admission.is_full("batch", T0, "b")
    assert shared.admission.waiting("batch") == 4


def test_each_tenant_is_told_when_its_own_queue_will_have_a_place() -> None:
    """One of a starts every 10 s, and of b ten times a second."""
    shared = Shared(8)
    tickets = {"a": [shared.admit("a") for _ in range(4)], "b": [shared.admit("b") for _ in range(4)]}
    for i in range(1, 401):
        for tenant, interval in (("a", 100), ("b", 1)):
            if i % interval == 0:
                tickets[tenant].pop(0).started(T0 + 0.1 * i)
                tickets[tenant].append(shared.admit(tenant, T0 + 0.1 * i))
    again_s = {}
    for tenant in "ab":
        with pytest.raises(QueueFull) as refused:
            shared.admit(tenant, T0 + 40.0)
        again_s[tenant] = refused.value.retry_after_s
    assert again_s["b"] == 1
    assert 8 <= again_s["a"] <= 10


def test_what_is_predicted_for_a_tenant_does_not_depend_on_the_queue_of_another() -> None:
    shared = Shared(1000)
    shared.admitted("a", 500)
    new = ArrivingRequest(DEFAULT_CLASSES.slo("batch", Targets()), T0, tenant="b")
    assert shared.admission.forecast(new, T0).ahead == 0


@given(
    cap=st.integers(1, 50),
    tenants=st.lists(st.integers(0, 11), min_size=1, max_size=400),
)
def test_a_tenant_below_its_share_is_never_refused_and_all_together_are_bounded(cap: int, tenants: list[int]) -> None:
    shared = Shared(cap)
    waiting: dict[int, int] = {}
    for tenant in tenants:
        of_all = len(waiting.keys() | {tenant})
        try:
            shared.admit(f"t{tenant}")
        except QueueFull:
            assert waiting[tenant] + 1 > cap / of_all, "it has its share"
        else:
            waiting[tenant] = waiting.get(tenant, 0) + 1
    bound = cap * sum(1 / k for k in range(1, len(waiting) + 1)) + len(waiting)
    assert sum(waiting.values()) <= math.ceil(bound)


@given(
    cap=st.integers(1, 6),
    events=st.lists(
        st.tuples(
            st.sampled_from(["ask", "ask", "ask", "list", "start", "leave"]), st.integers(0, 5), st.integers(0, 8)
        ),
        max_size=80,
    ),
)
@example(
    cap=2,
    events=[
        ("ask", 2, 1),
        ("ask", 2, 1),
        ("start", 3, 1),
        ("ask", 3, 1),
        ("ask", 3, 2),
        ("start", 1, 3),
        ("ask", 0, 0),
    ],
)
def test_with_one_tenant_every_answer_is_as_without_shares(cap: int, events: list[tuple[str, int, int]]) -> None:
    """Places that are promised to one client are kept from the others of its tenant, too."""
    plain = Admission(("batch",), lambda place: True, caps={"batch": cap})
    shared = Admission(("batch",), lambda place: True, caps={"batch": cap}, tenants=TenantTable({"a": 2.0}))
    seen: list[list[object]] = []
    for admission in (plain, shared):
        now_s, waiting, found = T0, list[Ticket](), list[object]()
        for what, key, wait_s in events:
            now_s += wait_s
            if what in ("ask", "list"):
                together = Together()
                for _ in range(1 if what == "ask" else 1 + key):
                    new = ArrivingRequest(DEFAULT_CLASSES.slo("batch", Targets()), now_s, tenant="a", key=lambda: key)
                    found.append(admission.is_full("batch", now_s, "a"))
                    try:
                        waiting.append(admission.admit(new, admission.forecast(new, now_s), None, now_s, together))
                    except QueueFull as error:
                        found.append(error.retry_after_s)
                        break
            elif waiting:
                ticket = waiting.pop(key % len(waiting))
                ticket.started(now_s) if what == "start" else ticket.place.left(now_s)
        seen.append(found)
    assert seen[0] == seen[1]


class Beside:
    """Other processes, in which a number of requests waits."""

    def __init__(self, processes: int, waiting: int) -> None:
        self.processes, self._waiting = processes, waiting

    def set_waiting(self, class_id: int, waiting: int) -> None:
        """Other processes are told nothing."""

    def waiting(self, class_id: int) -> int:
        return self._waiting


def test_each_of_several_processes_gives_a_tenant_its_part_of_the_places() -> None:
    """One tenant had the whole cap in each of the processes."""
    shared = Shared(12)
    shared.admission = Admission(
        ("batch",), lambda place: True, caps={"batch": 12}, elsewhere=Beside(4, 12), tenants=TenantTable()
    )
    assert shared.admitted("a", 100) == 3
    assert shared.admitted("b", 100) == 1
