"""Tasks at a gateway: what the engine gets of them, and admission."""

from datetime import datetime
from typing import Any, cast

import numpy as np
import pytest

from sloserve.core.clock import ManualClock
from sloserve.core.errors import QueueFull
from sloserve.fleet.contract.reported_tasks import ReportedTask, stated_task, task_in
from sloserve.fleet.gateway.accounting import RequestAccounting
from sloserve.fleet.gateway.agent_connections import AgentConnections
from sloserve.fleet.gateway.demand import DemandMeter
from sloserve.fleet.gateway.gateway_request import GatewayRequest, GatewayRequestReader
from sloserve.fleet.gateway.gateway_tasks import GatewayTasks
from sloserve.fleet.gateway.heard_tasks import HeardTasks
from sloserve.fleet.gateway.held import Hold
from sloserve.fleet.gateway.instances import Instances
from sloserve.fleet.gateway.keys import Tenant
from sloserve.fleet.gateway.metrics import GatewayMetrics
from sloserve.fleet.gateway.model_choice import ModelChoice
from sloserve.fleet.gateway.parts import GatewayState
from sloserve.fleet.gateway.passing import PassedResponse
from sloserve.fleet.gateway_settings import GatewaySettings
from sloserve.scheduler.settings import PluginSettings, plugin_settings
from sloserve.wire.body import read_body
from sloserve.wire.headers import read_headers
from sloserve.wire.resolve import resolve
from sloserve.wire.tasks import StatedTask

ROUTE = "/v1/chat/completions"
T0 = 1_000_000.0
SECRET = b"of the fleet"
ID = ("x-slo-task-id", "run-7")


class Gateway:
    def __init__(self, **section: Any) -> None:
        self.settings: PluginSettings = plugin_settings({"sloserve": section})
        self.clock = ManualClock(T0)
        self.reader, self.tasks = GatewayRequestReader(self.settings), GatewayTasks(self.settings, SECRET, self.clock)

    def request(
        self, *headers: tuple[str, str], body: bytes = b'{"model":"m"}', tenant: str = "acme", route: str = ROUTE
    ) -> GatewayRequest:
        raw = [(name.encode(), value.encode()) for name, value in headers]
        return self.reader.read(raw, body, Tenant(tenant), "id", route, self.clock.monotonic_s())

    def call(self, *headers: tuple[str, str], **asked: Any) -> dict[str, str]:
        """Serve a call of 1 s, and return the headers that its engine gets."""
        request = self.request(*headers, **asked)
        started = self.tasks.begins(self.tasks.arriving(request), request)
        self.clock.advance_to(self.clock.now_s() + 1.0)
        self.tasks.ends(started, completed=True)
        return dict(request.headers_after(0.0))

    def at_engine(self, headers: dict[str, str], body: bytes = b"{}") -> StatedTask | None:
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        fields = read_headers(raw, self.settings.header_rules)
        return resolve(self.settings.rules, None, fields, read_body(body)).task


@pytest.mark.parametrize(
    ("stated", "passed_on"),
    [
        ("9999-12-31T23:59:59.999999Z", "9999-12-31T00:00:00.000000+00:00"),
        ("9999-12-31T23:59:59-12:00", "9999-12-31T00:00:00.000000+00:00"),
        ("0001-01-01T00:00:00+12:00", "1970-01-01T00:00:00.000000+00:00"),
    ],
)
def test_deadlines_at_the_ends_of_time_are_passed_on(stated: str, passed_on: str) -> None:
    assert Gateway().call(ID, ("x-slo-task-deadline", stated))["x-slo-task-deadline"] == passed_on


def test_every_engine_gets_the_deadline_that_counts_from_the_first_call() -> None:
    gateway = Gateway()
    for _ in range(3):
        headers = gateway.call(ID, ("x-slo-task-e2e-ms", "5000"), ("x-slo-task-calls", "4"))
        assert headers["x-slo-task-id"] == "run-7" and headers["x-tenant-id"] == "acme"
        assert "x-slo-task-e2e-ms" not in headers
        assert datetime.fromisoformat(headers["x-slo-task-deadline"]).timestamp() == pytest.approx(T0 + 5.0)
        assert gateway.at_engine(headers) == StatedTask("id", "run-7", None, T0 + 5.0, 4)
    assert "x-slo-task-deadline" in gateway.call(ID), "a later call need not repeat it"


def test_tenants_with_the_same_id_have_tasks_of_their_own() -> None:
    gateway = Gateway()
    first = gateway.call(ID, ("x-slo-task-e2e-ms", "5000"), tenant="acme")
    other = gateway.call(ID, ("x-slo-task-e2e-ms", "5000"), tenant="other")
    assert first["x-slo-task-deadline"] != other["x-slo-task-deadline"]
    assert other["x-tenant-id"] == "other"


@pytest.mark.parametrize(
    ("headers", "body"),
    [([("x-dynamo-session-id", "s"), ("x-dynamo-session-final", "true")], b'{"model":"m"}'),
     ([("x-session-id", "s")], b'{"model":"m"}'),
     ([], b'{"model":"m","session_id":"s"}'), ([], b'{"model":"m","metadata":{"task_id":"s"}}'),
     ([], b'{"model":"m","previous_response_id":"s"}')],
)  # fmt: skip
def test_an_alias_is_the_same_at_the_gateway_and_the_engine(headers: list[tuple[str, str]], body: bytes) -> None:
    gateway = Gateway()
    request = gateway.request(*headers, body=body)
    found = gateway.at_engine(gateway.call(*headers, body=body), request.body)
    assert found is not None and found == request.stated_task
    dated = gateway.at_engine(gateway.call(*headers, ("x-slo-task-e2e-ms", "5000"), body=body), request.body)
    assert dated is not None and (dated.kind, dated.id) == (found.kind, found.id)
    assert (dated.deadline_s is None) == (dated.e2e_s is not None)


def test_the_body_states_a_task_and_the_gateway_its_deadline() -> None:
    gateway = Gateway()
    body = b'{"model":"m","slo":{"task_id":"a","task_e2e_ms":5000,"task_last":true}}'
    found = gateway.at_engine(gateway.call(body=body), body)
    assert found == StatedTask("id", "a", None, T0 + 5.0, None, True)


def test_a_tenant_that_is_held_to_a_class_gets_no_deadline() -> None:
    gateway = Gateway(tenants={"acme": "batch"})
    body = b'{"model":"m","slo":{"task_id":"a","task_e2e_ms":5000}}'
    request = gateway.request(body=body)
    assert b"task" not in request.body
    assert gateway.at_engine(gateway.call(body=body), request.body) == StatedTask("id", "a")


def test_a_route_that_generates_nothing_gets_no_task() -> None:
    assert not [name for name in Gateway().call(ID, route="/v1/embeddings") if "task" in name]


def test_tasks_of_a_gateway_end_by_age_and_are_bounded() -> None:
    gateway = Gateway(task_idle_s=100.0, max_tasks=8)
    for number in range(20):
        gateway.call(("x-slo-task-id", str(number)))
    assert len(gateway.tasks) == 8
    gateway.clock.advance_to(gateway.clock.now_s() + 200.0)
    gateway.tasks.arriving(gateway.request())
    assert len(gateway.tasks) == 0


class Fleet:
    """Several gateways, and what the agents report of the calls that they serve."""

    def __init__(self, gateways: int = 2, **section: Any) -> None:
        self.gateways = [Gateway(**section) for _ in range(gateways)]
        self.reported: dict[str, str] = {}

    def call(self, through: int, *headers: tuple[str, str], after_s: float = 0.0) -> float | None:
        """Serve a call, and return the deadline that its engine gets, in seconds from the start."""
        at_s = self.gateways[0].clock.now_s() + after_s
        for one in self.gateways:
            one.clock.advance_to(at_s)
        gateway = self.gateways[through]
        request = gateway.request(*headers)
        started = gateway.tasks.begins(gateway.tasks.arriving(request), request)
        found = task_in(request.reported_task or "")
        assert found is not None and "run-7" not in str(found)
        self.reported |= dict([found])
        for one in self.gateways:
            one.tasks.heard(self.reported)
        gateway.tasks.ends(started, completed=True)
        due = dict(request.headers_after(0.0)).get("x-slo-task-deadline")
        return None if due is None else datetime.fromisoformat(due).timestamp() - T0


def test_gateways_agree_when_a_task_began_and_is_due() -> None:
    fleet, e2e = Fleet(3), ("x-slo-task-e2e-ms", "60000")
    assert fleet.call(0, ID, e2e) == pytest.approx(60.0, abs=0.01)
    assert fleet.call(1, ID, e2e, after_s=10.0) == pytest.approx(60.0, abs=0.01)
    assert fleet.call(2, ID, after_s=10.0) == pytest.approx(60.0, abs=0.01), "a later call need not repeat it"
    assert fleet.call(1, ID, ("x-slo-task-e2e-ms", "90000"), after_s=1.0) == pytest.approx(90.0, abs=0.01)
    assert fleet.call(0, ID, after_s=1.0) == pytest.approx(90.0, abs=0.01), "the later statement counts"
    assert fleet.gateways[2].tasks.arriving(fleet.gateways[2].request(ID)).is_let_in  # type: ignore[union-attr]


def test_gateways_agree_that_a_task_is_over() -> None:
    fleet, e2e = Fleet(), ("x-slo-task-e2e-ms", "60000")
    fleet.call(0, ID, e2e)
    fleet.call(1, ID, e2e, ("x-slo-task-last", "1"), after_s=10.0)
    assert fleet.call(0, ID, e2e, after_s=10.0) == pytest.approx(80.0, abs=0.01), "another task of the same name"
    assert fleet.call(1, ID, after_s=10.0) == pytest.approx(80.0, abs=0.01)


def test_a_gateway_hears_of_its_own_calls_and_believes_itself() -> None:
    """Calls went to two instances: the reports of one name the first call, those of the other the last."""
    gateway, reports = Gateway(), []
    for last in ((), (("x-slo-task-last", "1"),)):
        request = gateway.request(ID, *last)
        started = gateway.tasks.begins(gateway.tasks.arriving(request), request)
        reports.append(dict([cast(tuple[str, str], task_in(request.reported_task or ""))]))
        gateway.clock.advance_to(gateway.clock.now_s() + 1.0)
        for report in (*reports, *reports):
            gateway.tasks.heard(report)
        again = gateway.tasks.arriving(gateway.request(ID))
        assert again is not None and again.is_let_in, "the call is still open"
        if not last:
            gateway.tasks.ends(started, completed=True)


def test_what_is_heard_is_bounded_and_earlier_calls_change_nothing() -> None:
    heard = HeardTasks(8, ManualClock(T0))
    for number in range(1, 40):
        heard.heard(dict([cast(tuple[str, str], task_in(stated_task(number, task_at(T0 + number))))]))
    assert sorted(heard.page.keys.tolist()) == list(range(32, 40))
    row = heard.page.row(39)
    assert row is not None
    before = row.copy()
    heard.heard(dict([cast(tuple[str, str], task_in(stated_task(39, task_at(T0 + 5.0))))]))
    heard.heard({"zz": "1,2,3,,0", "0": "1", f"{39:016x}": "1,2.3.4,3,,0", f"{38:016x}": "9" * 80})
    assert (row == before)[~np.isnan(before)].all()


def task_at(call_s: float) -> ReportedTask:
    return ReportedTask(0, call_s, T0, T0 + 60.0, False)


@pytest.mark.parametrize("text", ["", "x", "1=0,1,1,,0", f"{1:016x}=", f"{1:016x}=1e9,1,1,,0", f"{1:016x}={'1' * 81}"])
def test_an_agent_reports_no_task_of_another_form(text: str) -> None:
    assert task_in(text) is None


class Waits:
    """A response that has not begun."""

    begun, status, first_s = False, 0, None


@pytest.mark.parametrize("alias", [False, True])
def test_a_gateway_refuses_no_call_of_a_task_in_progress(alias: bool) -> None:
    clock = ManualClock(T0)
    settings = plugin_settings({"sloserve": {"admission": {"mode": "cap", "max_waiting": 1}}})
    instances = Instances()
    parts = GatewayState(
        ("m",), settings, GatewaySettings(), clock, instances, AgentConnections(60.0),
        Hold(instances, clock, 1), DemandMeter(settings.classes), GatewayMetrics(),
    )  # fmt: skip

    def arrives(*headers: tuple[str, str]) -> RequestAccounting:
        raw = [(name.encode(), value.encode()) for name, value in headers]
        request = parts.reader.read(raw, b'{"model":"m"}', Tenant("acme"), "id", ROUTE, clock.monotonic_s())
        found = RequestAccounting(parts, request, cast(PassedResponse, Waits()))
        found.admit("m")
        return found

    named = ("x-session-id", "run-7") if alias else ID
    arrives(named).ended(cast(ModelChoice, None), completed=False)
    arrives()
    with pytest.raises(QueueFull):
        arrives(("x-slo-task-id", "new"))
    arrives(named)
    if alias:
        with pytest.raises(QueueFull):
            arrives(named)
    else:
        arrives(named)
