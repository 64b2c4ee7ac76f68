"""What a gateway keeps to whatever comes: from clients, from agents, from a store that was away."""

import asyncio
import contextlib
from collections.abc import Collection
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sloserve.core.clock import ManualClock, SystemClock
from sloserve.core.slo import DEFAULT_CLASSES
from sloserve.fleet.contract.reports import AgentReport, to_json
from sloserve.fleet.gateway import prefixes, watch
from sloserve.fleet.gateway.agent_connections import AgentConnections, AgentState
from sloserve.fleet.gateway.demand import DemandMeter
from sloserve.fleet.gateway.held import Hold
from sloserve.fleet.gateway.instances import Instances
from sloserve.fleet.gateway.metrics import GatewayMetrics, tenant_counters
from sloserve.fleet.gateway.parts import GatewayState
from sloserve.fleet.gateway.prefixes import beginnings
from sloserve.fleet.gateway.serve import config
from sloserve.fleet.gateway.watch import Watch
from sloserve.fleet.gateway_settings import GatewaySettings
from sloserve.fleet.store.sqlite import SqliteDatabase
from sloserve.fleet.store.store import Store
from sloserve.scheduler.settings import PluginSettings
from sloserve.wire.asgi import answer_json
from sloserve.wire.rate_limits import TenantUse
from tests import bounded
from tests.bounded import until
from tests.fleet.gateway.played_agents import running


def test_a_body_of_millions_of_messages_is_cut_like_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """32 MB of them took half a minute, in which no stream went on, and 2 GB."""
    messages = memoryview(b"[" + b",".join([b"0"] * 20_000) + b"]")
    read = list[Any]()
    monkeypatch.setattr(prefixes, "_parts", SimpleNamespace(decode=read.append))
    cut = beginnings("m", messages, memoryview(b""))
    assert len(cut) == 20 and not read
    assert [one.tokens for one in cut[:2]] == [512, 1024]


class FakeAgents:
    """What agents behind doors answer."""

    def __init__(self) -> None:
        self.reports: dict[str, AgentReport] = {}
        self.odd = 0

    async def state(self, door: str, known: str = "") -> AgentState | None:
        self.odd -= 1
        if self.odd == 0:
            raise RecursionError
        report = self.reports.get(door)
        return None if report is None else AgentState(report)

    async def keep_only(self, doors: Collection[str]) -> None:
        """There are no connections."""


def test_agents_that_answer_are_asked_on_after_the_store_was_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No agent had told the store that it lives when a gateway read it first, and all of them were forgotten."""
    monkeypatch.setattr(watch, "STORE_S", 0.005)
    monkeypatch.setattr(watch, "ASK_S", 0.005)
    clock, doors = ManualClock(), FakeAgents()
    store = Store(SqliteDatabase(tmp_path / "store.sqlite", clock))
    for name in ("unix:a", "unix:b"):
        store.members.beat(f"agent:{name}", to_json(AgentReport(name, name, ())))
        doors.reports[name] = AgentReport(name, name, ())
    instances = Instances()
    hold, demand = Hold(instances, SystemClock(), 1), DemandMeter(DEFAULT_CLASSES)
    played: Any = doors
    settings, limits = PluginSettings(), GatewaySettings()
    parts = GatewayState((), settings, limits, SystemClock(), instances, played, hold, demand, GatewayMetrics())
    watching = Watch("gateway", store, (), parts)

    async def test() -> None:
        watching.start()
        await until(lambda: len(watching.answered) == 2)
        doors.odd = 3  # what one answers cannot be read: it is asked again
        del doors.reports["unix:b"]
        await until(lambda: doors.odd < -3 and watching.answered == {"unix:a"})
        clock.advance_to(clock.now_s() + watch.GONE_S + 1.0)
        await until(lambda: watching._asking.keys() == {"unix:a"})
        await watching.stop()

    bounded.run(test())
    store.close()


@pytest.mark.slow
def test_a_door_does_not_send_the_gateway_elsewhere() -> None:
    """Nor from TLS to plain HTTP."""

    async def elsewhere(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/state":
            await answer_json(send, HTTPStatus.FOUND, {}, [("location", "/other")])
        else:
            await answer_json(send, HTTPStatus.OK, to_json(AgentReport("a", "unix:a", ())))

    async def test() -> None:
        settings, doors = (
            config(elsewhere, lifespan="off", port=0, timeout_graceful_shutdown=1),
            AgentConnections(5.0, "a key"),
        )
        async with running(settings):
            assert await doors.state(f"http://127.0.0.1:{settings.port}") is None
            await doors.close()

    bounded.run(test())


CHUNKED = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
HEAD = b"GET / HTTP/1.1\r\nhost: x\r\n"
ENDLESS = b"x: y\r\n" * 20_000


@pytest.mark.slow
@pytest.mark.parametrize(
    "begin", [HEAD + b"\r\n" + HEAD, CHUNKED + b"1\r\nx\r\n0\r\n"], ids=["behind a request", "trailer"]
)
def test_headers_do_not_come_without_end(begin: bytes) -> None:
    """Only those of a request with none before it were bounded: others filled the memory."""
    left = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        left.set()

    async def test() -> None:
        settings = config(app, lifespan="off", port=0, timeout_graceful_shutdown=1)
        async with running(settings):
            reader, writer = await asyncio.open_connection("127.0.0.1", settings.port)
            writer.write(begin)
            await writer.drain()
            with contextlib.suppress(ConnectionError):
                for _ in range(4):
                    writer.write(ENDLESS)
                    await writer.drain()
                assert await reader.read() == b"", "closed"
            writer.close()
            await left.wait()

    bounded.run(test())


def test_tenants_beyond_the_limit_of_labels_count_as_one() -> None:
    used = {name: TenantUse(1, 10, 100) for name in ("a", "b", "c", "d")}
    families = {family.name: family for family in tenant_counters(used, 2)}
    samples = families["sloserve:gateway_tenant_output_tokens"].samples
    assert {sample.labels["tenant"]: sample.value for sample in samples} == {"a": 100.0, "b": 100.0, "other": 200.0}


def test_promises_of_tenants_count_by_outcome_under_the_same_labels() -> None:
    kept = TenantUse(promises_kept=3, promises_broken=1)
    used = {"a": kept, "b": TenantUse(1), "c": kept, "d": TenantUse(promises_withdrawn=2)}
    families = {family.name: family for family in tenant_counters(used, 2)}
    found = {
        (sample.labels["tenant"], sample.labels["outcome"]): sample.value
        for sample in families["sloserve:gateway_tenant_promises"].samples
    }
    assert found == {
        ("a", "kept"): 3.0, ("a", "broken"): 1.0, ("a", "withdrawn"): 0.0,
        ("other", "kept"): 3.0, ("other", "broken"): 1.0, ("other", "withdrawn"): 2.0,
    }  # fmt: skip
