"""A server that others started is routed to, watched, and neither switched nor ended."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from sloserve.core.errors import ConfigError
from sloserve.core.spans import Phase
from sloserve.fleet.agent.agent import Agent, AgentSettings
from sloserve.fleet.agent.engine_spec import Attached, EngineModel
from sloserve.fleet.file import parse_fleet
from sloserve.fleet.gateway.agent_connections import AgentConnections
from sloserve.fleet.launcher import attached
from sloserve.fleet.launcher.attached import AttachingLauncher
from sloserve.fleet.launcher.own import OwnProcesses
from sloserve.fleet.run.live import Place, agent_settings
from tests import bounded
from tests.fleet.stand_in.engine import StandIn, reply
from tests.fleet.stand_in.launcher import _Server
from tests.fleet.stand_in.server import app
from tests.ports import free_port

FILE = """
models:
  chat: {model: m, profile: h100-llama3-8b}
  code: {model: m, profile: h100-llama3-8b}
hosts:
  here: {device: h100, devices: 1}
  theirs: {device: h100, devices: 1, attach: "http://10.0.0.9:8000", serves: chat}
"""


def test_a_file_says_which_model_an_attached_server_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOSERVE_ATTACH_KEY", "theirs")
    fleet = parse_fleet(FILE, to_run=True)
    theirs = fleet.hosts["theirs"]
    assert fleet.models_on(theirs) == ("chat",) and fleet.models_on(fleet.hosts["here"]) == ("chat", "code")
    settings = agent_settings(fleet, theirs, Place(tmp_path, "sqlite:x"))
    assert settings.instances["theirs/0"].keys() == {"chat"}
    assert settings.instances["theirs/0"]["chat"].attached == Attached("http://10.0.0.9:8000", "theirs")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (", serves: chat", "", "hosts.theirs: attach and serves belong together"),
        ("serves: chat", "serves: other", "'other' is no model with a profile for 1 of h100"),
        ("devices: 1, attach", "devices: 2, attach", "are one instance; give width: 2"),
        ("10.0.0.9:8000", "10.0.0.9:8000/v1", "hosts.theirs.attach"),
    ],
)
def test_faults_of_an_attached_server_are_named(old: str, new: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_fleet(FILE.replace(old, new), to_run=True)


class Theirs:
    """A server on TCP, as others start it; stock: without routes below ``/sloserve``."""

    def __init__(self, name: str, *, stock: bool = True, port: int | None = None) -> None:
        self.engine = StandIn(name, "m/chat", die=lambda: None)
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.asked: list[str] = []
        inner = app(self.engine, None if stock else "admin")

        async def seen(scope: Any, receive: Any, send: Any) -> None:
            self.asked.append(scope["path"])
            await inner(scope, receive, send)

        self._server = _Server(uvicorn.Config(seen, port=self.port, lifespan="off", ws="none", log_config=None))

    async def __aenter__(self) -> "Theirs":
        self._serving = asyncio.ensure_future(self._server.serve())
        await bounded.until(lambda: self._server.started)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.should_exit = self._server.force_exit = True
        await self._serving


def agent_of(folder: Path, theirs: Theirs, admin_key: str | None = None) -> Agent:
    model = EngineModel("chat", "m/chat", attached=Attached(theirs.url, admin_key=admin_key))
    return Agent(
        AgentSettings("theirs", "cpu", {"theirs/0": {"chat": model}}, folder),
        OwnProcesses(AttachingLauncher(theirs.url)),
    )


async def asked(gateway: AgentConnections, agent: Agent) -> str:
    body = json.dumps({"model": "chat", "prompt": "a", "max_tokens": 4}).encode()
    headers = [("content-type", "application/json")]
    answer = await gateway.send(agent.endpoint, "theirs/0", "/v1/completions", headers, body, "chat")
    return str(json.loads(await answer.read())["choices"][0]["text"])


@pytest.mark.slow
@pytest.mark.parametrize("admin_key", [None, "admin"], ids=["stock", "ours"])
def test_a_server_that_is_attached_serves_and_goes_on_without_the_agent(tmp_path: Path, admin_key: str | None) -> None:
    async def within() -> None:
        gateway = AgentConnections(60.0)
        async with Theirs("chat", stock=admin_key is None) as theirs:
            async with agent_of(tmp_path, theirs, admin_key) as agent:
                instance = agent.instances["theirs/0"]
                assert await instance.switch("chat") and not await instance.switch("other")
                assert await asked(gateway, agent) == reply("chat", "a", 4)
                await instance.watch.check_progress()
                assert agent.costs.swaps(["chat"]) == (), "a start elsewhere takes longer"
            assert not {"/sleep", "/wake_up", "/collective_rpc", "/sloserve/reload"} & set(theirs.asked)
            assert ("/sloserve/status" in theirs.asked) is (admin_key is not None)
            async with agent_of(tmp_path, theirs, admin_key) as again:
                assert await again.instances["theirs/0"].switch("chat"), "it was not ended"
        await gateway.close()

    bounded.run(within())


@pytest.mark.slow
def test_a_server_without_the_model_is_not_served_from(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def within() -> None:
        async with Theirs("other") as theirs, agent_of(tmp_path, theirs) as agent:
            assert not await agent.instances["theirs/0"].switch("chat")

    with caplog.at_level(logging.ERROR):
        bounded.run(within())
    assert "has no model 'chat', but other; start it with --served-model-name chat" in caplog.text


@pytest.mark.slow
def test_a_server_that_goes_and_comes_back_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attached, "LOOK_S", 0.05)
    monkeypatch.setattr(attached, "LOST_S", 0.3)

    async def within() -> None:
        gateway = AgentConnections(60.0)
        async with Theirs("chat") as theirs:
            port = theirs.port
            agent = agent_of(tmp_path, theirs)
            await agent.__aenter__()
            assert await agent.instances["theirs/0"].switch("chat")
        await bounded.until(lambda: agent.instances["theirs/0"].report().phase is Phase.FAILED)
        async with Theirs("chat", port=port):
            await bounded.until(lambda: agent.instances["theirs/0"].report().phase is Phase.SERVING)
            assert await asked(gateway, agent) == reply("chat", "a", 4)
            await agent.__aexit__()
        await gateway.close()

    bounded.run(within())
