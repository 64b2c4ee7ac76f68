"""Admission where tenants have shares: nobody is refused, or waits longer, because of another tenant's queue."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.core.errors import QueueFull
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.core.tenants import TenantTable
from sloserve.scheduler.admission.admission import Admission, Ticket
from sloserve.scheduler.admission.prediction import ArrivingRequest

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
