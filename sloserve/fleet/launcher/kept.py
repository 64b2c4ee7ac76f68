"""Processes of a host that outlive its agent: they are children of a process that the next agent finds.

See :mod:`sloserve.fleet.launcher.parent`.
"""

import asyncio
import itertools
import json
import logging
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from sloserve.core.errors import ConfigError, EngineError
from sloserve.core.installed_code import digest_of_code
from sloserve.core.process_death import PARENT
from sloserve.fleet.agent.engine_spec import EngineProcess, EngineSpec, Launcher
from sloserve.fleet.agent.host_processes import ForwarderProcess, FoundEngine
from sloserve.fleet.framing import encoded, next_message
from sloserve.fleet.launcher.parent_messages import (
    AGENT_SOCKET,
    Begin,
    EndAll,
    Ended,
    Failed,
    FromParent,
    Kept,
    Kill,
    Leave,
    Listen,
    Listening,
    Note,
    ParentJob,
    Started,
    StartEngine,
    StartForwarder,
    ToParent,
    from_parent,
)

logger = logging.getLogger(__name__)
_T = TypeVar("_T")

MODULE: Final = "sloserve.fleet.launcher.parent"
_CONNECTED_S: Final = 60.0
"""Longest time for the process to say what it keeps, in seconds: it is ended with its engines after that."""
_START_S: Final = 60.0
"""Longest start of the process, in seconds."""
_ANSWER_S: Final = 120.0
"""Seconds for an order to be carried out."""
_IMPORT_S: Final = 960.0
"""The same for the start of an engine, which may wait until a process has imported vLLM."""
_END_S: Final = 20.0
_GONE_S: Final = 5.0
"""Seconds within which a process that is killed is gone."""
_LOOK_S: Final = 0.05
_CODE: Final = ("sloserve", "vllm", "torch")
"""Packages that a process which forks engines has imported."""
_LOST: Final = -9
"""Exit status of processes that have ended with their parent process."""


def noted_parent(note: Path) -> int | None:
    """Return the id of the parent process that is noted in a file, if it runs."""
    try:
        pid = int(json.loads(note.read_text(encoding="utf-8"))["pid"])
        runs = MODULE.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()  # the number may be another's by now
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return pid if runs else None


class KeptProcess:
    """A process of the parent process, as its agent sees it.

    Args:
        pid: Process id.
        is_forked: Whether it was forked.
        job: Job of a forwarding process.
        orders: Sends orders to the parent process.
    """

    def __init__(self, pid: int, is_forked: bool, job: bytes, orders: "KeptProcesses") -> None:
        self.pid, self.is_forked, self.job, self._orders = pid, is_forked, job, orders
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    def kill(self) -> None:
        if not self._ended.done():
            self._orders.kill(self.pid)

    def has_ended(self, status: int) -> None:
        """Record that it has ended."""
        if not self._ended.done():
            self._ended.set_result(status)


class KeptProcesses:
    """Processes of a host beyond its agent; see :class:`~sloserve.fleet.agent.host_processes.HostProcesses`.

    Args:
        job: Job of the parent process, if it has to be started.
        log: File for what the parent process and the forwarding processes log.
        without: Environment variables that no process gets.
        attached: Launcher of engines that others started; ``None`` if the parent process starts them.
    """

    def __init__(
        self, job: ParentJob, log: Path, without: tuple[str, ...] = (), attached: Launcher | None = None
    ) -> None:
        self._job, self._log, self._without, self._attached = job, log, {*without, PARENT}, attached
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._numbers = itertools.count()
        self._ordered: dict[int, asyncio.Future[FromParent]] = {}
        self.processes: dict[int, KeptProcess] = {}
        """Running processes by process id."""
        self._lost = asyncio.Event()
        self._code = digest_of_code(_CODE)
        self._is_leaving = False
        self.engines: tuple[FoundEngine, ...] = ()
        self.forwarders: tuple[KeptProcess, ...] = ()

    async def begin(self) -> Path:
        folder = self._folder()
        found = None if folder is None else await self._connected(folder)
        if folder is None or found is None:
            folder = await self._started()
            found = await self._connected(folder)
            if found is None:
                raise EngineError(f"the parent process of engines does not respond; its log is {self._log}")
        kept, reader = found
        for pid, is_forked, job in [
            *((one.pid, one.is_forked, b"") for one in kept.engines),
            *((one.pid, False, one.job) for one in kept.forwarders),
        ]:
            self.processes[pid] = KeptProcess(pid, is_forked, job, self)
        self.engines = tuple(FoundEngine(self.processes[one.pid], one.note) for one in kept.engines)
        self.forwarders = tuple(self.processes[one.pid] for one in kept.forwarders)
        self._reading = asyncio.create_task(self._read(reader))
        return folder

    async def launch(self, spec: EngineSpec) -> EngineProcess:
        if self._attached is not None:
            return await self._attached.launch(spec)
        order = StartEngine(
            next(self._numbers),
            self._code,
            list(spec.arguments),
            {**self._environment(), **spec.environment},
            str(spec.socket),
            str(spec.log),
            spec.note,
        )
        started = await self._order(order, Started, _IMPORT_S)
        return self.processes[started.pid]

    def note(self, process: EngineProcess, text: bytes) -> None:
        if isinstance(process, KeptProcess):
            self._send(Note(process.pid, text))

    def retire(self, process: ForwarderProcess) -> None:
        if isinstance(process, KeptProcess):
            process.job = b""
            self._send(Note(process.pid, b""))

    async def listen(self, endpoint: str) -> str:
        return (await self._order(Listen(next(self._numbers), endpoint), Listening, _ANSWER_S)).address

    async def forward(self, job: bytes) -> KeptProcess:
        started = await self._order(StartForwarder(next(self._numbers), job), Started, _ANSWER_S)
        process = self.processes[started.pid]
        process.job = job
        return process

    def kill(self, pid: int) -> None:
        """Have a process ended at once."""
        self._send(Kill(pid))

    async def lost(self) -> None:
        await self._lost.wait()

    async def close(self) -> None:
        self._is_leaving = True
        self._send(EndAll())
        if self._reading is not None:
            await asyncio.wait({self._reading}, timeout=_END_S)
        await self._drop()

    async def leave(self) -> None:
        self._is_leaving = True
        self._send(Leave())
        await self._drop()

    async def _drop(self) -> None:
        """Close the connection."""
        if self._writer is not None:
            self._writer.close()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})
        if self._attached is not None:
            await self._attached.close()

    async def _connected(self, folder: Path) -> tuple[Kept, asyncio.StreamReader] | None:
        """Connect to the parent process of this folder; ``None`` if it is gone, or is of another version."""
        try:
            reader, writer = await asyncio.open_unix_connection(str(folder / AGENT_SOCKET))
        except OSError:
            await self._end_other()  # it may run without its folder, which something else has removed
            return None
        try:
            async with asyncio.timeout(_CONNECTED_S):
                first = await next_message(reader)
            if first is not None and isinstance(kept := from_parent.decode(first), Kept):
                self._writer = writer
                self._send(Begin(self._job.alone_s))
                return kept, reader
        except (TimeoutError, ValueError, msgspec.MsgspecError):
            pass
        writer.close()
        await self._end_other()
        return None

    async def _end_other(self) -> None:
        """End a parent process that this agent cannot take over, with its engines, and wait until it is gone."""
        pid = noted_parent(Path(self._job.note))
        if pid is None:
            return
        logger.warning("the parent process of engines (%d) cannot be taken over: it is ended with its engines", pid)
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
        looks = int(_GONE_S / _LOOK_S)
        while looks and noted_parent(Path(self._job.note)) == pid:
            looks -= 1
            await asyncio.sleep(_LOOK_S)

    def _environment(self) -> dict[str, str]:
        """Return this process's environment, as engines get it: the parent process may have an older one."""
        return {name: value for name, value in os.environ.items() if name not in self._without}

    def _folder(self) -> Path | None:
        """Return the folder that the last parent process has noted."""
        try:
            found: Mapping[str, object] = json.loads(Path(self._job.note).read_text(encoding="utf-8"))
            return Path(str(found["folder"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    async def _started(self) -> Path:
        """Start the parent process, and return its folder.

        Raises: ConfigError; EngineError if it takes too long, so that the agent is started again.
        """
        why = ""
        try:
            with self._log.open("ab") as log:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    MODULE,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=log,
                    env=self._environment(),
                    start_new_session=True,
                )
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(msgspec.json.encode(self._job))
            process.stdin.close()
            async with asyncio.timeout(_START_S):
                folder = (await process.stdout.readline()).decode().strip()
                await process.wait()  # it has left a child that goes on
            if folder:
                return Path(folder)
        except TimeoutError:
            raise EngineError(f"the parent process has not started within {_START_S:g} s; log {self._log}") from None
        except OSError as error:
            why = f": {error}"
        raise ConfigError(f"the parent process of engines does not start{why}; its log is {self._log}")

    async def _order(self, order: StartEngine | StartForwarder | Listen, kind: type[_T], limit_s: float) -> _T:
        """Give an order, and return what has come of it. Raises: OSError."""
        if self._reading is None or self._reading.done():
            raise OSError("the parent process has ended")
        done = self._ordered[order.id] = asyncio.get_running_loop().create_future()
        try:
            self._send(order)
            async with asyncio.timeout(limit_s):
                found = await done
        except TimeoutError:
            raise OSError(f"the parent process has not responded within {limit_s:g} s") from None
        finally:
            self._ordered.pop(order.id, None)
        assert isinstance(found, kind)
        return found

    def _send(self, order: ToParent) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(encoded(order))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while (data := await next_message(reader)) is not None:
                self._heard(from_parent.decode(data))
        finally:
            for ordered in self._ordered.values():
                if not ordered.done():
                    ordered.set_exception(OSError("the parent process has ended"))
            if not self._is_leaving:
                logger.error("the parent process of engines has ended, and its engines with it")
                for process in list(self.processes.values()):
                    process.has_ended(_LOST)
                self._lost.set()

    def _heard(self, said: FromParent) -> None:
        match said:
            case Ended(pid, status):
                process = self.processes.pop(pid, None)
                if process is not None:
                    process.has_ended(status)
            case Started(id, pid, is_forked):
                self.processes[pid] = KeptProcess(pid, is_forked, b"", self)
                if not self._settle(id, said):
                    self.kill(pid)  # the caller has given up
            case Listening(id):
                self._settle(id, said)
            case Failed(id, number, text):
                self._settle(id, OSError(number, text))

    def _settle(self, id: int, found: FromParent | OSError) -> bool:
        ordered = self._ordered.get(id)
        if ordered is None or ordered.done():
            return False
        if isinstance(found, OSError):
            ordered.set_exception(found)
        else:
            ordered.set_result(found)
        return True
