"""Engines in virtual time: the stand-in engines of other tests, each in a process that can be killed or stopped."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sloserve.fleet.agent.engine_spec import EngineSpec
from tests.fleet.faults.kernel import Kernel, Process
from tests.fleet.faults.network import Network
from tests.fleet.stand_in.engine import KILLED, StandIn
from tests.fleet.stand_in.server import app


@dataclass
class EngineTimes:
    """How long engines take: to start, for a token, to change weights; and how often one does not start."""

    start_s: float = 5.0
    step_s: float = 0.2
    control_s: float = 0.5
    fails_to_start: float = 0.0


class SimulatedEngine:
    """One engine: an :class:`~sloserve.fleet.agent.engine_spec.EngineProcess`.

    Args:
        owner: The agent that started it.
        began: Called with the engine, and the id of each request that it begins.
    """

    is_forked = True

    def __init__(
        self,
        kernel: Kernel,
        network: Network,
        owner: Process,
        pid: int,
        spec: EngineSpec,
        times: EngineTimes,
        began: "Callable[[SimulatedEngine, str], None]",
    ) -> None:
        flags = dict(zip(spec.arguments[1::2], spec.arguments[2::2], strict=False))
        self.model, self.pid = flags["--served-model-name"], pid
        self.owner, self._kernel, self._began = owner, kernel, began
        self.process = Process(kernel, f"{owner.name}/engine-{self.pid}", owner.place)
        self.killed_by_poison = False
        engine = StandIn(
            self.model,
            spec.arguments[0],
            max_num_seqs=int(flags.get("--max-num-seqs", "64")),
            step_s=times.step_s,
            die=self._die_of_poison,
        )
        self.engine, self._times = engine, times
        self._app = app(engine, spec.environment.get("SLOSERVE_ADMIN_KEY"))
        self._ended = owner.create_future()
        self.process.on_death.append(self._died)
        if kernel.rng.random() < times.fails_to_start:
            kernel.after(self.process, float(kernel.rng.exponential(times.start_s)), self.kill)
        else:
            ready_s = float(kernel.rng.uniform(0.5, 1.5)) * times.start_s
            kernel.after(self.process, ready_s, lambda: network.listen(str(spec.socket), self.process, self._serve))

    @property
    def running(self) -> list[str]:
        """Ids of its requests."""
        return [one.request_id for one in self.engine.running]

    async def wait(self) -> int:
        await self._ended
        return KILLED

    def kill(self) -> None:
        self.process.kill()

    def _died(self) -> None:
        def over() -> None:
            if not self._ended.done():
                self._ended.set_result(None)

        self._kernel.soon(self.owner, over)

    def _die_of_poison(self) -> None:
        self.killed_by_poison = True
        self.kill()

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"]
        if path == "/health":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        if path.startswith(("/v1/completions", "/v1/chat")):
            found = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
            self._began(self, found.decode())
        elif scope["method"] == "POST":
            await asyncio.sleep(self._times.control_s)
        await self._app(scope, receive, send)


class SimulatedLauncher:
    """The launcher of one agent; see :class:`sloserve.fleet.agent.engine_spec.Launcher`."""

    def __init__(self, owner: Process, start: Callable[[EngineSpec], SimulatedEngine]) -> None:
        self._start = start
        self.engines: list[SimulatedEngine] = []
        owner.on_death.append(self._kill_all)

    async def launch(self, spec: EngineSpec) -> SimulatedEngine:
        engine = self._start(spec)
        self.engines = [*(one for one in self.engines if one.process.is_alive), engine]
        return engine

    async def close(self) -> None:
        self._kill_all()

    def _kill_all(self) -> None:
        for engine in self.engines:
            engine.kill()
