"""What an agent starts, and what starts it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Attached:
    """A server that others started. key: of its API, if it asks for one. admin_key: of its routes below ``/sloserve``;
    ``None``: it has none, as stock vLLM.
    """

    url: str
    key: str | None = field(default=None, repr=False)
    admin_key: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as an engine serves it.

    Args:
        name: by which requests ask for it.
        model: the folder, or the name, that ``sloserve serve`` is given; of an adapter its folder.
        flags: of ``sloserve serve``, without those that name model and socket.
        environment: of the engine, beside the agent's own.
        weights_bytes: what it holds in host memory while it sleeps.
        max_num_seqs: requests that its engine runs at once.
        adapter_of: the model that it is a LoRA adapter of; ``None`` for a model of its own.
        longest_step_s: of its engine, as its profile foresees it; 0 where that is not known.
        tokens_an_event: of its streams, as its flags say.
        attached: the server that has it, where that was started by others.
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


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One engine to start: arguments of ``sloserve serve``, what its environment has besides, where it logs."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    socket: Path
    log: Path


class EngineProcess(Protocol):
    """An engine's first process, which leads the group of all of them."""

    @property
    def pid(self) -> int: ...

    @property
    def is_forked(self) -> bool:
        """Whether it was forked from a process that had vLLM imported, or started from nothing."""
        ...

    async def wait(self) -> int:
        """Its exit status, once it has ended."""
        ...

    def kill(self) -> None:
        """Ends it and all that it started, at once. Does nothing where they have ended."""
        ...


class Launcher(Protocol):
    """Starts engines, which die with the agent."""

    async def launch(self, spec: EngineSpec) -> EngineProcess:
        """Returns as soon as the process is there; raises OSError where it cannot be."""
        ...

    async def close(self) -> None:
        """Ends all engines and the launcher."""
        ...
