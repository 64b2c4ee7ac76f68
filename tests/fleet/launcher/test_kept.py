"""Engines and streams outlive their agent: the next agent of the host takes them over."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from sloserve.core.spans import Phase
from sloserve.fleet import framing
from sloserve.fleet.agent.agent import Agent, AgentSettings
from sloserve.fleet.agent.engine import Engine, EngineLimits
from sloserve.fleet.agent.engine_spec import EngineModel, EngineSpec
from sloserve.fleet.agent.forwarding import forwarders as forwarders_module
from sloserve.fleet.agent.forwarding.forwarders import ForwarderSettings
from sloserve.fleet.agent.instance import Instance
from sloserve.fleet.contract.endpoint import MODEL_HEADER, REFUSED_HEADER
from sloserve.fleet.launcher import kept as kept_module
from sloserve.fleet.launcher.by_code import LaunchersByCode
from sloserve.fleet.launcher.kept import KeptProcesses
from sloserve.fleet.launcher.parent_messages import ParentJob
from sloserve.scheduler.virtual_queues.contract import ModelState
from tests import bounded
from tests.bounded import until
from tests.ended import has_ended
from tests.fleet.stand_in.engine import UNTIL, reply
from tests.fleet.stand_in.launcher import InLoopLauncher

pytestmark = pytest.mark.slow

FLAGS = ("--step-s", "0.005")
TOKENS = 20
MODELS = {
    name: EngineModel(name, name, FLAGS, weights_bytes=10, max_num_seqs=4, settings='{"policy": "edf"}')
    for name in ("chat", "code")
}
WARM = ModelState.WARM


def processes_in(folder: Path, alone_s: float = 60.0) -> KeptProcesses:
    job = ParentJob(str(folder / "note.json"), str(folder / "l.log"), "tests.fleet.stand_in.server", True, alone_s)
    return KeptProcesses(job, folder / "processes.log")


def settings_in(folder: Path, models: dict[str, EngineModel] = MODELS, **more: Any) -> AgentSettings:
    made = AgentSettings(
        "node",
        "cpu",
        {"node/0": models},
        folder,
        forwarders=ForwarderSettings(1),
        host_memory_bytes=20,
        drain_max_s=10.0,
        limits=EngineLimits(start_s=60.0),
    )
    return replace(made, **more)


class Host:
    """The processes of one host, found through the note of their parent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._go_on = folder / "go-on"

    @property
    def held_prompt(self) -> str:
        """A prompt with which a stream does not end before :meth:`is_whole`, however long agents take to start."""
        return f"a {UNTIL}{self._go_on}"

    async def held_stream(self, agent: Agent) -> "asyncio.Task[str]":
        """Return the task that reads such a stream, once its first token has come."""
        return await begun(agent.endpoint, TOKENS, prompt=self.held_prompt)

    async def is_whole(self, streaming: "asyncio.Task[str]") -> bool:
        """Have the stream come to its end, which it cannot have done yet, and return whether it is as it should be."""
        assert not streaming.done()
        self._go_on.touch()
        return await streaming == reply("chat", self.held_prompt, TOKENS)

    @property
    def parent(self) -> psutil.Process:
        return psutil.Process(json.loads((self.folder / "note.json").read_text())["pid"])

    def running(self, what: str) -> set[int]:
        """Return the process ids of the parent's children with this word in their commands."""
        found = set[int]()
        for one in self.parent.children():
            with suppress(psutil.NoSuchProcess):  # it ends meanwhile
                if what in " ".join(one.cmdline()):
                    found.add(one.pid)
        return found

    @property
    def engines(self) -> set[int]:
        return self.running("stand_in")

    @property
    def forwarders(self) -> set[int]:
        return self.running("forwarder")


@asynccontextmanager
async def stream(endpoint: str, tokens: int, model: str = "chat", **more: Any) -> AsyncIterator[Any]:
    connector = aiohttp.UnixConnector(endpoint.removeprefix("unix:"))
    async with aiohttp.ClientSession("http://door", connector=connector) as http:
        body = {"model": model, "prompt": "a", "max_tokens": tokens, "stream": True, **more}
        headers = {MODEL_HEADER: model}
        async with http.post("/instances/node%2F0/v1/completions", json=body, headers=headers) as response:
            yield response


async def text_of(response: Any) -> str:
    return text_in(await response.read())


def text_in(body: bytes) -> str:
    lines = body.decode().splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    return "".join(event["choices"][0]["text"] for event in events)


async def ended(host: Host, parent: psutil.Process) -> None:
    await until(lambda: has_ended(parent))
    assert not (host.folder / "note.json").exists()


def run(test: Coroutine[Any, Any, None]) -> None:
    async def within() -> None:
        async with asyncio.timeout(120.0):
            await test

    bounded.run(within(), 150.0)


async def status_of(endpoint: str) -> int:
    async with stream(endpoint, 1) as response:
        return int(response.status)


async def ask(endpoint: str, tokens: int, model: str = "chat", **more: Any) -> str:
    async with stream(endpoint, tokens, model, **more) as response:
        assert response.status == 200, response.headers
        return await text_of(response)


async def begun(endpoint: str, tokens: int, **more: Any) -> "asyncio.Task[str]":
    """Return the task that reads a stream, once its first bytes have come."""
    has_begun = asyncio.Event()

    async def whole() -> str:
        async with stream(endpoint, tokens, **more) as response:
            assert response.status == 200, response.headers
            first = await response.content.readany()
            has_begun.set()
            return text_in(first + await response.read())

    reading = asyncio.create_task(whole())
    await until(lambda: has_begun.is_set() or reading.done())
    return reading


async def switched(agent: Agent, *models: str) -> Instance:
    instance = agent.instances["node/0"]
    for model in models:
        assert await instance.switch(model)
    return instance


def test_the_next_agent_takes_over_engines_and_streams(tmp_path: Path) -> None:
    async def test() -> None:
        host = Host(tmp_path)
        async with Agent(settings_in(tmp_path), processes_in(tmp_path)) as first:
            instance = await switched(first, "code", "chat")
            assert instance.report().models == {"chat": ModelState.ACTIVE, "code": WARM}
            endpoint, parent, engines, forwarders = first.endpoint, host.parent, host.engines, host.forwarders
            assert len(engines) == 2 and len(forwarders) == 1
            streaming = await host.held_stream(first)
            await first.leave()
            assert not await instance.switch("code"), "it would be half done when the next agent comes"
        between = asyncio.ensure_future(ask(endpoint, 4))  # it waits for an agent that decides it
        async with Agent(settings_in(tmp_path), processes_in(tmp_path)) as second:
            instance = second.instances["node/0"]
            report = instance.report()
            assert (report.phase, report.active) == (Phase.SERVING, "chat") and report.streams >= 1
            assert report.models == {"chat": ModelState.ACTIVE, "code": WARM}
            assert second.report().held_bytes == {"code": 10}
            assert second.endpoint == endpoint and (host.engines, host.forwarders) == (engines, forwarders)
            assert await between == reply("chat", "a", 4)
            assert await host.is_whole(streaming)
            await until(lambda: instance.report().streams == 0)
            assert await instance.switch("code") and host.engines == engines
            assert await ask(endpoint, 4, "code") == reply("code", "a", 4)
        await ended(host, parent)

    run(test())


def test_parked_streams_go_on_under_the_next_agent(tmp_path: Path) -> None:
    async def test() -> None:
        host, settings = Host(tmp_path), settings_in(tmp_path, drain_max_s=0.02)
        async with Agent(settings, processes_in(tmp_path)) as first:
            instance = await switched(first, "chat")
            streaming = await host.held_stream(first)
            await switched(first, "code")
            assert instance.report().parked == {"chat": 1}
            await first.leave()
        async with Agent(settings, processes_in(tmp_path)) as second:
            assert second.instances["node/0"].report().parked == {"chat": 1}
            await switched(second, "chat")
            assert await host.is_whole(streaming)

    run(test())


def test_an_engine_of_which_the_state_is_unknown_is_ended(tmp_path: Path) -> None:
    """The agent dies while its engine loads, or goes to sleep."""

    async def test() -> None:
        host = Host(tmp_path)
        processes = processes_in(tmp_path)
        async with Agent(settings_in(tmp_path), processes) as first:
            await switched(first, "chat")
            (engine,) = host.engines
            await first.leave()
            processes.note(processes.processes[engine], b"{}")  # as of a version that notes other things
        async with Agent(settings_in(tmp_path), processes_in(tmp_path)) as second:
            assert second.instances["node/0"].report().phase is Phase.EMPTY
            await until(lambda: engine not in host.engines)
            await switched(second, "chat")
            assert await ask(second.endpoint, 4) == reply("chat", "a", 4)

    run(test())


@pytest.mark.parametrize("refused", [False, True])
def test_settings_change_while_engines_go_on(tmp_path: Path, refused: bool) -> None:
    """An engine that cannot follow them while it runs is replaced once its streams have ended."""

    async def test() -> None:
        host = Host(tmp_path)
        async with Agent(settings_in(tmp_path), processes_in(tmp_path)) as first:
            await switched(first, "chat")
            engines, endpoint = host.engines, first.endpoint
            streaming = await host.held_stream(first)
            await first.leave()
        changed = {"policy": "edf", "profile" if refused else "classes": {"x": {"rank": 1}}}
        models = {name: replace(one, settings=json.dumps(changed)) for name, one in MODELS.items()}
        async with Agent(settings_in(tmp_path, models), processes_in(tmp_path)) as second:
            assert await host.is_whole(streaming)
            if refused:
                await until(lambda: len(host.engines - engines) == 1 and not host.engines & engines)
                await until(lambda: second.instances["node/0"].report().phase is Phase.SERVING)
            else:
                await until(lambda: second.instances["node/0"]._engines.active.settings == json.dumps(changed))
                assert host.engines == engines
            assert await ask(endpoint, 4) == reply("chat", "a", 4)

    run(test())


def test_an_engine_of_other_flags_is_replaced_once_its_streams_have_ended(tmp_path: Path) -> None:
    async def test() -> None:
        host = Host(tmp_path)
        async with Agent(settings_in(tmp_path), processes_in(tmp_path)) as first:
            await switched(first, "code", "chat")
            engines, endpoint = host.engines, first.endpoint
            streaming = await host.held_stream(first)
            await first.leave()
        models = {"chat": replace(MODELS["chat"], flags=(*FLAGS, "--other", "1")), "new": MODELS["code"]}
        async with Agent(settings_in(tmp_path, models), processes_in(tmp_path)) as second:
            assert await host.is_whole(streaming)
            await until(lambda: len(host.engines) == 1 and not host.engines & engines)
            await until(lambda: second.instances["node/0"].report().phase is Phase.SERVING)
            assert await ask(endpoint, 4) == reply("chat", "a", 4)

    run(test())


def test_an_engine_that_was_to_be_replaced_is_replaced_by_the_agent_after_the_next(tmp_path: Path) -> None:
    """The next agent restarts before the streams have ended: its note must not say that the engine is up to date."""

    async def test() -> None:
        host = Host(tmp_path)
        other = {name: replace(one, flags=(*FLAGS, "--other", "1")) for name, one in MODELS.items()}
        async with Agent(settings_in(tmp_path), processes_in(tmp_path)) as first:
            await switched(first, "code", "chat")
            engines, endpoint = host.engines, first.endpoint
            await first.leave()
        settings = settings_in(tmp_path, other)
        async with Agent(settings, processes_in(tmp_path)) as second:
            second.instances["node/0"]._engines.note_all()
            await second.leave()
            between = host.engines
        async with Agent(settings, processes_in(tmp_path)):
            await until(lambda: not host.engines & engines)
            await until(lambda: bool(host.engines))
        assert between & engines, "the second agent had no time"
        assert endpoint

    run(test())


def test_streams_of_a_model_that_is_removed_come_to_their_end(tmp_path: Path) -> None:
    async def test() -> None:
        host = Host(tmp_path)
        async with Agent(settings_in(tmp_path), processes_in(tmp_path)) as first:
            await switched(first, "code", "chat")
            endpoint = first.endpoint
            streaming = await host.held_stream(first)
            await first.leave()
        models = {"code": MODELS["code"]}
        async with Agent(settings_in(tmp_path, models), processes_in(tmp_path)) as second:
            instance = second.instances["node/0"]
            await until(lambda: instance.report().phase is Phase.DRAINING)
            assert not await instance.switch("code")
            assert await host.is_whole(streaming)
            await until(lambda: instance.report().phase is Phase.EMPTY and len(host.engines) == 1)
            assert await instance.switch("code") and await ask(endpoint, 4, "code") == reply("code", "a", 4)

    run(test())


def test_an_agent_that_is_to_stop_ends_its_engines_although_it_was_about_to_leave_them(tmp_path: Path) -> None:
    async def test() -> None:
        host = Host(tmp_path)
        async with Agent(settings_in(tmp_path), processes_in(tmp_path)) as first:
            await switched(first, "chat")
            parent = host.parent
            await first.leave()
            first.ends()
        await ended(host, parent)

    run(test())


def test_engines_outlive_a_fault_of_their_agent(tmp_path: Path) -> None:
    async def test() -> None:
        host = Host(tmp_path)
        with pytest.raises(RuntimeError, match="a fault"):
            async with Agent(settings_in(tmp_path), processes_in(tmp_path)) as first:
                await switched(first, "chat")
                engines = host.engines
                raise RuntimeError("a fault")
        async with Agent(settings_in(tmp_path), processes_in(tmp_path)) as second:
            assert second.instances["node/0"].report().phase is Phase.SERVING and host.engines == engines

    run(test())


def test_another_key_has_other_forwarders_while_streams_of_the_old_ones_go_on(tmp_path: Path) -> None:
    async def test() -> None:
        host = Host(tmp_path)
        async with Agent(settings_in(tmp_path), processes_in(tmp_path)) as first:
            await switched(first, "chat")
            endpoint, old = first.endpoint, host.forwarders
            streaming = await host.held_stream(first)
            await first.leave()
        async with Agent(settings_in(tmp_path, endpoint_key="a-key"), processes_in(tmp_path)) as second:
            await until(lambda: len(host.forwarders - old) == 1)
            await until(lambda: second.instances["node/0"].report().streams == 1)
            connector = aiohttp.UnixConnector(endpoint.removeprefix("unix:"))
            async with aiohttp.ClientSession("http://door", connector=connector) as http:

                async def status() -> int:
                    async with http.get("/state") as response:
                        return response.status

                while await status() != 401:
                    await asyncio.sleep(0.01)
            assert old <= host.forwarders and await host.is_whole(streaming)
            await until(lambda: not old & host.forwarders, limit_s=60.0)

    run(test())


def test_an_agent_at_another_address_has_other_forwarders(tmp_path: Path) -> None:
    async def test() -> None:
        host = Host(tmp_path)
        for name in ("one", "two", "one"):
            door = f"unix:{tmp_path}/{name}"
            async with Agent(settings_in(tmp_path, endpoint=door), processes_in(tmp_path)) as agent:
                if agent.instances["node/0"].report().phase is not Phase.SERVING:
                    await switched(agent, "chat")
                assert agent.endpoint == door and await ask(door, 4) == reply("chat", "a", 4)
                assert host.forwarders
                await agent.leave()
        os.kill(host.parent.pid, signal.SIGTERM)

    run(test())


def test_a_retired_forwarder_does_not_count_again_where_the_file_changes_back(tmp_path: Path) -> None:
    async def test() -> None:
        host = Host(tmp_path)
        async with Agent(settings_in(tmp_path), processes_in(tmp_path)) as first:
            await switched(first, "chat")
            endpoint, retired = first.endpoint, host.forwarders
            streaming = await host.held_stream(first)
            await first.leave()
        for key in ("a-key", None):
            async with Agent(settings_in(tmp_path, endpoint_key=key), processes_in(tmp_path)) as next_one:
                await until(lambda: bool(host.forwarders - retired))
                await until(lambda: next_one.instances["node/0"].report().streams == 1)
                if key is None:
                    assert retired <= host.forwarders
                    while await status_of(endpoint) == 401:  # a process with the key accepts until it has retired
                        await asyncio.sleep(0.01)
                    assert await ask(endpoint, 4) == reply("chat", "a", 4)
                    assert await host.is_whole(streaming)
                else:
                    await next_one.leave()

    run(test())


def test_parked_streams_outlive_an_agent_that_dies_while_the_next_model_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state of the engine that sleeps with them is known from then on."""
    never = asyncio.Event

    async def test() -> None:
        host, settings = Host(tmp_path), settings_in(tmp_path, drain_max_s=0.02)
        async with Agent(settings, processes_in(tmp_path)) as first:
            instance = await switched(first, "chat")
            streaming = await host.held_stream(first)
            with monkeypatch.context() as slow:
                slow.setattr(Engine, "ready", lambda engine: never().wait())
                switching = asyncio.ensure_future(instance.switch("code"))
                await until(lambda: instance.report().parked == {"chat": 1})
                switching.cancel()
                first._leaves = True  # as if it were killed now: nothing is awaited
        async with Agent(settings, processes_in(tmp_path)) as second:
            assert second.instances["node/0"].report().parked == {"chat": 1}
            await switched(second, "chat")
            assert await host.is_whole(streaming)

    run(test())


def test_a_forwarder_that_hangs_does_not_keep_the_next_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarders_module, "_HELLO_S", 0.5)

    async def test() -> None:
        host = Host(tmp_path)
        async with Agent(settings_in(tmp_path), processes_in(tmp_path)) as first:
            await switched(first, "chat")
            (hanging,) = host.forwarders
            os.kill(hanging, signal.SIGSTOP)
            await first.leave()
        async with Agent(settings_in(tmp_path), processes_in(tmp_path)) as second:
            await until(lambda: bool(host.forwarders) and hanging not in host.forwarders)
            assert await ask(second.endpoint, 4) == reply("chat", "a", 4)

    run(test())


def test_without_an_agent_all_processes_end(tmp_path: Path) -> None:
    async def test() -> None:
        host = Host(tmp_path)
        async with Agent(settings_in(tmp_path), processes_in(tmp_path, alone_s=0.2)) as first:
            await switched(first, "chat")
            parent, children = host.parent, host.parent.children()
            await first.leave()
        await ended(host, parent)
        await until(lambda: all(map(has_ended, children)))
        async with Agent(settings_in(tmp_path), processes_in(tmp_path)) as second:
            assert second.instances["node/0"].report().phase is Phase.EMPTY and host.parent != parent

    run(test())


def test_an_agent_learns_that_the_parent_has_died(tmp_path: Path) -> None:
    """Its engines have died with it: the agent has to end, too, and another one starts anew."""

    async def test() -> None:
        host, processes = Host(tmp_path), processes_in(tmp_path)
        async with Agent(settings_in(tmp_path), processes) as first:
            instance = await switched(first, "chat")
            children = host.parent.children()
            os.kill(host.parent.pid, signal.SIGKILL)
            await processes.lost()
            await until(lambda: all(map(has_ended, children)))
            assert instance.report().phase is not Phase.SERVING
        async with Agent(settings_in(tmp_path), processes_in(tmp_path)) as second:
            await switched(second, "chat")
            assert await ask(second.endpoint, 4) == reply("chat", "a", 4)

    run(test())


def test_an_engine_that_dies_while_there_is_no_agent(tmp_path: Path) -> None:
    async def test() -> None:
        host = Host(tmp_path)
        async with Agent(settings_in(tmp_path), processes_in(tmp_path)) as first:
            await switched(first, "chat")
            endpoint = first.endpoint
            await first.leave()
        (engine,) = map(psutil.Process, host.engines)
        engine.kill()
        await until(lambda: has_ended(engine))
        async with Agent(settings_in(tmp_path), processes_in(tmp_path)) as second:
            assert second.instances["node/0"].report().phase is Phase.EMPTY
            async with stream(endpoint, 4) as response:
                assert (response.status, response.headers[REFUSED_HEADER]) == (503, "other-model")

    run(test())


def test_engines_get_the_agents_environment_without_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "s")
    monkeypatch.setenv("LATER", "0")

    async def test() -> None:
        host = Host(tmp_path)
        job = ParentJob(str(tmp_path / "note.json"), str(tmp_path / "l"), "tests.fleet.stand_in.server", True, 60.0)
        for value in ("0", "1"):
            monkeypatch.setenv("LATER", value)
            async with Agent(settings_in(tmp_path), KeptProcesses(job, tmp_path / "log", ("SECRET",))) as agent:
                before = host.engines
                await switched(agent, "chat" if value == "0" else "code")
                (started,) = host.engines - before
                environment = psutil.Process(started).environ()
                assert environment["LATER"] == value and "SECRET" not in environment
                assert "SECRET" not in host.parent.environ()
                await agent.leave()
        os.kill(host.parent.pid, signal.SIGTERM)

    run(test())


def test_a_parent_of_another_version_is_ended_with_its_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        host = Host(tmp_path)
        async with Agent(settings_in(tmp_path), processes_in(tmp_path)) as first:
            await switched(first, "chat")
            children, parent = host.parent.children(), host.parent
            await first.leave()
        unread = [b"the first message of that version"]

        async def next_message(reader: asyncio.StreamReader) -> bytes | None:
            found = await framing.next_message(reader)
            return unread.pop() if unread else found

        monkeypatch.setattr(kept_module, "next_message", next_message)
        async with Agent(settings_in(tmp_path), processes_in(tmp_path)) as second:
            await switched(second, "chat")
            assert host.parent != parent
            await until(lambda: all(map(has_ended, children)))
            assert await ask(second.endpoint, 4) == reply("chat", "a", 4)

    run(test())


class Counted(InLoopLauncher):
    is_closed = False

    async def close(self) -> None:
        self.is_closed = True
        await super().close()


def test_engines_of_other_code_have_another_launcher(tmp_path: Path) -> None:
    """A process that forks engines has imported the code as it was."""

    async def test() -> None:
        made = list[Counted]()

        def make() -> Counted:
            made.append(Counted())
            return made[-1]

        launchers = LaunchersByCode(make)

        async def launched(code: str, number: int) -> Any:
            arguments = ("m", "--uds", f"{tmp_path}/{number}", "--served-model-name", "m")
            return await launchers.launch(EngineSpec(arguments, {}, tmp_path / str(number), tmp_path / "log"), code)

        first, second = await launched("one", 1), await launched("one", 2)
        assert len(made) == 1
        await launched("two", 3)
        first.kill()
        await first.wait()
        assert len(made) == 2 and not made[0].is_closed, "it has an engine left"
        second.kill()
        await until(lambda: made[0].is_closed)
        assert not made[1].is_closed
        await launchers.close()
        assert made[1].is_closed

    run(test())
