"""The messages between an agent and the parent process of its engines; see :mod:`sloserve.fleet.framing`."""

from typing import Final, TypeAlias

import msgspec


class ParentJob(msgspec.Struct):
    """The job with which the process is started.

    Args:
        note: Path of the file in which it notes where it is, for later agents.
        log: Log file of the process that forks engines.
        engine_module: Module that is run as an engine, for tests; ``None`` for ``sloserve serve``.
        has_engines: Whether it starts engines, and not only forwarding processes.
        alone_s: Seconds without an agent after which it ends all processes.
    """

    note: str
    log: str
    engine_module: str | None
    has_engines: bool
    alone_s: float


class Begin(msgspec.Struct, tag=True, array_like=True):
    """The agent's first message: the seconds without an agent after which all processes end."""

    alone_s: float


class Leave(msgspec.Struct, tag=True, array_like=True):
    """The agent ends in order, and another follows: it has at least :data:`FOLLOWS_S` seconds."""


class StartEngine(msgspec.Struct, tag=True, array_like=True):
    """Start an engine, with the fields of :class:`~sloserve.fleet.agent.engine_spec.EngineSpec`.

    Args:
        code: Digest of the installed code, which the engine is to run.
    """

    id: int
    code: str
    arguments: list[str]
    environment: dict[str, str]
    socket: str
    log: str
    note: bytes


class StartForwarder(msgspec.Struct, tag=True, array_like=True):
    """Start a forwarding process with this job, on the socket that was opened last."""

    id: int
    job: bytes


class Listen(msgspec.Struct, tag=True, array_like=True):
    """Open the socket of an endpoint, unless it is open."""

    id: int
    endpoint: str


class Note(msgspec.Struct, tag=True, array_like=True):
    """Keep a note about an engine; an empty one about a forwarding process says that it takes no more requests."""

    pid: int
    text: bytes


class Kill(msgspec.Struct, tag=True, array_like=True):
    """End a process at once, with all that it started."""

    pid: int


class EndAll(msgspec.Struct, tag=True, array_like=True):
    """End all processes, and then this one."""


class Started(msgspec.Struct, tag=True, array_like=True):
    """A process has been started."""

    id: int
    pid: int
    is_forked: bool


class Listening(msgspec.Struct, tag=True, array_like=True):
    """The socket of the endpoint is open, at this address."""

    id: int
    address: str


class Failed(msgspec.Struct, tag=True, array_like=True):
    """An order has failed, with this number and text of the operating system."""

    id: int
    number: int
    text: str


class Ended(msgspec.Struct, tag=True, array_like=True):
    """A process has ended."""

    pid: int
    status: int


class KeptEngine(msgspec.Struct, array_like=True):
    """A running engine, with the last note about it."""

    pid: int
    is_forked: bool
    note: bytes


class KeptForwarder(msgspec.Struct, array_like=True):
    """A running forwarding process, with its job."""

    pid: int
    job: bytes


class Kept(msgspec.Struct, tag=True, array_like=True):
    """The processes that run as an agent connects."""

    engines: list[KeptEngine]
    forwarders: list[KeptForwarder]


ToParent: TypeAlias = Begin | Leave | StartEngine | StartForwarder | Listen | Note | Kill | EndAll
FromParent: TypeAlias = Kept | Started | Listening | Failed | Ended

to_parent: Final = msgspec.msgpack.Decoder(ToParent)
from_parent: Final = msgspec.msgpack.Decoder(FromParent)

FOLLOWS_S: Final = 30.0
"""Seconds that the agent after one that ends in order has at least."""
AGENT_SOCKET: Final = "parent"
"""Name of the unix socket, in the folder of sockets, on which the process listens to its agent."""
