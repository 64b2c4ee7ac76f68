"""Shares in the hold of a gateway: who goes first by what all instances gave, and for whom the hold is full."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.core.clock import ManualClock
from sloserve.core.promises import Promised
from sloserve.core.slo import DUE_NOW_S, ClassTable, SLOClass, Targets
from sloserve.core.spans import Phase
from sloserve.fleet.contract.reports import AgentReport, InstanceReport
from sloserve.fleet.file import parse_fleet
from sloserve.fleet.gateway.gateway import Gateway
from sloserve.fleet.gateway.gateway_instance import FRESH_S
from sloserve.fleet.gateway.gateway_request import GatewayRequestReader
from sloserve.fleet.gateway.held import HeldRequests, HoldFull
from sloserve.fleet.gateway.held_request import HeldRequest, held_due_after_s
from sloserve.fleet.gateway.instances import Instances
from sloserve.fleet.gateway.keys import Tenant
from sloserve.fleet.gateway.shared_state import GatewayDependencies
from sloserve.scheduler.settings import PluginSettings
from sloserve.scheduler.share_settings import ShareSettings
from sloserve.scheduler.virtual_queues.contract import ModelState
from tests.fleet.gateway.played_agents import FLEET

SHARES = ShareSettings()


def reported(instances: Instances, room: int, *service_s: Mapping[str, float], now_s: float = 0.0) -> None:
    """Each of the instances reports what it gave; the first has room."""
    made = [
        InstanceReport(f"i{k}", "h100", Phase.SERVING, {"m": ModelState.ACTIVE}, room=room * (k == 0), service_s=of_one)
        for k, of_one in enumerate(service_s)
    ]
    instances.reported(AgentReport("a", "unix:a", tuple(made)), "unix:a", instances.sent(), now_s)


def full(*service_s: Mapping[str, float]) -> Instances:
    instances = Instances()
    reported(instances, 0, *(service_s or ({},)))
    return instances


def waiting(name: str, due_s: float = math.inf) -> HeldRequest:
    return HeldRequest("m", "c", 0.0, due_s, tenant=name)


def order(held: HeldRequests, now_s: float = 0.0) -> list[str]:
    return [request.tenant for request, _ in held.let_go(now_s)]


def test_a_tenant_that_all_instances_gave_less_goes_first_and_deadlines_decide_within() -> None:
    service_s = {"a": 27.0, "b": 1.0}, {"a": 1.0, "b": 2.0, "c": 28.0}, {"d": 30.0}
    instances = full(*service_s)
    held = HeldRequests(instances, 10, ShareSettings(weights={"d": 30.0}))
    for tenant, due_s in (("a", 1.0), ("c", 2.0), ("b", 9.0), ("d", 5.0), ("a", 0.5)):
        assert held.arrived(waiting(tenant, due_s), 0.0) is None
    reported(instances, 5, *service_s)
    assert order(held) == ["d", "b", "a", "a", "c"], "a and c had as much, and d has the weight of thirty"


def test_what_a_silent_agent_reported_counts_no_more() -> None:
    held = HeldRequests(full({"a": 30.0}), 10, SHARES)
    assert held._shares is not None
    assert held._shares.levels(["a", "b"], 0.0) == {"a": 1, "b": 0}
    assert held._shares.levels(["a", "b"], FRESH_S) == {"a": 0, "b": 0}


@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
def test_only_the_ratios_of_weights_count(scale: float) -> None:
    shares = ShareSettings(weights={"a": scale, "b": scale, "c": 2.0 * scale})
    held = HeldRequests(full({"a": 30.0, "b": 31.0, "c": 31.0}), 10, shares)
    assert held._shares is not None
    assert held._shares.levels(["a", "b", "c"], 0.0) == {"a": 1, "b": 1, "c": 0}


@pytest.mark.parametrize("shares", [None, SHARES])
def test_a_promised_request_comes_first_from_its_time_on_also_before_what_is_overdue(
    shares: ShareSettings | None,
) -> None:
    instances = full()
    held = HeldRequests(instances, 9, shares)
    overdue = waiting("a", 1.0)
    promised = [HeldRequest("m", "c", 0.0, 9.0, tenant="a", first_from_s=first_s) for first_s in (6.0, 4.0)]
    later = HeldRequest("m", "c", 0.0, 20.0, tenant="a", first_from_s=12.0)
    for one in (overdue, *promised, later, soon := waiting("a", 11.0)):
        assert held.arrived(one, 0.0) is None
    reported(instances, 5, {}, now_s=7.0)
    assert [one for one, _ in held.let_go(7.0)] == [promised[1], promised[0], soon, later, overdue]


def test_the_deadline_of_a_held_request_is_its_own_unless_that_is_due_now() -> None:
    table = ClassTable({"c": SLOClass("c", 0, aged_after_s=25.0)}, "c")

    def due_s(**targets: float) -> float:
        return held_due_after_s(table.slo("c", Targets(**targets)))

    assert [due_s(), due_s(ttft_s=2.0), due_s(ttft_s=2.0, e2e_s=1.0)] == [25.0, 2.0, 1.0]
    assert [due_s(ttft_s=DUE_NOW_S), due_s(ttft_s=DUE_NOW_S, e2e_s=30.0)] == [25.0, 30.0]


def test_a_promised_request_comes_first_well_before_it_has_waited_too_long() -> None:
    headers = [(b"x-slo-e2e-ms", b"600000"), (b"x-slo-promise", b"0.9")]
    request = GatewayRequestReader(PluginSettings()).read(
        headers, b'{"model":"m"}', Tenant("a"), "id", "/v1/completions", 100.0
    )
    for after_s, first_from_s in ((595.0, 130.0), (10.0, 110.0)):
        request.promised = Promised(0.9, 0.0, after_s)
        held = HeldRequest.of(request, 10.0, 60.0)
        assert held.first_from_s == first_from_s and held.refused_s == 160.0


def test_what_can_be_in_time_goes_before_what_is_late_and_every_tenth_place_is_for_the_late() -> None:
    instances = full()
    held = HeldRequests(instances, 99)
    late = [waiting("a", due_s) for due_s in (2.0, 1.0, 3.0)]
    for one in (*late, *(in_time := [waiting("a", 10.0 + i) for i in range(25)])):
        assert held.arrived(one, 0.0) is None
    reported(instances, 26, {}, now_s=5.0)
    sent = [one for one, _ in held.let_go(5.0)]
    assert [i for i, one in enumerate(sent) if one in late] == [9, 19]
    assert [one for one in sent if one in late] == [late[1], late[0]]
    assert [one for one in sent if one not in late] == in_time[:24]
    reported(instances, 9, {}, now_s=6.0)
    assert [one for one, _ in held.let_go(6.0)] == [in_time[24], late[2]] and not len(held)


@pytest.mark.parametrize("shares", [None, SHARES])
def test_without_shares_or_with_one_tenant_deadlines_alone_decide(shares: ShareSettings | None) -> None:
    instances = full({"a": 99.0})
    held = HeldRequests(instances, 2, shares)
    tenants = ("a", "b") if shares is None else ("a", "a")
    late, soon = waiting(tenants[0], 9.0), waiting(tenants[1], 1.0)
    assert held.arrived(late, 0.0) is held.arrived(soon, 0.0) is None
    with pytest.raises(HoldFull):
        held.arrived(waiting("c" if shares is None else "a"), 0.0)
    reported(instances, 2, {"a": 99.0})
    assert [request for request, _ in held.let_go(0.0)] == [soon, late]


def test_the_hold_is_full_only_for_tenants_beyond_their_share_of_it() -> None:
    held = HeldRequests(full(), 8, ShareSettings(weights={"b": 3.0}))

    def places(tenant: str) -> int:
        found = 0
        while found < 99:
            try:
                held.arrived(waiting(tenant), 0.0)
            except HoldFull:
                break
            found += 1
        return found

    assert places("a") == 8, "alone it has all places"
    assert places("b") == 6, "three quarters, whatever a has"
    assert places("a") == 0
    for request in list(held):
        held.left(request)
        held.left(request)
    assert places("c") == 8 and places("a") == 4


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["come", "leave", "room"])), max_size=60),
    st.integers(1, 6),
)
def test_no_more_wait_than_the_bound_and_a_tenant_within_its_share_is_never_refused(
    steps: Sequence[tuple[str, str]], most: int
) -> None:
    """By the bound of equal tenants, and one for each tenant that has less than a place."""
    instances, refused = full(), False
    held = HeldRequests(instances, most, SHARES)
    for tenant, step in steps:
        of_tenant = [request for request in held if request.tenant == tenant]
        if step == "come":
            tenants = {request.tenant for request in held} | {tenant}
            try:
                refused = held.arrived(waiting(tenant), 0.0) is not None
            except HoldFull:
                assert len(of_tenant) + 1 > most / len(tenants) and len(held) >= most
        elif step == "leave" and of_tenant:
            held.left(of_tenant[0])
        elif step == "room":
            reported(instances, 1, {tenant: 50.0})
            had = len(held)
            assert len(order(held)) == min(had, 1)
            reported(instances, 0, {})
        assert not refused
        assert len(held) <= sum(max(most / k, 1.0) for k in range(1, 5))
        assert held._held_of == {name: n for name in "abcd" if (n := sum(r.tenant == name for r in held))}


def test_a_gateway_of_a_fleet_with_shares_holds_by_them() -> None:
    fleet = parse_fleet(FLEET)
    assert Gateway(fleet, GatewayDependencies(), ManualClock()).parts.hold.held._shares is None
    settings = fleet.settings.model_copy(update={"tenant_shares": SHARES})
    assert (
        Gateway(replace(fleet, settings=settings), GatewayDependencies(), ManualClock()).parts.hold.held._shares
        is not None
    )
