"""How a gateway asks agents: ones that wait until something changes, and older ones."""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from sloserve.core.clock import SystemClock
from sloserve.core.slo import DEFAULT_CLASSES
from sloserve.core.spans import Phase
from sloserve.fleet.agent.agent_server import AgentServer
from sloserve.fleet.agent.state_route import StateRoute
from sloserve.fleet.contract.reports import AgentReport, InstanceReport
from sloserve.fleet.gateway import watch
from sloserve.fleet.gateway.agent_connections import AgentConnections, AgentState
from sloserve.fleet.gateway.demand import DemandMeter
from sloserve.fleet.gateway.held import Hold
from sloserve.fleet.gateway.held_request import HeldRequest
from sloserve.fleet.gateway.instances import Instances
from sloserve.fleet.gateway.metrics import GatewayMetrics
from sloserve.fleet.gateway.parts import GatewayState
from sloserve.fleet.gateway.prediction import Work
from sloserve.fleet.gateway.watch import Watch, _Known
from sloserve.fleet.gateway_settings import GatewaySettings
from sloserve.scheduler.settings import PluginSettings
from sloserve.scheduler.virtual_queues.contract import ModelState
from tests import bounded
from tests.bounded import until
from tests.fleet.gateway.played_agents import running

ONE = InstanceReport("a/0", "h100", Phase.SERVING, {"m": ModelState.ACTIVE}, room=9)


def parts_with(agents: Any) -> GatewayState:
    instances, clock = Instances(), SystemClock()
    hold, demand = Hold(instances, clock, 9), DemandMeter(DEFAULT_CLASSES)
    return GatewayState(
        (), PluginSettings(), GatewaySettings(), clock, instances, agents, hold, demand, GatewayMetrics()
    )


class Scripted:
    """Agents that respond what a test has written, one response after the other."""

    def __init__(self, *responses: AgentState | None) -> None:
        self.responses, self.known = list(responses), list[str]()

    async def state(self, door: str, known: str = "") -> AgentState | None:
        self.known.append(known)
        return self.responses.pop(0)

    async def keep_only(self, doors: Collection[str]) -> None:
        """There are no connections."""


def watched(*responses: AgentState | None, then: Callable[[GatewayState], None] | None = None) -> list[str]:
    """Return the versions that a gateway named, and the one that it would name next."""

    async def test() -> list[str]:
        agents = Scripted(*responses)
        parts = parts_with(agents)
        watching = Watch("gateway", None, ["unix:a"], parts)
        known = _Known()
        for _ in responses:
            known = await watching._asked("unix:a", known)
            if then is not None:
                then(parts)
        return [*agents.known, known.version]

    return bounded.run(test())


def test_a_gateway_names_the_version_that_it_has() -> None:
    report = AgentReport("a", "unix:a", (ONE,))
    same = AgentState(None, "v1", 1.0)
    assert watched(AgentState(report, "v1"), same, AgentState(report, "v2"), None, AgentState(report, "v3")) == [
        "", "v1", "v1", "v2", "", "v3",
    ]  # fmt: skip
    assert watched(AgentState(report), AgentState(report)) == ["", "", ""], "an older agent has no versions"


def test_a_report_without_changes_keeps_instances_fresh_and_forgotten_ones_are_asked_for() -> None:
    report = AgentReport("a", "unix:a", (ONE,))
    seen_s = []

    def look(parts: GatewayState) -> None:
        one = parts.instances.by_name.get("a/0")
        seen_s.append(None if one is None else one.seen_s)
        if len(seen_s) == 3:
            parts.instances.keep_only(())  # the store does not know the endpoint

    same = AgentState(None, "v1", 1.0)
    known = watched(AgentState(report, "v1"), same, same, same, AgentState(report, "v1"), same, then=look)
    assert known[-3:] == ["", "v1", "v1"] and "" not in known[1:4]
    assert seen_s[1] > seen_s[0] and seen_s[-1] is not None  # type: ignore[operator]


def test_what_was_sent_while_an_agent_waited_is_in_its_report() -> None:
    instances = Instances()
    instances.reported(AgentReport("a", "unix:a", (ONE,)), "unix:a", 0, 0.0)
    one, asked = instances.by_name["a/0"], instances.sent()
    early = instances.send(one, Work(), (), 1.0)
    instances.send(one, Work(), (), 3.0)
    assert one.room == 7
    instances.reported(AgentReport("a", "unix:a", (replace(ONE, room=8),)), "unix:a", asked, 3.1, made_s=2.0)
    assert one.room == 7, "the second one alone came after the report was made"
    early.end()
    assert one.room == 8
    one.refused()
    instances.reported(AgentReport("a", "unix:a", (ONE,)), "unix:a", asked, 3.2, made_s=2.9)
    assert one.room == 0, "it was made before the last request was sent"
    instances.reported(AgentReport("a", "unix:a", (ONE,)), "unix:a", asked, 3.3, made_s=3.05)
    assert one.room == 9


@pytest.mark.slow
@pytest.mark.parametrize("is_old", [False, True])
def test_a_gateway_and_an_agent_of_either_version(
    is_old: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room is found soon with both, and an agent at rest that waits is asked once a second."""
    monkeypatch.setattr(watch, "ASK_S", 0.02)

    async def test() -> None:
        now, asked = [replace(ONE, room=0)], 0
        path = tmp_path / "door"
        server = AgentServer({}, StateRoute(lambda: AgentReport("a", f"unix:{path}", (now[0],))).answer)

        async def app(scope: Any, receive: Any, send: Any) -> None:
            nonlocal asked
            asked += 1
            await server({**scope, "query_string": b""} if is_old else scope, receive, send)

        config = uvicorn.Config(
            app, uds=str(path), lifespan="off", ws="none", log_level="critical", timeout_graceful_shutdown=1
        )
        async with running(config):
            agents = AgentConnections(60.0)
            parts = parts_with(agents)
            watching = Watch("gateway", None, [f"unix:{path}"], parts)
            watching.start()
            await until(lambda: bool(watching.answered))
            begun = asyncio.get_running_loop().time()
            before = asked
            # An older agent is asked again and again; one that holds a question for a second is not, meanwhile.
            await until(lambda: asked >= before + (4 if is_old else 2))
            assert is_old or asyncio.get_running_loop().time() - begun > 0.8
            begun = asyncio.get_running_loop().time()
            waiting = asyncio.create_task(parts.hold.flight(HeldRequest("m", "c", 0.0)))
            await until(lambda: parts.hold.waits.is_set())
            now[0] = ONE
            flight = await asyncio.wait_for(waiting, 5.0)
            assert asyncio.get_running_loop().time() - begun < 5.0
            flight.end()
            await watching.stop()
            await agents.close()

    bounded.run(test())
