"""The parent process of a host's engines and forwarding processes, which outlives the host's agent.

``python -m sloserve.fleet.launcher.parent`` reads a :class:`~sloserve.fleet.launcher.parent_messages.ParentJob` from
its input, and prints the path of its folder of sockets once it listens there. It does what its agent orders. When the
agent ends, engines and streams go on: the next agent of the host connects, learns which processes there are, and
continues. If none comes in time, all processes end, and so does this one. It decides nothing else, so that it need not
change where the agent does.
"""

import asyncio
import errno
import json
import logging
import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from sloserve.core import json_log
from sloserve.core.user_folders import socket_folder
from sloserve.fleet.agent.engine_spec import EngineProcess, EngineSpec, Launcher
from sloserve.fleet.agent.listening import address_of, listening_on
from sloserve.fleet.framing import encoded, next_message
from sloserve.fleet.launcher.by_code import LaunchersByCode
from sloserve.fleet.launcher.forking import ForkingLauncher
from sloserve.fleet.launcher.own import ForwarderChild, start_forwarder
from sloserve.fleet.launcher.parent_messages import (
    AGENT_SOCKET,
    FOLLOWS_S,
    Begin,
    EndAll,
    Ended,
    Failed,
    FromParent,
    Kept,
    KeptEngine,
    KeptForwarder,
    Kill,
    Leave,
    Listen,
    Listening,
    Note,
    ParentJob,
    Started,
    StartEngine,
    StartForwarder,
    to_parent,
)
from sloserve.fleet.launcher.plain import PlainLauncher

logger = logging.getLogger(__name__)

_FIRST_S: Final = 30.0
"""Seconds within which the agent that started this process connects."""
_CLOSED_S: Final = 1.0
"""Seconds in which the connection to an agent is closed at the end."""


class _Child(Protocol):
    async def wait(self) -> int: ...

    def kill(self) -> None: ...


@dataclass(slots=True, eq=False)
class _Engine:
    """An engine, and the last note about it."""

    process: EngineProcess
    note: bytes


class Parent:
    """Carries out the orders of one agent at a time.

    Args:
        alone_s: Seconds without an agent after which all processes have to end.
        launchers: Launchers of the engines.
    """

    def __init__(self, alone_s: float, launchers: LaunchersByCode) -> None:
        self._alone_s = self._next_s = alone_s
        self._launchers = launchers
        self._engines: dict[int, _Engine] = {}
        self._forwarders: dict[int, ForwarderChild] = {}
        self._agent: asyncio.StreamWriter | None = None
        self._listening: tuple[str, socket.socket] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._serving: set[asyncio.Task[Any]] = set()
        self._alone: asyncio.TimerHandle | None = None
        self.must_end = asyncio.Event()
        """Event that is set once all processes have to end, and this one after them."""
        self._wait_for_agent(max(self._alone_s, _FIRST_S))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Obey an agent until it is gone; a later one takes the place of an earlier one."""
        if self._agent is not None:
            self._agent.close()
        self._agent = writer
        serving = asyncio.current_task()
        assert serving is not None
        self._serving.add(serving)
        serving.add_done_callback(self._serving.discard)
        if self._alone is not None:
            self._alone.cancel()
        engines = [KeptEngine(pid, one.process.is_forked, one.note) for pid, one in self._engines.items()]
        forwarders = [KeptForwarder(pid, one.job) for pid, one in self._forwarders.items()]
        self._say(Kept(engines, forwarders))
        try:
            while (data := await next_message(reader)) is not None:
                self._obey(data)
        except (ValueError, msgspec.MsgspecError):
            logger.exception("an order of the agent cannot be read; its connection is closed")
        finally:
            writer.close()
            if self._agent is writer:
                self._agent = None
                self._wait_for_agent(self._next_s if self._engines or self._forwarders else 0.0)

    async def end(self) -> None:
        """End all processes."""
        for task in list(self._tasks):
            task.cancel()
        for forwarder in self._forwarders.values():
            forwarder.kill()
        await self._launchers.close()
        if self._listening is not None:
            self._listening[1].close()
        if self._agent is not None:
            self._agent.close()
        if self._serving:
            await asyncio.wait(self._serving, timeout=_CLOSED_S)

    def _wait_for_agent(self, limit_s: float) -> None:
        self._alone = asyncio.get_running_loop().call_later(limit_s, self._give_up)

    def _give_up(self) -> None:
        if self._engines or self._forwarders:
            logger.warning("no agent has come in time: engines and forwarding processes end")
        self.must_end.set()

    def _obey(self, data: bytes) -> None:
        match to_parent.decode(data):
            case StartEngine() as order:
                self._spawn(self._done(order.id, self._start_engine(order)))
            case StartForwarder() as order:
                self._spawn(self._done(order.id, self._start_forwarder(order)))
            case Listen() as order:
                self._spawn(self._done(order.id, self._listen(order)))
            case Begin(alone_s):
                self._alone_s = self._next_s = alone_s
            case Leave():
                self._next_s = max(self._alone_s, FOLLOWS_S)
            case Note(pid, text):
                if pid in self._engines:
                    self._engines[pid].note = text
                elif pid in self._forwarders:
                    self._forwarders[pid].job = text
            case Kill(pid):
                self._kill(pid)
            case EndAll():
                self.must_end.set()

    async def _done(self, id: int, order: Coroutine[Any, Any, FromParent]) -> None:
        """Carry out an order, and report its result to the agent that gave it."""
        agent = self._agent
        try:
            done = await order
        except Exception as error:  # the agent waits for a result, also of a fault of this process
            number = error.errno if isinstance(error, OSError) else None
            done = Failed(id, number or errno.EIO, getattr(error, "strerror", None) or repr(error))
        if agent is self._agent:
            self._say(done)
        elif isinstance(done, Started):  # another agent would take it for one of its own
            self._kill(done.pid)

    async def _start_engine(self, order: StartEngine) -> FromParent:
        spec = EngineSpec(tuple(order.arguments), order.environment, Path(order.socket), Path(order.log), order.note)
        process = await self._launchers.launch(spec, order.code)
        self._engines[process.pid] = _Engine(process, order.note)
        self._watch(process.pid, process, self._engines)
        return Started(order.id, process.pid, process.is_forked)

    async def _start_forwarder(self, order: StartForwarder) -> FromParent:
        if self._listening is None:
            raise OSError(errno.ENOTCONN, "no socket was opened for it")
        child = await start_forwarder(self._listening[1], order.job)
        self._forwarders[child.pid] = child
        self._watch(child.pid, child, self._forwarders)
        return Started(order.id, child.pid, False)

    async def _listen(self, order: Listen) -> FromParent:
        if self._listening is None or self._listening[0] != order.endpoint:
            opened = listening_on(order.endpoint)
            if self._listening is not None:
                self._listening[1].close()
            self._listening = order.endpoint, opened
        return Listening(order.id, address_of(*self._listening))

    def _kill(self, pid: int) -> None:
        if pid in self._engines:
            self._engines[pid].process.kill()
        if pid in self._forwarders:
            self._forwarders[pid].kill()

    def _watch(self, pid: int, child: _Child, among: dict[int, Any]) -> None:
        async def watched() -> None:
            status = await child.wait()
            del among[pid]
            self._say(Ended(pid, status))

        self._spawn(watched())

    def _say(self, message: FromParent) -> None:
        """Tell the agent, if there is one: the next one learns which processes there are."""
        if self._agent is not None and not self._agent.is_closing():
            self._agent.write(encoded(message))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def serve(job: ParentJob, ready: Callable[[Path], None]) -> None:
    """Serve until all processes have to end."""
    parent, folder = Parent(job.alone_s, LaunchersByCode(lambda: _launcher(job))), socket_folder()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, parent.must_end.set)
    note = Path(job.note)
    try:
        server = await asyncio.start_unix_server(parent.serve, str(folder / AGENT_SOCKET))
        scratch = note.with_suffix(f".{os.getpid()}")
        scratch.write_text(json.dumps({"folder": str(folder), "pid": os.getpid()}), encoding="utf-8")
        scratch.replace(note)
        ready(folder)
        await parent.must_end.wait()
        server.close()
    finally:
        await parent.end()
        with suppress(OSError, ValueError):
            if json.loads(note.read_text(encoding="utf-8"))["pid"] == os.getpid():
                note.unlink()
        shutil.rmtree(folder, ignore_errors=True)


def _launcher(job: ParentJob) -> Launcher:
    if not job.has_engines:
        return PlainLauncher()
    if job.engine_module is not None:
        return PlainLauncher((job.engine_module,))
    launcher = ForkingLauncher(Path(job.log))
    launcher.begin()
    return launcher


def main() -> None:
    """Run the process, as a child of no process that an agent could take with it."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=ParentJob)
    if os.fork():
        os._exit(0)
    if json_log.logs_are_json():
        json_log.use_json_logs()
    else:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def ready(folder: Path) -> None:
        print(folder, flush=True)
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)  # the agent waits for the end of the output
        os.close(nothing)

    asyncio.run(serve(job, ready))


if __name__ == "__main__":
    main()
