"""The processes of a host beside its agent: engines, and the processes that pass requests to them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sloserve.fleet.agent.engine_spec import EngineProcess, EngineSpec


@dataclass(frozen=True, slots=True)
class FoundEngine:
    """A running engine that the host's agent before this one has started.

    Args:
        process: First process of the engine.
        note: The last note about the engine, see :class:`~sloserve.fleet.agent.engine_note.EngineNote`.
    """

    process: EngineProcess
    note: bytes


class ForwarderProcess(Protocol):
    """A process that passes requests on, see :mod:`sloserve.fleet.agent.forwarding.forwarder`."""

    @property
    def pid(self) -> int: ...

    @property
    def job(self) -> bytes:
        """The job with which it was started."""
        ...

    async def wait(self) -> int:
        """Wait until it has ended, and return its exit status."""
        ...

    def kill(self) -> None:
        """End it at once. Do nothing if it has ended."""
        ...


class HostProcesses(Protocol):
    """Starts the processes of a host; the owner begins with it, and closes or leaves it at the end."""

    @property
    def engines(self) -> Sequence[FoundEngine]:
        """Engines that an agent before this one has left."""
        ...

    @property
    def forwarders(self) -> Sequence[ForwarderProcess]:
        """Forwarding processes that an agent before this one has left."""
        ...

    async def begin(self) -> Path:
        """Return the folder of the host's sockets, for this user alone. Raises: ConfigError."""
        ...

    async def launch(self, spec: EngineSpec) -> EngineProcess:
        """Start an engine, and return as soon as its process is there. Raises: OSError."""
        ...

    def note(self, process: EngineProcess, text: bytes) -> None:
        """Keep a note about an engine for the next agent, in place of the last one."""
        ...

    def retire(self, process: ForwarderProcess) -> None:
        """Keep in mind that a forwarding process takes no more requests, whatever its job was."""
        ...

    async def listen(self, endpoint: str) -> str:
        """Open the socket from which forwarding processes accept connections, and return its address. Raises: OSError.

        Args:
            endpoint: Address, as :func:`~sloserve.fleet.agent.listening.listening_on` takes it. If an agent before this
                one has opened the same address, its socket stays.
        """
        ...

    async def forward(self, job: bytes) -> ForwarderProcess:
        """Start a forwarding process on the socket of :meth:`listen`. Raises: OSError.

        Args:
            job: A :class:`~sloserve.fleet.agent.forwarding.forwarder_job.ForwarderJob` as JSON.
        """
        ...

    async def lost(self) -> None:
        """Wait until all processes have ended without an order: then the agent has to end, too."""
        ...

    async def close(self) -> None:
        """End all processes."""
        ...

    async def leave(self) -> None:
        """Leave the processes to the next agent."""
        ...
