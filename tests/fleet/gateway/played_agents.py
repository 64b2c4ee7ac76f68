"""An agent's door that a test plays, with stand-in engines behind it; and a gateway on a socket before it."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from urllib.parse import unquote

import uvicorn

from sloserve.core.spans import Phase
from sloserve.fleet.contract.endpoint import MODEL_HEADER, REFUSED_HEADER
from sloserve.fleet.contract.reports import AgentReport, InstanceReport, to_json
from sloserve.fleet.file import parse_fleet
from sloserve.fleet.fleet import Fleet
from sloserve.fleet.gateway.gateway import Gateway
from sloserve.fleet.gateway.shared_state import GatewayDependencies
from sloserve.scheduler.virtual_queues.contract import ModelState, RunningSums
from sloserve.wire.asgi import Message, Receive, Scope, Send, answer_json
from sloserve.wire.opening import BodyLimits, BoundedBody
from tests.bounded import until
from tests.fleet.stand_in.engine import StandIn
from tests.fleet.stand_in.other_routes import OtherRoutes
from tests.fleet.stand_in.server import app as stand_in

FLEET = """
models:
  chat: {profile: h100-llama3-8b}
  legal: {profile: h100-llama3-8b}
hosts:
  node-a: {device: h100, devices: 2, host_memory_gib: 64}
settings: {policy: edf}
"""


class EngineDied(Exception):
    pass


def _die() -> None:
    raise EngineDied


@dataclass
class Played:
    """One instance: what its agent says of it, and engines by model."""

    name: str
    active: str | None = "chat"
    room: int = 100
    phase: Phase = Phase.SERVING
    running: RunningSums = RunningSums()
    refusals: list[str] = field(default_factory=list)
    """Reasons that the next requests are refused for, one each."""
    refuses_after_s: float = 0.0
    in_flight: int = 0
    came: list[dict[str, str]] = field(default_factory=list)
    """Headers of the requests that came, in lower case."""
    bodies: list[bytes] = field(default_factory=list)
    engines: dict[str, StandIn] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.engines = {name: StandIn(name, die=_die) for name in ("chat", "legal")}
        self.others = {name: OtherRoutes(engine) for name, engine in self.engines.items()}
        self.apps = {name: stand_in(engine, others=self.others[name]) for name, engine in self.engines.items()}

    def report(self) -> InstanceReport:
        models = {m: ModelState.ACTIVE if m == self.active else ModelState.WARM for m in self.engines}
        room = max(self.room - self.in_flight, 0)
        return InstanceReport(self.name, "h100", self.phase, models, room=room, running=self.running)


class PlayedAgent:
    """An agent's HTTP server, as the contract has it."""

    def __init__(self, path: Path, *names: str) -> None:
        self.address = f"unix:{path}"
        self.instances = {name: Played(name) for name in names or ("node-a/0",)}
        self.asked = 0
        self._config = uvicorn.Config(
            self, uds=str(path), lifespan="off", ws="none", log_level="critical", timeout_graceful_shutdown=1
        )

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        async with running(self._config):
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/state":
            self.asked += 1
            report = AgentReport("node-a", self.address, tuple(one.report() for one in self.instances.values()))
            await answer_json(send, HTTPStatus.OK, to_json(report))
            return
        _, _, name, rest = scope["raw_path"].decode().split("/", 3)
        instance = self.instances[unquote(name)]
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        model = headers[MODEL_HEADER]
        reason = instance.refusals.pop(0) if instance.refusals else None
        if reason is None and (instance.phase is not Phase.SERVING or model != instance.active):
            reason = "other-model"
        if reason is None and instance.in_flight >= instance.room:
            reason = "full"
        if reason is not None:
            await asyncio.sleep(instance.refuses_after_s)
            await _refuse(send, 502 if reason == "died" else 503, reason)
            return
        instance.came.append(headers)
        instance.in_flight += 1
        try:
            await self._pass(instance, {**scope, "path": f"/{rest}"}, receive, send, model)
        finally:
            instance.in_flight -= 1

    async def _pass(self, instance: Played, scope: Scope, receive: Receive, send: Send, model: str) -> None:
        body = await BoundedBody(scope, receive, BodyLimits(1 << 30)).read()
        instance.bodies.append(body)
        given = False
        head: list[Message] = []

        async def again() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body}

        async def late(message: Message) -> None:
            if message["type"] == "http.response.start":
                head.append(message)
                return
            for held in head:
                await send(held)
            head.clear()
            await send(message)

        try:
            await instance.apps[model](scope, again, late)
        except BaseExceptionGroup as died:
            if died.subgroup(EngineDied) is None:
                raise
            if not head:
                raise
            await _refuse(send, 502, "died")
        except EngineDied:
            await _refuse(send, 502, "died")


async def _refuse(send: Send, status: int, reason: str) -> None:
    await answer_json(send, HTTPStatus(status), {"refused": reason}, [(REFUSED_HEADER, reason)])


@contextlib.asynccontextmanager
async def running(config: uvicorn.Config) -> AsyncIterator[uvicorn.Server]:
    """A server in this event loop."""
    server = uvicorn.Server(config)
    sockets: list[socket.socket] | None = None
    if config.uds is None:
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        config.port = listening.getsockname()[1]
        sockets = [listening]
    serving = asyncio.create_task(server._serve(sockets))
    await until(lambda: server.started)
    try:
        yield server
    finally:
        server.should_exit = True
        await serving


@dataclass
class Served:
    """A gateway on a socket."""

    gateway: Gateway
    url: str


def fleet(text: str = FLEET) -> Fleet:
    return parse_fleet(text)


@contextlib.asynccontextmanager
async def serving(around: GatewayDependencies, text: str = FLEET) -> AsyncIterator[Served]:
    """A gateway over HTTP, which knows of its instances when this returns."""
    gateway = Gateway(fleet(text), around)
    config = uvicorn.Config(gateway.app, lifespan="on", ws="none", log_level="critical", timeout_graceful_shutdown=1)
    async with running(config):
        await until(lambda: len(gateway.watch.answered) == len(around.endpoints))
        yield Served(gateway, f"http://127.0.0.1:{config.port}")
