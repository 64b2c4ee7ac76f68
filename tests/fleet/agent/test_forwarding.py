"""An agent with forwarding processes behaves as one that passes requests on itself."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from sloserve.fleet.agent.agent import Agent, AgentSettings
from sloserve.fleet.agent.engine import EngineLimits
from sloserve.fleet.agent.engine_spec import EngineModel
from sloserve.fleet.agent.forwarding.forwarders import ForwarderSettings
from sloserve.fleet.agent.instance import Instance
from sloserve.fleet.certificates import Certificates
from sloserve.fleet.contract.endpoint import MODEL_HEADER, REFUSED_HEADER
from sloserve.fleet.contract.reports import agent_report
from sloserve.fleet.launcher.own import OwnProcesses
from tests import bounded
from tests.bounded import until
from tests.ended import has_ended
from tests.fleet.stand_in.engine import LONG, POISON, reply
from tests.fleet.stand_in.launcher import InLoopLauncher

pytestmark = pytest.mark.slow

MODELS = {name: EngineModel(name, name, weights_bytes=10, max_num_seqs=4) for name in ("chat", "code")}
FORWARDER = "sloserve.fleet.agent.forwarding.forwarder"
KEY, NEW_KEY = "a-key-of-the-fleet-for-tests", "a-new-key-of-the-fleet-for-tests"


class Door:
    """The endpoint of an agent, as a gateway uses it."""

    def __init__(self, agent: Agent, http: aiohttp.ClientSession) -> None:
        self.agent, self.http = agent, http

    async def post(
        self, model: str = "chat", tokens: int = 4, prompt: str = "a", **more: Any
    ) -> aiohttp.ClientResponse:
        body = {"model": model, "prompt": prompt, "max_tokens": tokens, "stream": True, **more}
        path = "/instances/node%2F0/v1/completions"
        return await self.http.post(path, json=body, headers={MODEL_HEADER: model})

    async def ask(self, model: str = "chat", tokens: int = 4, **more: Any) -> str:
        """Return the text of a completion."""
        response = await self.post(model, tokens, **more)
        assert response.status == 200, await response.text()
        events = [json.loads(line[6:]) for line in (await response.text()).splitlines() if line.startswith("data: {")]
        return "".join(event["choices"][0]["text"] for event in events)

    async def refusal(self, model: str = "chat", **more: Any) -> tuple[int, str]:
        response = await self.post(model, **more)
        return response.status, response.headers[REFUSED_HEADER]


Test = Callable[[Door, Instance, InLoopLauncher], Awaitable[None]]


def forwarders() -> list[psutil.Process]:
    """Return the forwarding processes of this process, but for those that have ended."""
    children = psutil.Process().children()
    return [one for one in children if one.status() != psutil.STATUS_ZOMBIE and FORWARDER in one.cmdline()]


def can_listen(port: int) -> bool:
    try:
        with socket.create_server(("127.0.0.1", port)):
            return True
    except OSError:
        return False


@asynccontextmanager
async def opened(folder: Path, launcher: InLoopLauncher, count: int = 1, **settings: Any) -> AsyncIterator[Agent]:
    made = AgentSettings(
        "node",
        "cpu",
        {"node/0": MODELS},
        folder,
        host_memory_bytes=settings.pop("memory", 20),
        forwarders=ForwarderSettings(count, settings.pop("certificates", None)),
        limits=EngineLimits(start_s=60.0),
        **settings,
    )
    async with Agent(made, OwnProcesses(launcher)) as agent, asyncio.timeout(120.0):
        yield agent


def run(folder: Path, test: Test, *, step_s: float = 0.0, memory: int = 20, drain_max_s: float = 5.0) -> None:
    async def within() -> None:
        launcher = InLoopLauncher(step_s)
        async with opened(folder, launcher, memory=memory, drain_max_s=drain_max_s) as agent:
            connector = aiohttp.UnixConnector(agent.endpoint.removeprefix("unix:"))
            async with aiohttp.ClientSession("http://door", connector=connector) as http:
                instance = agent.instances["node/0"]
                assert await instance.switch("chat")
                await test(Door(agent, http), instance, launcher)
        assert not forwarders(), "they end with their agent"

    bounded.run(within(), 150.0)


def test_streams_state_and_refusals_come_through(tmp_path: Path) -> None:
    async def test(door: Door, instance: Instance, launcher: InLoopLauncher) -> None:
        assert await asyncio.gather(*(door.ask() for _ in range(3))) == [reply("chat", "a", 4)] * 3
        assert await door.refusal("code") == (503, "other-model")
        state = agent_report(await (await door.http.get("/state")).json())
        assert state.host == "node" and state.instances[0].active == "chat"
        async with door.http.get("/metrics") as response:
            assert response.status == 404
        async with door.http.post("/instances/node%2F0/sleep", json={}) as response:
            assert response.status == 404, "for the agent alone"
        assert instance.report().running.requests == 0

    run(tmp_path, test)


def test_a_full_instance_refuses_and_counts_what_comes(tmp_path: Path) -> None:
    async def test(door: Door, instance: Instance, launcher: InLoopLauncher) -> None:
        room = instance.report().room
        responses = []
        while (response := await door.post(tokens=2000)).status == 200:
            responses.append(response)
        assert (response.status, response.headers[REFUSED_HEADER]) == (503, "full")
        assert instance.report().room == 0 and instance.report().streams == len(responses) >= 4
        await until(lambda: instance.report().running.context_tokens > 8.0 * len(responses))
        for response in responses:
            response.close()
        await until(lambda: instance.report().streams == 0)
        await until(lambda: launcher.started[0].engine.aborted == len(responses))
        assert instance.report().room == room

    run(tmp_path, test, step_s=0.002)


def test_streams_end_before_their_model_leaves(tmp_path: Path) -> None:
    async def test(door: Door, instance: Instance, launcher: InLoopLauncher) -> None:
        streaming = asyncio.ensure_future(door.ask(tokens=100))
        await until(lambda: instance.report().running.context_tokens > 0)
        switching = asyncio.ensure_future(instance.switch("code"))
        await asyncio.sleep(0)
        assert await door.refusal() == (503, "switching")
        assert await streaming == reply("chat", "a", 100) and await switching

    run(tmp_path, test, step_s=0.005)


def test_streams_are_parked_and_go_on(tmp_path: Path) -> None:
    async def test(door: Door, instance: Instance, launcher: InLoopLauncher) -> None:
        streaming = asyncio.ensure_future(door.ask(tokens=100))
        await until(lambda: instance.report().running.context_tokens > 0)
        assert await instance.switch("code") and instance.report().parked == {"chat": 1}
        assert await instance.switch("chat") and await streaming == reply("chat", "a", 100)

    run(tmp_path, test, step_s=0.01, drain_max_s=0.02)


def test_without_memory_streams_that_take_too_long_are_broken_off(tmp_path: Path) -> None:
    async def test(door: Door, instance: Instance, launcher: InLoopLauncher) -> None:
        response = await door.post(tokens=5000)
        await until(lambda: instance.report().running.context_tokens > 0)
        assert await instance.switch("code")
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()
        await until(lambda: launcher.started[0].engine.aborted == 1)

    run(tmp_path, test, memory=0, step_s=0.002, drain_max_s=0.02)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_request_without_a_byte_is_sent_back(tmp_path: Path, stream: bool) -> None:
    async def test(door: Door, instance: Instance, launcher: InLoopLauncher) -> None:
        asking = asyncio.ensure_future(door.refusal(tokens=9, prompt=LONG, stream=stream))
        await until(lambda: bool(launcher.started[0].engine.running))
        assert await instance.switch("code")
        assert await asking == (503, "switching")
        await until(lambda: launcher.started[0].engine.aborted == 1)
        assert instance.report().parked == {} and instance.report().streams == 0

    run(tmp_path, test, step_s=0.01, drain_max_s=0.05)


def test_an_engine_that_dies_with_its_requests(tmp_path: Path) -> None:
    async def test(door: Door, instance: Instance, launcher: InLoopLauncher) -> None:
        response = await door.post(tokens=5000)
        await until(lambda: instance.report().running.context_tokens > 0)
        assert await door.refusal(prompt=POISON) == (502, "died")
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()
        await until(lambda: instance.report().active_for_s is not None and len(launcher.started) == 2)
        assert await door.ask() == reply("chat", "a", 4)
        await until(lambda: instance.report().streams == 0)

    run(tmp_path, test, step_s=0.002)


def test_a_forwarder_that_is_killed_is_replaced(tmp_path: Path) -> None:
    async def test(door: Door, instance: Instance, launcher: InLoopLauncher) -> None:
        response = await door.post(tokens=5000)
        await until(lambda: instance.report().running.context_tokens > 0)
        (killed,) = forwarders()
        os.kill(killed.pid, signal.SIGKILL)
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()
        await until(lambda: instance.report().streams == 0)
        assert await door.ask() == reply("chat", "a", 4), "connections wait for the next one"
        assert forwarders() != [killed]

    run(tmp_path, test, step_s=0.002)


def test_an_endpoint_on_tcp_has_tls_and_a_key(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "certificates")
    certificates.issue(["node"])

    async def within() -> None:
        settings = {
            "endpoint": "https://127.0.0.1:0",
            "endpoint_key": f"{KEY}, {NEW_KEY}",
            "endpoint_tls": certificates.of_endpoint("node"),
            "certificates": tmp_path / "certificates",
        }
        async with opened(tmp_path, InLoopLauncher(), 2, **settings) as agent:
            assert await agent.instances["node/0"].switch("chat")
            at, _, host = agent.endpoint.partition("#")
            async with aiohttp.ClientSession() as http:
                known = {"ssl": certificates.of_gateway(), "server_hostname": host}
                path = f"{at}/instances/node%2F0/v1/completions"
                for headers in ({}, {"authorization": "Bearer x" + KEY}):
                    async with http.get(f"{at}/state", headers=headers, **known) as response:
                        assert response.status == 401
                    async with http.post(path, json={}, headers=headers, **known) as response:
                        assert response.status == 401
                for key in (KEY, NEW_KEY):
                    shown = {"authorization": f"Bearer {key}"}
                    async with http.get(f"{at}/state", headers=shown, **known) as response:
                        assert response.status == 200
                headers = {"authorization": f"Bearer {KEY}", MODEL_HEADER: "chat"}
                state = agent_report(await (await http.get(f"{at}/state", headers=headers, **known)).json())
                assert state.door == agent.endpoint
                body = {"model": "chat", "prompt": "a", "max_tokens": 2}
                response = await http.post(
                    f"{at}/instances/node%2F0/v1/completions", json=body, headers=headers, **known
                )
                assert response.status == 200 and reply("chat", "a", 2) in await response.text()

    bounded.run(within(), 150.0)


def test_a_forwarder_ends_with_its_parent_even_if_it_is_stopped(tmp_path: Path) -> None:
    """It holds the socket of the endpoint, which the next agent of the host could not open."""
    code = (
        "import asyncio, sys\n"
        "from sloserve.fleet.agent.forwarding.forwarder_job import ForwarderJob\n"
        "from sloserve.fleet.agent.forwarding.forwarders import Forwarders, ForwarderSettings\n"
        "from sloserve.fleet.launcher.own import OwnProcesses\n"
        "from sloserve.fleet.launcher.plain import PlainLauncher\n"
        "async def main():\n"
        "    processes = OwnProcesses(PlainLauncher())\n"
        "    address = await processes.listen('http://127.0.0.1:0')\n"
        "    job = ForwarderJob([], 'node', sys.argv[1], sys.argv[1] + '.decisions')\n"
        "    await Forwarders(ForwarderSettings(1), job, processes, {}).begin()\n"
        "    print(address.rpartition(':')[2], flush=True)\n"
        "    await asyncio.sleep(300)\n"
        "asyncio.run(main())\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "a")]
    with (
        bounded.within("an agent of its own"),
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as agent,
    ):
        assert agent.stdout is not None
        port = int(agent.stdout.readline())

        async def within() -> None:
            async with aiohttp.ClientSession() as http:
                async with http.get(f"http://127.0.0.1:{port}/state") as response:
                    assert response.status == 503, "it serves, and its agent gives no report here"
            (forwarder,) = psutil.Process(agent.pid).children()
            forwarder.suspend()
            agent.kill()
            await until(lambda: can_listen(port))
            # The kernel closes the sockets of a process before it marks it as ended.
            await until(lambda: has_ended(forwarder))

        bounded.run(within())
