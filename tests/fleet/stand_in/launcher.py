"""Stand-in engines for an agent: in the event loop of the test, or as processes that can be killed."""

import asyncio
import itertools
from contextlib import nullcontext

import uvicorn

from sloserve.fleet.agent.engine_spec import EngineSpec
from sloserve.fleet.launcher.plain import PlainLauncher
from tests.fleet.stand_in.engine import KILLED, StandIn
from tests.fleet.stand_in.server import app

COMMAND = ("tests.fleet.stand_in.server",)


def processes() -> PlainLauncher:
    """A launcher of stand-ins as processes of their own."""
    return PlainLauncher(COMMAND)


class _Server(uvicorn.Server):
    def capture_signals(self):  # type: ignore[no-untyped-def]
        return nullcontext()


class InLoop:
    """One of :class:`InLoopLauncher`'s engines. engine: to see and to change what it does."""

    is_forked = True
    _pids = itertools.count(1)

    def __init__(self, spec: EngineSpec, step_s: float) -> None:
        flags = dict(zip(spec.arguments[1::2], spec.arguments[2::2], strict=False))
        self.pid = next(self._pids)
        seqs = int(flags.get("--max-num-seqs", "64"))
        name = flags["--served-model-name"]
        self.engine = StandIn(name, spec.arguments[0], max_num_seqs=seqs, step_s=step_s, die=self.kill)
        made = app(self.engine, spec.environment.get("SLOSERVE_ADMIN_KEY"))
        config = uvicorn.Config(made, uds=str(spec.socket), lifespan="off", ws="none", log_config=None)
        self._server = _Server(config)
        self._serving = asyncio.ensure_future(self._server.serve())
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    def kill(self) -> None:
        if not self._ended.done():
            self._ended.set_result(KILLED)
            loop = asyncio.get_running_loop()
            for listening in getattr(self._server, "servers", []):
                for socket in listening.sockets:
                    loop.remove_reader(socket)
                # Python 3.11 leaves the socket of an accepted connection open if its server closes before it is set up.
                loop.call_soon(listening.close)
            for connection in list(self._server.server_state.connections):
                connection.transport.abort()
            self._server.should_exit = self._server.force_exit = True

    async def gone(self) -> None:
        """End the engine, with the connections that were accepted while it ended, which the server no longer closes."""
        self.kill()
        await self._serving
        while connections := list(self._server.server_state.connections):
            for connection in connections:
                connection.transport.abort()
            await asyncio.sleep(0)


class InLoopLauncher:
    """started: all engines so far, the latest last. fail: how many of the next are not to start."""

    def __init__(self, step_s: float = 0.0) -> None:
        self._step_s = step_s
        self.started: list[InLoop] = []
        self.specs: list[EngineSpec] = []
        self.fail = 0

    async def launch(self, spec: EngineSpec) -> InLoop:
        self.specs.append(spec)
        if self.fail:
            self.fail -= 1
            raise OSError("told to fail")
        self.started.append(InLoop(spec, self._step_s))
        return self.started[-1]

    async def close(self) -> None:
        await asyncio.gather(*(one.gone() for one in self.started))
