"""Shares over the engines of a fleet: each engine is given what tenants have had in all others, at its age."""

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sloserve.core.clock import ManualClock
from sloserve.core.errors import EngineError
from sloserve.core.spans import Phase
from sloserve.core.tenants import MOST_REPORTED, MOST_TENANTS
from sloserve.fleet.agent import agent as agent_module
from sloserve.fleet.agent import engine_watch
from sloserve.fleet.agent.agent import Agent, AgentSettings
from sloserve.fleet.agent.engine_spec import EngineModel
from sloserve.fleet.agent.host_fence import HostFence
from sloserve.fleet.agent.tenant_service import InstanceSharing, TenantService
from sloserve.fleet.contract.reports import AgentReport, InstanceReport
from sloserve.fleet.launcher.own import OwnProcesses
from sloserve.fleet.store.store import open_store
from tests import bounded
from tests.bounded import until
from tests.fleet.stand_in.launcher import InLoopLauncher

A, B = ("node/0", "chat"), ("node/1", "chat")


class Given:
    """Stands for an engine: notes what it is given."""

    def __init__(self, fails: bool = False) -> None:
        self.model = SimpleNamespace(name="chat")
        self.given: list[Mapping[str, float]] = []
        self.fails = fails

    async def set_elsewhere(self, service_s: Mapping[str, float], limit_s: float) -> None:
        if self.fails:
            raise EngineError("busy")
        self.given.append(service_s)


def reported(host: str, *service_s: Mapping[str, float]) -> AgentReport:
    instances = (InstanceReport(f"{host}/{i}", "cpu", Phase.SERVING, {}, service_s=s) for i, s in enumerate(service_s))
    return AgentReport(host, f"unix:{host}", tuple(instances))


def test_an_engine_is_given_what_all_others_gave_at_its_age() -> None:
    clock = ManualClock(0.0)
    service = TenantService(10.0, clock)
    service.reported(*A, {"a": 8.0})
    clock.advance_to(clock.now_s() + 10.0)
    service.reported(*B, {"a": 1.0, "b": 2.0})
    service.read_others([(reported("far", {"b": 4.0}, {"c": 16.0}), 10.0), (reported("older"), 0.0)])
    assert service.elsewhere(*A) == {"a": 1.0, "b": 4.0, "c": 8.0}
    assert service.elsewhere(*B) == {"a": 4.0, "b": 2.0, "c": 8.0}
    service.read_others([])
    assert service.elsewhere(*A) == {"a": 1.0, "b": 2.0}
    clock.advance_to(clock.now_s() + 1000.0)
    assert service.elsewhere(*A) == {}, "what nobody renews is forgotten"


def test_an_engine_that_sleeps_counts_for_the_one_that_serves_in_its_place() -> None:
    clock = ManualClock(0.0)
    service = TenantService(10.0, clock)
    service.reported("node/0", "chat", {"a": 8.0})
    clock.advance_to(clock.now_s() + 10.0)
    service.reported("node/0", "code", {"a": 1.0})
    assert service.elsewhere("node/0", "code") == {"a": 4.0}
    assert service.of_instance("node/0") == {"a": 5.0} and service.of_instance("node/1") == {}


def test_reports_and_figures_are_bounded() -> None:
    service = TenantService(10.0, ManualClock(0.0))
    service.reported(*A, {f"t{i}": float(i + 1) for i in range(MOST_REPORTED + 9)})
    assert len(service.of_instance(A[0])) == MOST_REPORTED and "t9" in service.of_instance(A[0])
    many = [{f"t{i}": 1.0 for i in range(k, k + MOST_REPORTED)} for k in range(0, 2 * MOST_TENANTS, MOST_REPORTED)]
    service.read_others([(reported("far", *many), 0.0)])
    assert len(service.elsewhere(*A)) == MOST_TENANTS


def test_an_engine_is_told_only_what_has_changed_beyond_its_decay() -> None:
    async def test() -> None:
        clock, engine = ManualClock(0.0), Given()
        service = TenantService(10.0, clock)
        sharing = InstanceSharing("node/0", service, clock)

        async def exchange(into: Given = engine) -> int:
            before = len(into.given)
            await sharing.exchange(into, {"a": 3.0})  # type: ignore[arg-type]
            return len(into.given) - before

        assert await exchange() == 0, "nothing happened elsewhere"
        service.reported(*B, {"b": 5.0})
        assert [await exchange(), await exchange()] == [1, 0]
        clock.advance_to(clock.now_s() + 5.0)
        assert await exchange() == 0, "its figures have decayed as these have"
        service.reported(*B, {})
        assert await exchange() == 1 and engine.given[-1] == {}
        service.reported(*B, {"b": 5.0})
        assert await exchange() == 1 and await exchange(Given()) == 1, "another engine has none of it"
        await sharing.exchange(engine, None)  # type: ignore[arg-type]
        assert service.of_instance("node/0") == {"a": 3.0}, "a version that does not say so changes nothing"

    bounded.run(test())


def test_an_engine_that_fails_is_told_again_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        clock, engine = ManualClock(0.0), Given(fails=True)
        service = TenantService(10.0, clock)
        sharing = InstanceSharing("node/0", service, clock)
        service.reported(*B, {"b": 5.0})
        for _ in range(3):
            await sharing.exchange(engine, {})  # type: ignore[arg-type]
        engine.fails = False
        await sharing.exchange(engine, {})  # type: ignore[arg-type]
        assert engine.given == [{"b": 5.0}]

    with caplog.at_level(logging.WARNING):
        bounded.run(test())
    assert caplog.text.count("hold in this engine alone for now: busy") == 1


@pytest.mark.slow
def test_two_hosts_share_through_the_store_and_each_alone_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One host has two instances, the other one; an engine of an older version neither reports nor is told."""
    monkeypatch.setattr(agent_module, "BEAT_S", 0.02)
    monkeypatch.setattr(engine_watch, "SHARE_EVERY_S", 0.02)
    models = {"chat": EngineModel("chat", "chat", weights_bytes=10, max_num_seqs=4)}

    def agent(host: str, instances: int, launcher: Any) -> Agent:
        folder = tmp_path / host
        folder.mkdir()
        served = {f"{host}/{i}": models for i in range(instances)}
        settings = AgentSettings(host, "cpu", served, folder, half_life_s=1e6)
        return Agent(settings, OwnProcesses(launcher), HostFence(host, store, folder, 10.0))

    store = open_store(f"sqlite:{tmp_path}/store.sqlite")
    launchers = [InLoopLauncher(0.0), InLoopLauncher(0.0)]

    async def within() -> None:
        first, second = agent("x", 2, launchers[0]), agent("y", 2, launchers[1])
        async with first, second, asyncio.timeout(60.0):
            for one in (first, second):
                await one._fence.take()  # type: ignore[union-attr]
                for instance in one.instances.values():
                    assert await instance.switch("chat")
            engines = [started.engine for launcher in launchers for started in launcher.started]
            for engine, service_s in zip(engines, ({"a": 1.0}, {"a": 2.0}, {"a": 4.0, "b": 8.0}, None), strict=True):
                engine.service_s = service_s
            wanted = [{"a": 6.0, "b": 8.0}, {"a": 5.0, "b": 8.0}, {"a": 3.0}]
            await until(lambda: [one.elsewhere_s[-1:] for one in engines[:3]] == [[figures] for figures in wanted])
            assert engines[3].elsewhere_s == []
            assert second.report().instances[0].service_s == {"a": 4.0, "b": 8.0}
            monkeypatch.setattr(HostFence, "others", _away)
            engines[0].service_s = {"a": 9.0}
            await until(lambda: engines[1].elsewhere_s[-1] == {"a": 13.0, "b": 8.0})

    try:
        bounded.run(within(), 90.0)
    finally:
        store.close()


async def _away(fence: HostFence) -> Any:
    raise AssertionError("a fault in the store")
