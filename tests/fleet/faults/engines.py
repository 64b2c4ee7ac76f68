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
        owner: The agent that has it.
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

    def adopt(self, owner: Process) -> None:
        """Belong to another agent from now on."""
        self.owner, self._ended = owner, owner.create_future()

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


class KeptEngines:
    """The engines of one state folder, which go on for a while when their agent dies.

    It stands in for the parent process of a host's engines; see :mod:`sloserve.fleet.launcher.parent`.

    Args:
        place: End of network links of its host.
        alone_s: Seconds without an agent after which the engines end.
        start: Starts an engine for an agent.
    """

    def __init__(
        self, kernel: Kernel, place: str, alone_s: float, start: Callable[[Process, EngineSpec], SimulatedEngine]
    ) -> None:
        self._kernel, self._alone_s, self._start = kernel, alone_s, start
        self._parent = Process(kernel, f"{place}/parent", place)
        self._owner: Process | None = None
        self._notes: dict[SimulatedEngine, bytes] = {}

    def begin(self, owner: Process) -> list[tuple[SimulatedEngine, bytes]]:
        """Return the engines that an earlier agent has left, each with its note; the new agent has them now."""
        self._owner = owner
        owner.on_death.append(lambda: self._is_alone(owner))
        self._notes = {engine: note for engine, note in self._notes.items() if engine.process.is_alive}
        for engine in self._notes:
            engine.adopt(owner)
        return list(self._notes.items())

    async def launch(self, spec: EngineSpec) -> SimulatedEngine:
        assert self._owner is not None
        engine = self._start(self._owner, spec)
        self._notes[engine] = spec.note
        return engine

    def note(self, engine: Any, text: bytes) -> None:
        """Keep what the next agent has to know of an engine."""
        self._notes[engine] = text

    async def close(self) -> None:
        self.kill_all()

    def kill_all(self) -> None:
        """End all engines at once."""
        for engine in self._notes:
            engine.kill()
        self._notes.clear()

    def _is_alone(self, owner: Process) -> None:
        def over() -> None:
            if self._owner is owner:
                self.kill_all()

        if self._alone_s:
            self._kernel.after(self._parent, self._alone_s, over)
        else:
            over()
