"""Engines forked from a process that has imported vLLM, and started without forking where that fails."""

import asyncio
import itertools
import json
import logging
import os
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import Any, Final

from sloserve.fleet.agent.engine_spec import EngineProcess, EngineSpec
from sloserve.fleet.launcher.plain import PlainLauncher, kill_group, start

logger = logging.getLogger(__name__)

MODULE: Final = "sloserve.vllm_plugin.launcher"
_READY_S: Final = 900.0
"""Longest wait, in seconds, for an import of vLLM: it takes 10 s, and minutes on a busy machine."""
_ANSWER_S: Final = 60.0
_MOST_FAILURES: Final = 3
"""After this many failures in a row, engines are started without forking, for good."""
_LAUNCHER_ENDED: Final = -9


class ForkedProcess:
    """An engine that the launcher process forked: it is a child of the launcher, not of this process."""

    is_forked = True

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    def kill(self) -> None:
        if not self._ended.done():
            kill_group(self.pid)

    def has_ended(self, status: int) -> None:
        """Record that the engine ended with ``status``, and end what it has left behind."""
        if not self._ended.done():
            kill_group(self.pid)
            self._ended.set_result(status)


class ForkingLauncher:
    """Forks engines from a launcher process; see :class:`~sloserve.fleet.agent.engine_spec.Launcher`.

    The process starts with :meth:`begin`, or with the first engine; one that has died is started again.

    Args:
        log: Log file of the launcher process.
    """

    def __init__(self, log: Path, plain: PlainLauncher | None = None, module: str = MODULE) -> None:
        self._log, self._plain, self._module = log, plain or PlainLauncher(), module
        self._forked: dict[int, ForkedProcess] = {}
        self._waiting: dict[int, asyncio.Future[int]] = {}
        self._numbers = itertools.count()
        self._starting: asyncio.Task[Process] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._failures = 0

    @property
    def pid(self) -> int | None:
        """The process id of the launcher process; ``None`` until it is ready."""
        started = self._starting
        return started.result().pid if started and started.done() and not started.exception() else None

    def begin(self) -> None:
        """Start the launcher process, so that it imports vLLM while nothing waits for it yet."""
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())

    async def launch(self, spec: EngineSpec) -> EngineProcess:
        if self._failures < _MOST_FAILURES:
            try:
                forked = await self._fork(spec)
                self._failures = 0
                return forked
            except (OSError, TimeoutError, ValueError) as error:
                self._failures += 1
                logger.warning("starting an engine without forking, since forking failed: %s", error or "no response")
        return await self._plain.launch(spec)

    async def close(self) -> None:
        forked = list(self._forked.values())
        for process in forked:
            process.kill()
        await asyncio.gather(*(process.wait() for process in forked))
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait({self._starting})
            if not self._starting.cancelled() and not self._starting.exception():
                kill_group(self._starting.result().pid)
                await self._starting.result().wait()
        if self._reading is not None:
            await asyncio.wait({self._reading})
        await self._plain.close()

    async def _fork(self, spec: EngineSpec) -> ForkedProcess:
        self.begin()
        starting = self._starting
        assert starting is not None
        try:
            launcher = await asyncio.shield(starting)
        except (OSError, TimeoutError):
            self._starting = None
            raise
        assert launcher.stdin is not None
        number = next(self._numbers)
        order = {"id": number, "arguments": spec.arguments, "log": str(spec.log), "environment": dict(spec.environment)}
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            launcher.stdin.write(json.dumps(order).encode() + b"\n")
            async with asyncio.timeout(_ANSWER_S):
                return self._forked[await answer]
        finally:
            self._waiting.pop(number, None)

    async def _start(self) -> Process:
        # Use one thread: a fork keeps only the forking thread, and would wait for pools of others without end.
        environment = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
        launcher = await start([self._module], self._log, environment, stdin=PIPE, stdout=PIPE)
        assert launcher.stdout is not None
        try:
            async with asyncio.timeout(_READY_S):
                if not await launcher.stdout.readline():
                    raise OSError(f"the launcher ended before it was ready; its log is {self._log}")
        except BaseException:
            kill_group(launcher.pid)
            await launcher.wait()
            raise
        self._reading = asyncio.create_task(self._read(launcher))
        return launcher

    async def _read(self, launcher: Process) -> None:
        assert launcher.stdout is not None
        while line := await launcher.stdout.readline():
            self._heard(json.loads(line))
        await launcher.wait()
        self._starting = None
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(OSError("the launcher has died"))
        for process in list(self._forked.values()):
            process.has_ended(_LAUNCHER_ENDED)  # its engines die with it
        self._forked.clear()

    def _heard(self, said: dict[str, Any]) -> None:
        if "status" in said:
            process = self._forked.pop(said["pid"], None)
            if process is not None:
                process.has_ended(said["status"])
            return
        if "pid" in said:
            self._forked[said["pid"]] = ForkedProcess(said["pid"])
        waiting = self._waiting.get(said["id"])
        if waiting is None or waiting.done():
            if "pid" in said:
                self._forked[said["pid"]].kill()  # the caller has given up
        elif "pid" in said:
            waiting.set_result(said["pid"])
        else:
            waiting.set_exception(OSError(said["error"]))
