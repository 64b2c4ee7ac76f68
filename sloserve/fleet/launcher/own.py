"""Processes of a host that end with its agent: they are its own children."""

import asyncio
import os
import shutil
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from sloserve.core.user_folders import socket_folder
from sloserve.fleet.agent.engine_spec import EngineProcess, EngineSpec, Launcher
from sloserve.fleet.agent.host_processes import ForwarderProcess, FoundEngine
from sloserve.fleet.agent.listening import address_of, listening_on

FORWARDER: Final = "sloserve.fleet.agent.forwarding.forwarder"


class ForwarderChild:
    """A forwarding process as a child of this process, with which it ends."""

    def __init__(self, process: asyncio.subprocess.Process, job: bytes) -> None:
        self._process, self.job = process, job

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> int:
        return await self._process.wait()

    def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()


async def start_forwarder(listening: socket.socket, job: bytes) -> ForwarderChild:
    """Start a forwarding process that accepts connections from ``listening``. Raises: OSError."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        FORWARDER,
        str(os.getpid()),
        str(listening.fileno()),
        stdin=asyncio.subprocess.PIPE,
        pass_fds=(listening.fileno(),),
        start_new_session=True,
    )
    assert process.stdin is not None
    process.stdin.write(job)
    process.stdin.close()
    return ForwarderChild(process, job)


class OwnProcesses:
    """Starts processes that end with this one; see :class:`~sloserve.fleet.agent.host_processes.HostProcesses`.

    Args:
        launcher: Launcher of the engines.
    """

    engines: Sequence[FoundEngine] = ()
    forwarders: Sequence[ForwarderChild] = ()

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._folder: Path | None = None
        self._listening: socket.socket | None = None

    async def begin(self) -> Path:
        self._folder = socket_folder()
        return self._folder

    async def launch(self, spec: EngineSpec) -> EngineProcess:
        return await self._launcher.launch(spec)

    def note(self, process: EngineProcess, text: bytes) -> None:
        """Do nothing: no engine outlives this process."""

    async def listen(self, endpoint: str) -> str:
        self._listening = listening_on(endpoint)
        return address_of(endpoint, self._listening)

    async def forward(self, job: bytes) -> ForwarderChild:
        assert self._listening is not None, "listen() comes first"
        return await start_forwarder(self._listening, job)

    def retire(self, process: ForwarderProcess) -> None:
        """Do nothing: no process outlives this one."""

    async def lost(self) -> None:
        await asyncio.Event().wait()  # they end with this process alone

    async def close(self) -> None:
        await self._launcher.close()
        if self._listening is not None:
            self._listening.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    async def leave(self) -> None:
        """End all processes, since none outlives this one."""
        await self.close()
