"""The route of an agent's state: it answers when something has changed, and older gateways at once."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sloserve.core.spans import Phase
from sloserve.fleet.agent import state_route
from sloserve.fleet.agent.agent_server import AgentServer
from sloserve.fleet.agent.state_route import StateRoute
from sloserve.fleet.contract.endpoint import VERSION_HEADER, WAITED_HEADER
from sloserve.fleet.contract.reports import AgentReport, InstanceReport, to_json
from sloserve.scheduler.virtual_queues.contract import ModelState, RunningSums
from tests import bounded
from tests.client import virtual_time

ONE = InstanceReport("a/0", "h100", Phase.SERVING, {"m": ModelState.ACTIVE}, active_for_s=1.0, room=9)


class Asked:
    """An agent's server that a test asks without sockets."""

    def __init__(self) -> None:
        self.now, self.reports = ONE, 0
        self.route = StateRoute(self._report)
        self.server = AgentServer({}, self.route.answer)

    def _report(self) -> AgentReport:
        self.reports += 1
        return AgentReport("a", "unix:a", (self.now,))

    async def get(self, query: str = "", leaves: asyncio.Event | None = None) -> tuple[int, dict[str, str], Any]:
        sent: list[dict[str, Any]] = []
        forever = leaves or asyncio.Event()

        async def receive() -> dict[str, Any]:
            await forever.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": "/state", "query_string": query.encode(), "headers": []}
        await self.server(scope, receive, send)  # type: ignore[arg-type]
        if not sent:
            return 0, {}, None
        body = b"".join(one.get("body", b"") for one in sent[1:])
        headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return sent[0]["status"], headers, json.loads(body) if body else None

    async def version(self) -> str:
        _, headers, _ = await self.get("known=&wait_s=1")
        return headers[VERSION_HEADER]


def test_an_older_gateway_gets_what_it_got_at_once() -> None:
    async def test() -> None:
        asked = Asked()
        for query in ("", "known=x", "wait_s=1", "known=x&wait_s=nan", "known=x&wait_s=-1", "known=x&wait_s=", "%"):
            status, headers, body = await asked.get(query)
            assert status == 200 and body == json.loads(json.dumps(to_json(AgentReport("a", "unix:a", (ONE,)))))
            assert VERSION_HEADER not in headers and WAITED_HEADER not in headers

    bounded.run(test())


@pytest.mark.parametrize(
    "change",
    [
        lambda one: replace(one, phase=Phase.DRAINING),
        lambda one: replace(one, room=0),
        lambda one: replace(one, room=40),
        lambda one: replace(one, models={"m": ModelState.WARM, "n": ModelState.ACTIVE}),
    ],
)
def test_a_change_of_phase_model_or_room_ends_the_wait(
    change: Callable[[InstanceReport], InstanceReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_route, "LOOK_S", 0.001)
    monkeypatch.setattr(state_route, "DRIFT_S", 100.0)
    monkeypatch.setattr(state_route, "MOST_WAIT_S", 100.0)

    async def test() -> None:
        asked = Asked()
        waiting = asyncio.create_task(asked.get(f"known={await asked.version()}&wait_s=100"))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waiting.done()
        asked.now = change(asked.now)
        status, headers, body = await waiting
        assert status == 200 and body["instances"][0]["room"] == asked.now.room
        assert 0.0 < float(headers[WAITED_HEADER]) < 50.0, "it waited for the end of its time"

    bounded.run(test())


def test_other_changes_wait_for_a_moment_and_none_has_no_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_route, "DRIFT_S", 0.01)

    async def test() -> None:
        asked = Asked()
        version = await asked.version()
        asked.now = replace(asked.now, active_for_s=2.0)  # time alone is no change
        status, headers, body = await asked.get(f"known={version}&wait_s=0.05")
        assert (status, body, headers[VERSION_HEADER]) == (204, None, version)
        assert float(headers[WAITED_HEADER]) == pytest.approx(0.05, abs=2e-3)
        asked.now = replace(asked.now, running=RunningSums(1, 5.0), room=8)
        status, headers, body = await asked.get(f"known={version}&wait_s=2")
        assert status == 200 and body["instances"][0]["running"]["requests"] == 1
        assert float(headers[WAITED_HEADER]) == pytest.approx(0.01, abs=2e-3)
        # A version of another process of the agent is another, whatever its report.
        status, headers, _ = await asked.get("known=ab.cd&wait_s=2")
        assert status == 200 and float(headers[WAITED_HEADER]) == 0.0

    virtual_time.run(test())


def test_waits_are_bounded_and_end_with_the_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_route, "MOST_WAITING", 2)
    monkeypatch.setattr(state_route, "MOST_WAIT_S", 0.02)

    async def test() -> None:
        asked, leaves = Asked(), asyncio.Event()
        version = await asked.version()
        waiting = [asyncio.create_task(asked.get(f"known={version}&wait_s=1e9", leaves)) for _ in range(2)]
        for _ in range(5):
            await asyncio.sleep(0)
        status, headers, _ = await asked.get(f"known={version}&wait_s=1")
        assert status == 200 and VERSION_HEADER not in headers, "it is answered at once, and asks at its own pace"
        assert [status for status, _, _ in await asyncio.gather(*waiting)] == [204, 204]
        monkeypatch.setattr(state_route, "MOST_WAIT_S", 60.0)
        left = asyncio.create_task(asked.get(f"known={version}&wait_s=60", leaves))
        for _ in range(5):
            await asyncio.sleep(0)
        leaves.set()
        assert await left == (0, {}, None)
        assert asked.route._waiting == 0

    bounded.run(test())


def test_instances_are_looked_at_once_for_all_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_route, "DRIFT_S", 9.0)

    async def test() -> None:
        asked = Asked()
        version = await asked.version()
        before = asked.reports
        await asyncio.gather(*(asked.get(f"known={version}&wait_s=0.1") for _ in range(50)))
        looks = asked.reports - before
        # Each compares versions twice and reports once; looks between are shared: 4 in a tenth of a second.
        assert looks < 50 * 6 + 10

    bounded.run(test())
