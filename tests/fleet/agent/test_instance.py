"""An agent with stand-in engines: which model serves, what becomes of streams, and what is refused."""

import asyncio
import itertools
import json
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from sloserve.core.errors import ConfigError, StoreAway
from sloserve.core.spans import Phase
from sloserve.fleet.agent import agent as agent_module
from sloserve.fleet.agent import engine_set
from sloserve.fleet.agent import instance as instance_module
from sloserve.fleet.agent.agent import Agent, AgentSettings
from sloserve.fleet.agent.engine import EngineLimits
from sloserve.fleet.agent.engine_client import EngineClient
from sloserve.fleet.agent.engine_requests import AwaitedRequests
from sloserve.fleet.agent.engine_spec import EngineModel
from sloserve.fleet.agent.instance import Instance
from sloserve.fleet.contract.endpoint import (
    MODEL_HEADER,
    PREFIX_HEADER,
    REFUSED_HEADER,
    InstanceResponse,
    LineSize,
    Refusal,
    Refused,
)
from sloserve.fleet.contract.reported_tasks import TASK_HEADER
from sloserve.fleet.contract.reports import agent_report
from sloserve.fleet.gateway.agent_connections import AgentConnections
from sloserve.fleet.launcher.own import OwnProcesses
from sloserve.scheduler.virtual_queues.contract import ModelState
from sloserve.wire.form import Form, FormFile
from tests import bounded
from tests.bounded import until
from tests.fleet.stand_in.engine import LONG, POISON, reply
from tests.fleet.stand_in.launcher import InLoopLauncher
from tests.ports import free_port

ACTIVE, WARM, COLD = ModelState.ACTIVE, ModelState.WARM, ModelState.COLD
MODELS = {name: EngineModel(name, name, weights_bytes=10, max_num_seqs=4) for name in ("chat", "code", "legal")}
MODELS["polite"] = EngineModel("polite", "/adapters/polite", adapter_of="chat")
Test = Callable[[Agent, Instance, InLoopLauncher], Awaitable[None]]


class Durable:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.streams_ended = 0

    async def leave(self, instance: str, limit_s: float) -> None:
        self.told.append("leave")

    def serves(self, instance: str) -> None:
        self.told.append("serves")

    def ended(self, instance: str) -> None:
        self.streams_ended += 1

    def died(self, instance: str) -> None:
        self.told.append("died")


def run(
    folder: Path,
    test: Test,
    *,
    memory: int = 20,
    step_s: float = 0.0,
    drain_max_s: float = 5.0,
    late_s: float = 60.0,
    hung_s: float = 60.0,
) -> Durable:
    durable, launcher = Durable(), InLoopLauncher(step_s)

    async def within() -> None:
        settings = AgentSettings(
            "node",
            "cpu",
            {"node/0": MODELS},
            folder,
            host_memory_bytes=memory,
            drain_max_s=drain_max_s,
            limits=EngineLimits(start_s=60.0, control_s=late_s, canary_s=late_s, hung_s=hung_s),
        )
        async with Agent(settings, OwnProcesses(launcher), durable=durable) as agent, asyncio.timeout(120.0):
            await test(agent, agent.instances["node/0"], launcher)

    bounded.run(within(), 150.0)
    return durable


async def ask(instance: Instance, model: str, tokens: int = 4, prompt: str = "a", **more: Any) -> str:
    """The text of a completion, through the door."""
    body = {"model": model, "prompt": prompt, "max_tokens": tokens, "stream": True, **more}
    answer = await instance.send(
        "POST", "/v1/completions", {"x-request-id": "r"}, json.dumps(body).encode(), model=model
    )
    text = b"".join([part async for part in answer.body]).decode()
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    return "".join(event["choices"][0]["text"] for event in events)


def states(instance: Instance) -> list[ModelState]:
    return [instance.report().models[name] for name in MODELS]


def refusal(instance: Instance, model: str) -> Awaitable[Refusal]:
    async def refused() -> Refusal:
        with pytest.raises(Refused) as found:
            await ask(instance, model)
        return found.value.reason

    return refused()


@pytest.mark.slow
def test_models_come_start_sleep_and_wake(tmp_path: Path) -> None:
    async def test(agent: Agent, instance: Instance, launcher: InLoopLauncher) -> None:
        assert instance.report().phase is Phase.EMPTY
        assert await refusal(instance, "chat") is Refusal.OTHER_MODEL
        assert await instance.switch("chat") and await instance.switch("chat")
        assert await ask(instance, "chat") == reply("chat", "a", 4)
        assert await instance.switch("code")
        assert states(instance) == [WARM, ACTIVE, COLD, COLD]
        assert await refusal(instance, "chat") is Refusal.OTHER_MODEL
        assert agent.report().held_bytes == {"chat": 10}
        assert await instance.switch("chat")
        assert len(launcher.started) == 2, "it was woken, not started again"
        assert await ask(instance, "chat") == reply("chat", "a", 4)
        # Both models' steps were measured, and with them the swaps between them.
        measured = {(swap.leaving, swap.coming, swap.state) for swap in agent.report().swaps}
        assert {("chat", "code", COLD), ("code", "chat", WARM), (None, "chat", COLD)} <= measured
        assert not await instance.switch("unknown")

    durable = run(tmp_path, test)
    assert durable.told == ["serves", "leave", "serves", "leave", "serves"]
    assert durable.streams_ended == 2, "who pulls lines looks for the room that they leave"
    # What was measured outlives the agent.
    assert "wake_s" in (tmp_path / "swap-costs-node.json").read_text()


@pytest.mark.slow
def test_a_batch_that_fills_an_engine_leaves_places_to_streams(tmp_path: Path) -> None:
    """A stream waited before the engine for as long as lines came: each place that came free was taken by the next."""

    async def test(agent: Agent, instance: Instance, launcher: InLoopLauncher) -> None:
        await instance.switch("chat")
        body = json.dumps({"model": "chat", "prompt": "a", "max_tokens": 500, "stream": True}).encode()

        async def send(durable: bool) -> Refusal | None:
            try:
                await instance.send(
                    "POST", "/v1/completions", {}, body, model="chat", line=LineSize(1.0, 7, True) if durable else None
                )
            except Refused as refused:
                return refused.reason
            return None

        assert [await send(True) for _ in range(6)] == [None] * 5 + [Refusal.FULL]
        assert instance.report().running.longest_output_tokens <= 7, "no line is parsed: its size is told"
        assert [await send(False) for _ in range(2)] == [None, Refusal.FULL]

    run(tmp_path, test, step_s=0.05)


@pytest.mark.slow
def test_lines_are_read_in_few_parts_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each arrival of an event cost as much as twenty events that are read together."""
    monkeypatch.setattr(instance_module, "READS_EVERY_S", 0.05)

    async def test(agent: Agent, instance: Instance, launcher: InLoopLauncher) -> None:
        await instance.switch("chat")
        body = json.dumps({"model": "chat", "prompt": "a", "max_tokens": 200, "stream": True}).encode()

        async def parts(line: LineSize | None) -> list[bytes]:
            response = await instance.send("POST", "/v1/completions", {}, body, model="chat", line=line)
            return [part async for part in response.body]

        line, stream = await parts(LineSize(1.0, 200, True)), await parts(None)
        assert len(line) < len(stream) / 4
        texts = [
            [json.loads(row[6:])["choices"][0]["text"] for row in b"".join(found).splitlines() if row[:7] == b"data: {"]
            for found in (line, stream)
        ]
        assert texts[0] == texts[1] and "".join(texts[0]) == reply("chat", "a", 200)
        # An abort and a death between two reads are seen at the next one.
        response = await instance.send("POST", "/v1/completions", {}, body, model="chat", line=LineSize(1.0, 200, True))
        await anext(response.body)
        reading = asyncio.ensure_future(anext(response.body))
        await asyncio.sleep(0)
        launcher.started[0].kill()
        with pytest.raises(ConnectionResetError):
            while await reading:
                reading = asyncio.ensure_future(anext(response.body))

    run(tmp_path, test, step_s=0.002)


@pytest.mark.slow
def test_memory_decides_how_deep_models_sleep(tmp_path: Path) -> None:
    async def test(agent: Agent, instance: Instance, launcher: InLoopLauncher) -> None:
        for model in ("chat", "code"):
            assert await instance.switch(model)
        await instance.keep_warm(("code", "chat"))
        assert await instance.switch("legal")  # no room for both: the one that is wanted more stays
        assert states(instance)[:3] == [COLD, WARM, ACTIVE]
        assert agent.report().held_bytes == {"code": 10}
        await instance.keep_warm(())
        assert states(instance)[:3] == [COLD, COLD, ACTIVE] and agent.report().held_bytes == {}
        await instance.switch("chat")
        assert states(instance)[:3] == [ACTIVE, COLD, COLD], "what nothing asks for sleeps without weights"
        started = len(launcher.started)
        assert await instance.switch("legal") and len(launcher.started) == started, "weights were read again"
        assert await ask(instance, "legal") == reply("legal", "a", 4)

    run(tmp_path, test, memory=10)


@pytest.mark.slow
def test_two_instances_do_not_take_the_same_host_memory(tmp_path: Path) -> None:
    """Each found room for its weights while those of the other were on their way there."""

    async def within() -> None:
        instances = {"node/0": MODELS, "node/1": MODELS}
        settings = AgentSettings("node", "cpu", instances, tmp_path, host_memory_bytes=10)
        async with Agent(settings, OwnProcesses(InLoopLauncher())) as agent, asyncio.timeout(60.0):
            for model in ("chat", "code"):
                assert all(await asyncio.gather(*(one.switch(model) for one in agent.instances.values())))
            assert agent.report().held_bytes == {"chat": 10}

    bounded.run(within())


@pytest.mark.slow
def test_a_transition_that_fails_in_an_unknown_way_ends_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The instance refused everything from then on."""

    async def test(agent: Agent, instance: Instance, launcher: InLoopLauncher) -> None:
        await instance.switch("chat")
        with monkeypatch.context() as patched:
            patched.setattr(AwaitedRequests, "send_back", lambda *_: 1 / 0)
            assert not await instance.switch("code")
        await until(lambda: instance.report().phase is Phase.SERVING)
        assert await ask(instance, "code") == reply("code", "a", 4)

    run(tmp_path, test)


@pytest.mark.slow
def test_two_models_take_turns_in_the_memory_of_one(tmp_path: Path) -> None:
    async def test(agent: Agent, instance: Instance, launcher: InLoopLauncher) -> None:
        for model in ("chat", "code", "chat", "code"):
            assert await instance.switch(model)
        await instance.keep_warm(("polite",))  # an adapter needs the weights of its base
        assert states(instance)[:2] == [WARM, ACTIVE] and len(launcher.started) == 2
        assert agent.report().held_bytes == {"chat": 10}

    run(tmp_path, test, memory=10)


@pytest.mark.slow
def test_a_model_that_is_built_alike_comes_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_set, "are_alike", lambda one, other: {one.name, other.name} == {"chat", "code"})

    async def test(agent: Agent, instance: Instance, launcher: InLoopLauncher) -> None:
        await instance.switch("chat")
        assert await instance.switch("code") and len(launcher.started) == 1
        assert await ask(instance, "code") == reply("code", "a", 4)
        assert states(instance)[:2] == [COLD, ACTIVE]
        assert await instance.switch("legal"), "what is in place now sleeps"
        assert states(instance)[:3] == [COLD, WARM, ACTIVE]
        assert await instance.switch("code")
        launcher.started[0].engine.faults.refuse = ["/sloserve/reload"]
        assert await instance.switch("chat") and len(launcher.started) == 3
        assert await ask(instance, "chat") == reply("chat", "a", 4)

    run(tmp_path, test)


@pytest.mark.slow
def test_requests_are_refused_from_the_begin_of_a_transition_and_streams_end_before(tmp_path: Path) -> None:
    async def test(agent: Agent, instance: Instance, launcher: InLoopLauncher) -> None:
        await instance.switch("chat")
        streaming = asyncio.ensure_future(ask(instance, "chat", 40))
        await until(lambda: instance.report().running.context_tokens > 0)
        assert instance.report().streams == 1 and instance.report().drain_s > 0
        switching = asyncio.ensure_future(instance.switch("code"))
        await asyncio.sleep(0)
        assert await refusal(instance, "chat") is Refusal.SWITCHING
        report = instance.report()
        assert report.phase is Phase.DRAINING and report.ready_in_s > 0
        assert report.active == "code" and report.models["chat"] is ModelState.WARM, "planners count on what comes"
        assert not await instance.switch("legal"), "one transition at a time"
        assert await streaming == reply("chat", "a", 40)
        assert await switching

    run(tmp_path, test, step_s=0.001)


@pytest.mark.slow
def test_streams_that_take_too_long_are_parked_and_go_on_when_their_model_is_back(tmp_path: Path) -> None:
    async def test(agent: Agent, instance: Instance, launcher: InLoopLauncher) -> None:
        await instance.switch("chat")
        streaming = asyncio.ensure_future(ask(instance, "chat", 100))
        await until(lambda: instance.report().running.context_tokens > 0)
        assert await instance.switch("code")
        assert instance.report().parked == {"chat": 1} and instance.report().streams == 0
        await instance.keep_warm(())  # they keep their engine
        assert await instance.switch("chat")
        assert await streaming == reply("chat", "a", 100)

    run(tmp_path, test, step_s=0.002, drain_max_s=0.02)


@pytest.mark.slow
def test_an_agent_that_stops_lets_streams_end_and_takes_no_more(tmp_path: Path) -> None:
    """One that was told to stop broke them all off."""

    async def test(agent: Agent, instance: Instance, launcher: InLoopLauncher) -> None:
        await instance.switch("chat")
        streaming = asyncio.ensure_future(ask(instance, "chat", 40))
        await until(lambda: instance.report().running.context_tokens > 0)
        draining = asyncio.ensure_future(agent.drain())
        await until(lambda: instance.report().phase is not Phase.SERVING)
        assert await refusal(instance, "chat") is Refusal.SWITCHING
        assert (instance.report().phase, instance.report().room) == (Phase.DRAINING, 0)
        assert not await instance.switch("code")
        await draining
        assert streaming.done() and await streaming == reply("chat", "a", 40)

    run(tmp_path, test, step_s=0.001)


@pytest.mark.slow
@pytest.mark.parametrize("memory", [20, 0], ids=["room for weights", "no room"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_request_without_a_byte_is_sent_back_when_the_time_to_drain_is_over(
    tmp_path: Path, memory: int, stream: bool
) -> None:
    """Nothing has been said to its client: it goes elsewhere, or comes again, and waits for no wake."""

    async def test(agent: Agent, instance: Instance, launcher: InLoopLauncher) -> None:
        await instance.switch("chat")
        engine = launcher.started[0].engine
        connector = aiohttp.UnixConnector(agent.endpoint.removeprefix("unix:"))
        async with aiohttp.ClientSession("http://door", connector=connector) as http:
            body = {"model": "chat", "prompt": LONG, "max_tokens": 9, "stream": stream}
            path = "/instances/node%2F0/v1/completions"
            asking = asyncio.ensure_future(http.post(path, json=body, headers={MODEL_HEADER: "chat"}))
            await until(lambda: bool(engine.running))
            assert await instance.switch("code")
            answer = await asking
            assert (answer.status, answer.headers[REFUSED_HEADER]) == (503, "switching")
        await until(lambda: engine.aborted == 1)
        assert instance.report().parked == {} and instance.report().streams == 0

    run(tmp_path, test, memory=memory, step_s=0.01, drain_max_s=0.05)


@pytest.mark.slow
def test_without_memory_streams_that_take_too_long_are_ended(tmp_path: Path) -> None:
    async def test(agent: Agent, instance: Instance, launcher: InLoopLauncher) -> None:
        await instance.switch("chat")
        streaming = asyncio.ensure_future(ask(instance, "chat", 5000))
        await until(lambda: instance.report().running.context_tokens > 0)
        assert await instance.switch("code")
        with pytest.raises(ConnectionResetError):
            await streaming
        await until(lambda: launcher.started[0].engine.aborted == 1)

    run(tmp_path, test, memory=0, step_s=0.002, drain_max_s=0.02)


def test_a_client_that_leaves_as_its_answer_begins_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock = EngineClient.send

    async def send(self: EngineClient, *args: Any) -> Any:
        answer = await stock(self, *args)
        asyncio.get_running_loop().call_soon(asking.cancel)  # just before it is told
        return answer

    async def test(agent: Agent, instance: Instance, launcher: InLoopLauncher) -> None:
        nonlocal asking
        await instance.switch("chat")
        room = instance.report().room
        monkeypatch.setattr(EngineClient, "send", send)
        asking = asyncio.ensure_future(ask(instance, "chat", 5000))
        with pytest.raises(asyncio.CancelledError):
            await asking
        await until(lambda: launcher.started[0].engine.aborted == 1)
        assert instance.report().room == room and instance.report().streams == 0

    asking: asyncio.Future[str]
    run(tmp_path, test, step_s=0.001)


@pytest.mark.slow
def test_a_request_that_is_cancelled_before_it_is_sent_takes_no_place(tmp_path: Path) -> None:
    """As a line whose deadline has passed when its turn comes. An instance was full of them, with nothing to do."""

    async def test(agent: Agent, instance: Instance, launcher: InLoopLauncher) -> None:
        await instance.switch("chat")
        for end in ("the client's", "the instance's"):
            asking = asyncio.ensure_future(ask(instance, "chat"))
            await asyncio.sleep(0)
            if end == "the client's":
                asking.cancel()
            else:
                assert instance._engines.active is not None
                instance._engines.active.requests.abort()
            with pytest.raises((asyncio.CancelledError, Refused)):
                await asking
        assert instance.report().running.requests == 0

    run(tmp_path, test)


def test_what_is_not_read_of_answers_is_closed_with_the_instance(tmp_path: Path) -> None:
    held = list[InstanceResponse]()

    async def test(agent: Agent, instance: Instance, launcher: InLoopLauncher) -> None:
        await instance.switch("chat")
        body = json.dumps({"model": "chat", "prompt": "a", "max_tokens": 500, "stream": True}).encode()
        held.append(await instance.send("POST", "/v1/completions", {}, body, model="chat"))

    async def read() -> None:
        await anext(held[0].body)

    run(tmp_path, test, step_s=0.05)
    with pytest.raises(Refused):
        bounded.run(read())


def test_a_request_that_is_aborted_as_its_answer_begins_does_not_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock = EngineClient.send

    async def test(agent: Agent, instance: Instance, launcher: InLoopLauncher) -> None:
        await instance.switch("chat")
        engine = instance._engines.active
        assert engine is not None

        async def send(self: EngineClient, *args: Any) -> Any:
            answer = await stock(self, *args)
            asyncio.get_running_loop().call_soon(engine.requests.abort)
            return answer

        monkeypatch.setattr(EngineClient, "send", send)
        with pytest.raises(Refused):
            await ask(instance, "chat", 3000)
        await until(lambda: launcher.started[0].engine.aborted == 1)

    run(tmp_path, test, step_s=0.001)


@pytest.mark.slow
def test_an_adapter_comes_beside_its_base_and_nothing_leaves(tmp_path: Path) -> None:
    async def test(agent: Agent, instance: Instance, launcher: InLoopLauncher) -> None:
        await instance.switch("chat")
        streaming = asyncio.ensure_future(ask(instance, "chat", 30))
        await until(lambda: instance.report().streams == 1)
        assert await instance.switch("polite")
        assert await ask(instance, "polite") == reply("/adapters/polite", "a", 4)
        assert await streaming == reply("chat", "a", 30)
        assert states(instance) == [WARM, COLD, COLD, ACTIVE] and len(launcher.started) == 1
        assert "--enable-lora" in launcher.specs[0].arguments
        await instance.switch("code")
        assert await instance.switch("polite"), "its base is woken"
        assert await ask(instance, "polite") == reply("/adapters/polite", "a", 4)

    durable = run(tmp_path, test, step_s=0.001)
    assert durable.told[:2] == ["serves", "serves"]


@pytest.mark.slow
def test_a_model_that_comes_late_is_expected_to_take_as_long_again(tmp_path: Path) -> None:
    """Else a planner waits for it, moment after moment, beside an instance that is free."""

    async def test(agent: Agent, instance: Instance, launcher: InLoopLauncher) -> None:
        for model in ("chat", "code", "chat", "code"):
            assert await instance.switch(model)
        launcher.started[0].engine.faults.hang = ["/wake_up"]
        coming, said = asyncio.ensure_future(instance.switch("chat")), list[float]()
        while not coming.done():
            said.append(instance.report().ready_in_s)
            await asyncio.sleep(0.01)
        assert await coming
        assert any(later > earlier + 0.1 for earlier, later in itertools.combinations(said, 2))

    run(tmp_path, test, late_s=0.4)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [{"refuse": ["/wake_up"]}, {"hang": ["/wake_up"]}, {"wrong": True}, {"step_s": 1.0}])
def test_an_engine_that_wakes_wrong_or_late_is_killed_and_started(tmp_path: Path, fault: dict[str, Any]) -> None:
    async def test(agent: Agent, instance: Instance, launcher: InLoopLauncher) -> None:
        await instance.switch("chat")
        await instance.switch("code")
        for name, value in fault.items():
            setattr(launcher.started[0].engine.faults, name, value)
        assert await instance.switch("chat")
        assert len(launcher.started) == 3
        assert await ask(instance, "chat") == reply("chat", "a", 4)

    run(tmp_path, test, late_s=0.8 if fault.keys() & {"hang", "step_s"} else 60.0)


@pytest.mark.slow
def test_an_engine_that_dies_is_replaced(tmp_path: Path) -> None:
    async def test(agent: Agent, instance: Instance, launcher: InLoopLauncher) -> None:
        await instance.switch("chat")
        launcher.fail = 1
        streaming = asyncio.ensure_future(ask(instance, "chat", 5000))
        await until(lambda: instance.report().running.context_tokens > 0)
        with pytest.raises(Refused) as refused:
            await ask(instance, "chat", prompt=POISON, stream=False)
        assert refused.value.reason is Refusal.DIED
        with pytest.raises(ConnectionResetError):
            await streaming
        await until(lambda: instance.report().phase is Phase.FAILED)
        assert await refusal(instance, "chat") is Refusal.FAILED
        await until(lambda: instance.report().phase is Phase.SERVING)
        assert await ask(instance, "chat") == reply("chat", "a", 4)

    durable = run(tmp_path, test, step_s=0.001)
    assert durable.told == ["serves", "died", "serves"]


@pytest.mark.slow
@pytest.mark.parametrize("stuck", ["core", "tokens"])
def test_an_engine_that_computes_nothing_more_is_killed_and_started(tmp_path: Path, stuck: str) -> None:
    """Its API process still says that it is healthy."""

    async def test(agent: Agent, instance: Instance, launcher: InLoopLauncher) -> None:
        await instance.switch("chat")
        streaming = asyncio.ensure_future(ask(instance, "chat", 5000))
        await until(lambda: instance.report().running.context_tokens > 0)
        launcher.started[0].engine.faults.stuck = stuck
        with pytest.raises(ConnectionResetError):
            await streaming
        await until(lambda: instance.report().phase is Phase.SERVING and len(launcher.started) > 1)
        assert await ask(instance, "chat") == reply("chat", "a", 4)

    durable = run(tmp_path, test, step_s=0.001, hung_s=0.2)
    assert durable.told[:3] == ["serves", "died", "serves"], "its lines become suspects"


@pytest.mark.slow
def test_an_engine_with_a_long_prompt_or_nothing_to_do_does_not_hang(tmp_path: Path) -> None:
    async def test(agent: Agent, instance: Instance, launcher: InLoopLauncher) -> None:
        await instance.switch("chat")
        assert await ask(instance, "chat", 1, LONG) == reply("chat", LONG, 1), "longer than it may hang"
        engine = launcher.started[0].engine
        asked = engine.felt
        await until(lambda: engine.felt >= asked + 6)  # it is asked four times in the time for which it may hang
        assert len(launcher.started) == 1

    run(tmp_path, test, step_s=0.003, hung_s=0.25)


TASK = {TASK_HEADER: f"{7:016x}=0,1.000,1.000,,0"}


@pytest.mark.slow
def test_the_door_on_the_wire(tmp_path: Path) -> None:
    async def test(agent: Agent, instance: Instance, launcher: InLoopLauncher) -> None:
        await instance.switch("chat")
        connector = aiohttp.UnixConnector(agent.endpoint.removeprefix("unix:"))
        async with aiohttp.ClientSession("http://door", connector=connector) as http:
            async with http.get("/state") as state:
                report = agent_report(await state.json())
            assert report == agent.report() or report is not None
            assert report.instances[0].active == "chat" and agent.report().swaps and not report.swaps

            async def post(path: str, model: str = "chat", **body: Any) -> aiohttp.ClientResponse:
                headers = {MODEL_HEADER: model, "x-request-id": "r-7", PREFIX_HEADER: "9f3c=1200"} | TASK
                sent = {"model": model, "prompt": "a", "max_tokens": 4, **body}
                return await http.post(f"/instances/node%2F0{path}", json=sent, headers=headers)

            answer = await post("/v1/completions")
            assert answer.headers["x-request-id"] == "r-7" and launcher.started[0].engine.seen[-1] == "r-7"
            assert (await answer.json())["choices"][0]["text"] == reply("chat", "a", 4)
            # Gateways read which prompts came; the store does not get them, and a cache that leaves is forgotten.
            (one,) = agent.report(for_store=False).instances
            assert (one.cached, one.tasks) == ({"9f3c": 1200}, {f"{7:016x}": "0,1.000,1.000,,0"})
            (one,) = agent.report().instances
            assert (one.cached, one.tasks) == ({}, {})
            await instance.switch("code")
            assert instance.report().cached == {} and await instance.switch("chat")
            other = await post("/v1/completions", "code")
            assert (other.status, other.headers[REFUSED_HEADER]) == (503, "other-model")
            for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
                assert (await post(path, query="a", documents=["b"])).status == 200, path
            form, content_type = Form({"model": ["chat"]}, [FormFile("file", "a.wav", "audio/wav", b"12")]).encoded()
            headers = {MODEL_HEADER: "chat", "content-type": content_type}
            url = "/instances/node%2F0/v1/audio/transcriptions"
            async with http.post(URL(f"http://door{url}", encoded=True), data=form, headers=headers) as heard:
                assert (await heard.json())["text"] == reply("chat", "2", 8)
            for path in ("/sleep", "/collective_rpc", "/sloserve/park", "/v1/load_lora_adapter", "/v1/../sleep"):
                assert (await post(path)).status == 404, path
            for path in ("/v1/%2e%2e/sleep", "/v1/./load_lora_adapter", "/v1/load_lora_adapter/", "/v1/x%3F"):
                url = URL(f"http://door/instances/node%2F0{path}", encoded=True)
                async with http.post(url, headers={MODEL_HEADER: "chat"}, json={}) as odd:
                    assert odd.status == 404 and "routes that clients may use" in await odd.text(), path
            engine = launcher.started[0].engine
            assert not engine.is_sleeping and not engine.adapters
            # A client that leaves ends its request in the engine.
            aborted = launcher.started[0].engine.aborted
            launcher.started[0].engine.faults.step_s = 0.005
            leaving = await post("/v1/completions", max_tokens=5000, stream=True)
            await leaving.content.readany()
            leaving.close()
            await until(lambda: launcher.started[0].engine.aborted > aborted and not instance.report().streams)
            for stream in (False, True):  # of which the head has come from the engine
                died = await post("/v1/completions", prompt=POISON, stream=stream)
                assert (died.status, died.headers[REFUSED_HEADER]) == (502, "died")
                await until(lambda: instance.report().phase is Phase.FAILED)
                await until(lambda: instance.report().phase is Phase.SERVING)

    run(tmp_path, test)


@pytest.mark.slow
@pytest.mark.parametrize("key", ["key-of-the-fleet", "another-key-of-16", None])
def test_a_door_on_tcp_opens_to_its_key_alone(tmp_path: Path, key: str | None) -> None:
    """To gateways that show it; engines never see it."""

    async def within() -> None:
        door = f"http://127.0.0.1:{free_port()}"
        settings = AgentSettings(
            "node", "cpu", {"node/0": MODELS}, tmp_path, endpoint=door, endpoint_key="key-of-the-fleet"
        )
        gateway = AgentConnections(60.0, key)
        async with Agent(settings, OwnProcesses(InLoopLauncher())) as agent:
            assert await agent.instances["node/0"].switch("chat")
            body = json.dumps({"model": "chat", "prompt": "a", "max_tokens": 4}).encode()
            sending = gateway.send(
                door, "node/0", "/v1/completions", [("content-type", "application/json")], body, "chat"
            )
            if key == "key-of-the-fleet":
                assert await gateway.state(door) is not None
                assert json.loads(await (await sending).read())["choices"][0]["text"] == reply("chat", "a", 4)
            else:
                assert await gateway.state(door) is None
                with pytest.raises(Refused) as refused:
                    await sending
                assert refused.value.reason is Refusal.FAILED
            await gateway.close()

    bounded.run(within())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("transitions", "requests"), [(12, 24), pytest.param(50, 1000, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_no_request_waits_for_a_transition(tmp_path: Path, transitions: int, requests: int) -> None:
    """Each is answered by its model or refused at once, and none comes to an engine that is paused."""
    answered, refused = list[str](), list[Refusal]()
    stopping = asyncio.Event()

    async def client(instance: Instance, model: str) -> None:
        while not stopping.is_set():
            try:
                assert await ask(instance, model, 3) == reply(model, "a", 3)
                answered.append(model)
            except Refused as error:
                refused.append(error.reason)
                await asyncio.sleep(0.002)

    async def test(agent: Agent, instance: Instance, launcher: InLoopLauncher) -> None:
        await instance.switch("chat")
        clients = [asyncio.ensure_future(client(instance, model)) for model in ("chat", "code") * 2]
        for turn in range(transitions):
            wanted = requests * (turn + 1) // transitions
            await until(lambda: len(answered) >= wanted)  # noqa: B023
            assert await instance.switch(("code", "chat")[turn % 2])
        stopping.set()
        await asyncio.gather(*clients)
        canaries = 2 + transitions - 1  # a record for each model, and a check after each wake
        assert sum(len(one.engine.seen) for one in launcher.started) == len(answered) + canaries
        assert not any(one.engine.came_paused for one in launcher.started)
        assert len(answered) >= requests and len(launcher.started) == 2
        assert set(refused) == {Refusal.SWITCHING, Refusal.OTHER_MODEL}

    run(tmp_path, test)


@pytest.mark.parametrize("door", ["http://127.0.0.1:{port}", "unix:/tmp/" + 120 * "x"])
def test_a_door_that_cannot_be_opened_is_said(tmp_path: Path, door: str) -> None:
    """The agent was started again and again, with a trace of the stack in its log."""

    async def within() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = door.format(port=taken.getsockname()[1])
            settings = AgentSettings("node", "cpu", {"node/0": MODELS}, tmp_path, endpoint=address, endpoint_key="k")
            processes = OwnProcesses(InLoopLauncher())
            agent = Agent(settings, processes)
            with pytest.raises(ConfigError, match="cannot be opened.*hosts.node"):
                await agent.__aenter__()
            assert processes._folder is not None and not processes._folder.exists()

    bounded.run(within())


class Fence:
    """Of a store that is away for the first sign of life."""

    def __init__(self) -> None:
        self.beats = list[Any]()
        self.away = 0

    async def beat(self, state: Any) -> None:
        if not self.away:
            self.away += 1
            raise StoreAway("no route")
        self.beats.append(state)

    async def leave(self, *, to_next: bool) -> None:
        self.beats.append(None)


def test_signs_of_life_go_on_when_the_store_is_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_module, "BEAT_S", 0.01)
    fence: Any = Fence()

    async def within() -> None:
        settings = AgentSettings("node", "cpu", {"node/0": MODELS}, tmp_path)
        async with Agent(settings, OwnProcesses(InLoopLauncher()), fence):
            await until(lambda: bool(fence.beats))

    bounded.run(within())
    state, *_, last = fence.beats
    report = agent_report(json.loads(json.dumps(state)))
    assert report is not None and report.instances[0].name == "node/0"
    assert fence.away == 1 and last is None


@pytest.mark.slow
def test_what_pulls_may_fail_and_the_engines_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(agent: Agent, instance: Instance, launcher: InLoopLauncher) -> None:
        def fail(*_: Any) -> None:
            raise RuntimeError("no store")

        async def fail_later(*_: Any) -> None:
            fail()

        for name, failing in (("leave", fail_later), ("serves", fail), ("died", fail)):
            monkeypatch.setattr(Durable, name, failing)
        assert await instance.switch("chat") and await instance.switch("code")
        with pytest.raises(Refused):
            await ask(instance, "code", prompt=POISON, stream=False)
        await until(lambda: instance.report().phase is Phase.FAILED)
        await until(lambda: instance.report().phase is Phase.SERVING)
        assert await ask(instance, "code") == reply("code", "a", 4)

    run(tmp_path, test)
