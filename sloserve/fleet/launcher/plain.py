"""Engines that are started without a fork, each by its own command."""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from sloserve.fleet.agent.engine_spec import EngineSpec

SERVE: Final = ("sloserve.cli", "serve")
"""The module that is run, and its first arguments."""


class StartedProcess:
    """A child of this process that leads its own process group, which ends with it."""

    is_forked = False

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process, self.is_gone = process, False

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> int:
        status = await self._process.wait()
        self.kill()  # processes that it has left behind
        self.is_gone = True
        return status

    def kill(self) -> None:
        if not self.is_gone:
            kill_group(self.pid)


class PlainLauncher:
    """Starts engines as child processes; see :class:`~sloserve.fleet.agent.engine_spec.Launcher`.

    Args:
        command: a module and its first arguments.
    """

    def __init__(self, command: Sequence[str] = SERVE) -> None:
        self._command = command
        self._started: set[StartedProcess] = set()

    async def launch(self, spec: EngineSpec) -> StartedProcess:
        started = StartedProcess(
            await start([*self._command, *spec.arguments], spec.log, spec.environment, stdin=None, stdout=None)
        )
        self._started = {one for one in self._started if not one.is_gone} | {started}
        return started

    async def close(self) -> None:
        for started in self._started:
            started.kill()
        await asyncio.gather(*(started.wait() for started in self._started))


async def start(
    command: Sequence[str], log: Path, environment: Mapping[str, str], stdin: int | None, stdout: int | None
) -> asyncio.subprocess.Process:
    """Run a Python module that dies with this process; call this in the main thread, since it is that thread's child.

    Args:
        command: a module and its arguments.
        log: File that receives the output.
        environment: Variables added to this process's environment.
        stdin: Value for asyncio, or ``None`` for no input.
        stdout: Value for asyncio, or ``None`` for the log.
    """
    with log.open("ab") as file:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "sloserve.fleet.launcher.child",
            str(os.getpid()),
            *command,
            env={**os.environ, **environment},
            stdin=asyncio.subprocess.DEVNULL if stdin is None else stdin,
            stdout=file if stdout is None else stdout,
            stderr=file,
            start_new_session=True,
        )


def kill_group(leader: int) -> None:
    """Kill all processes of a group at once; do nothing if there are none."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
