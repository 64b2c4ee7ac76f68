"""What an agent starts, and the launcher that starts it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Attached:
    """A server that others started.

    Args:
        url: Address of the server.
        key: Key of its API, if it asks for one.
        admin_key: Key of its routes below ``/sloserve``; ``None`` if it has no such routes, as stock vLLM.
    """

    url: str
    key: str | None = field(default=None, repr=False)
    admin_key: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class EngineModel:
    """A model as an engine serves it.

    Args:
        name: Name by which requests ask for it.
        model: Folder or name that ``sloserve serve`` is given; the folder of an adapter.
        flags: Flags of ``sloserve serve``, without the flags that name model and socket.
        environment: Environment variables of the engine, beside the agent's own.
        weights_bytes: Bytes that it holds in host memory while it sleeps.
        max_num_seqs: Requests that its engine runs at once.
        adapter_of: Model that it is a LoRA adapter of; ``None`` for a model of its own.
        longest_step_s: Seconds of its engine's longest step, as its profile foresees it; 0 if that is not known.
        tokens_an_event: Tokens of an event of its streams, as its flags say.
        attached: Server that has it, if others started that server.
        settings: Settings of sloserve that its engines follow, as JSON; empty if they are not known.
    """

    name: str
    model: str
    flags: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    weights_bytes: int = 0
    max_num_seqs: int = 256
    adapter_of: str | None = None
    longest_step_s: float = 0.0
    tokens_an_event: int = 1
    attached: "Attached | None" = None
    settings: str = ""


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One engine to start.

    Args:
        arguments: Arguments of ``sloserve serve``.
        environment: Further environment variables.
        socket: Unix socket on which it listens.
        log: File to which it logs.
        note: First note about it, see :meth:`~sloserve.fleet.agent.host_processes.HostProcesses.note`.
    """

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    socket: Path
    log: Path
    note: bytes = b""


class EngineProcess(Protocol):
    """First process of an engine, which leads the group of all its processes."""

    @property
    def pid(self) -> int: ...

    @property
    def is_forked(self) -> bool:
        """Whether it was forked from a process that had vLLM imported, instead of being started from nothing."""
        ...

    async def wait(self) -> int:
        """Wait until it has ended, and return its exit status."""
        ...

    def kill(self) -> None:
        """End it and all that it started, at once. Do nothing if they have ended."""
        ...


class Launcher(Protocol):
    """Starts engines, which end with the process that has it."""

    async def launch(self, spec: EngineSpec) -> EngineProcess:
        """Return as soon as the process is there; raise OSError if it cannot be started."""
        ...

    async def close(self) -> None:
        """End all engines and the launcher."""
        ...
