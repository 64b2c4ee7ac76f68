"""A door with stand-in engines behind it, in the test's own process: what an agent gives to those who pull."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any, cast

from sloserve.core.spans import Phase
from sloserve.fleet.contract.endpoint import DurableWork, InstanceResponse, LineSize, Refusal, Refused
from sloserve.fleet.contract.reports import AgentReport, InstanceReport, to_json
from sloserve.scheduler.virtual_queues.contract import ModelState
from tests.fleet.stand_in.engine import StandIn
from tests.fleet.stand_in.server import Call


class FakeEndpoint:
    """One instance. work: told of what happens, as an agent tells it. room: requests that its engine takes."""

    def __init__(self, name: str, *models: str, room: int = 8, step_s: float = 0.0) -> None:
        self.name, self.room, self.streams, self.room_for_streams = name, room, 0, 0
        self.phase, self.active, self.models = Phase.SERVING, models[0], models
        self.work: DurableWork | None = None
        self.asked: list[tuple[str, dict[str, Any], Mapping[str, str]]] = []
        self.switched: list[str] = []
        self.warm: tuple[str, ...] = ()
        self.step_s = step_s
        self.deaths = 0
        self.active_for_s: float | None = 100.0
        self._start()

    def _start(self) -> None:
        engine = self.engine = StandIn(self.active, max_num_seqs=1_000, step_s=self.step_s, die=self.die)
        self.dead = asyncio.Event()
        assert engine is not None

    def die(self) -> None:
        """The engine dies; another has come as soon as its puller knows."""
        self.dead.set()
        self.deaths += 1
        self.phase = Phase.FAILED
        asyncio.get_running_loop().call_soon(self._told)

    def _told(self) -> None:
        assert self.work is not None
        self.work.died(self.name)
        self._start()
        self.phase = Phase.SERVING
        self.work.serves(self.name)

    def report(self) -> InstanceReport:
        state = {model: ModelState.ACTIVE if model == self.active else ModelState.WARM for model in self.models}
        room = self.room - len(self.engine.running)
        given = {"streams": self.streams, "room": room, "room_for_streams": self.room_for_streams}
        return InstanceReport(self.name, "cpu", self.phase, state, self.active_for_s, **given)

    def beat(self) -> dict[str, Any]:
        """What its agent tells the store."""
        return to_json(AgentReport("a", "unix:a", (self.report(),)))

    async def send(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        *,
        model: str,
        line: LineSize | None = None,
    ) -> InstanceResponse:
        assert line is not None and method == "POST"
        if self.phase is not Phase.SERVING:
            raise Refused(Refusal.SWITCHING)
        if model != self.active:
            raise Refused(Refusal.OTHER_MODEL)
        asked = json.loads(body)
        self.asked.append((path, asked, headers))
        request: Any = SimpleNamespace(headers=headers)
        call = Call(self.engine, asked, path.endswith("/chat/completions"), request)
        parts = call.stream() if asked.get("stream") else _whole(call)
        return InstanceResponse(200, {}, _until_dead(parts, self.dead))

    async def switch(self, model: str) -> bool:
        if self.phase not in (Phase.SERVING, Phase.EMPTY):
            return False
        assert self.work is not None
        self.switched.append(model)
        self.phase = Phase.DRAINING
        await self.work.leave(self.name, 1.5)
        assert not self.engine.running
        self.active, self.phase = model, Phase.SERVING
        self._start()
        self.work.serves(self.name)
        return True

    async def keep_warm(self, models: tuple[str, ...]) -> None:
        self.warm = models


async def _whole(call: Call) -> AsyncIterator[bytes]:
    answer = await call.whole()
    yield bytes(answer.body)


async def _until_dead(parts: AsyncIterator[bytes], dead: asyncio.Event) -> AsyncIterator[bytes]:
    async with aclosing(cast(Any, parts)):
        async for part in parts:
            if dead.is_set():
                raise ConnectionResetError("the engine is gone")
            yield part
    if dead.is_set():
        raise ConnectionResetError("the engine is gone")
