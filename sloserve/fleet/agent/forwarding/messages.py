"""The messages between an agent and a process that forwards requests for it.

The process connects to a unix socket of the agent, and connects again if the agent is replaced by another one. Each
connection begins with a :class:`Hello`. See :mod:`sloserve.fleet.framing` for their form.
"""

from typing import Final, TypeAlias

import msgspec

from sloserve.fleet.contract.endpoint import Refusal


class ReportedRequest(msgspec.Struct, array_like=True):
    """A request that was taken by the agent before this one.

    Args:
        id: Number of the request in this process.
        instance: Name of the instance.
        model: Model that it asks for.
        socket: Path of the unix socket of the engine that has it.
        at: URL of the engine in place of the socket; ``None`` if it has the socket.
        prompt_tokens: Estimated tokens of its prompt.
        max_tokens: Limit of its output tokens; ``None`` for no limit.
        streams: Whether the engine streams its output.
        age_s: Seconds since it was taken.
        parts: Number of parts of its body that have come.
        events: Number of events that have come.
    """

    id: int
    instance: str
    model: str
    socket: str
    at: str | None
    prompt_tokens: float
    max_tokens: int | None
    streams: bool
    age_s: float
    parts: int
    events: int


class Hello(msgspec.Struct, tag=True, array_like=True):
    """The begin of a connection.

    Args:
        pid: Process id of this process.
        requests: Requests that it forwards.
    """

    pid: int
    requests: list[ReportedRequest]


class Ask(msgspec.Struct, tag=True, array_like=True):
    """A client's request has arrived.

    Args:
        id: Number of the request in this process.
        instance: Name of the instance.
        model: Model that it asks for.
        prefixes: Value of its header ``x-sloserve-prefix``.
        prompt_tokens: Estimated tokens of its prompt.
        max_tokens: Limit of its output tokens; ``None`` for no limit.
        streams: Whether the engine streams its output.
        task: Value of its header ``x-sloserve-task``; empty for none.
    """

    id: int
    instance: str
    model: str
    prefixes: str
    prompt_tokens: float
    max_tokens: int | None
    streams: bool
    task: str = ""


class StreamProgress(msgspec.Struct, tag=True, array_like=True):
    """Events that have come since the response began, by the number of the request."""

    events: dict[int, int]


class ForwardEnded(msgspec.Struct, tag=True, array_like=True):
    """A request has ended.

    Args:
        id: Number of the request.
        broken: Whether the engine broke it off.
        parts: Number of parts of its body that have come.
        events: Number of events that have come.
        end: Last bytes of the body, which may state its length.
    """

    id: int
    broken: bool
    parts: int
    events: int
    end: bytes


class Go(msgspec.Struct, tag=True, array_like=True):
    """The request may be sent to this engine.

    Args:
        id: Number of the request.
        socket: Path of the engine's unix socket.
        at: URL of the engine in place of the socket; ``None`` to use the socket.
        key: Key that the engine asks for; ``None`` for none.
    """

    id: int
    socket: str
    at: str | None
    key: str | None


class RefuseAsk(msgspec.Struct, tag=True, array_like=True):
    """The request is refused, for this reason."""

    id: int
    reason: Refusal


class Abort(msgspec.Struct, tag=True, array_like=True):
    """The request is to be ended in its engine.

    Args:
        id: Number of the request.
        reason: Reason of the refusal if nothing of the response has come; ``None`` if it is broken off in any case.
    """

    id: int
    reason: Refusal | None


class Retire(msgspec.Struct, tag=True, array_like=True):
    """The process is to accept no further connections, and to end once its requests have ended: another takes over."""


ToAgent: TypeAlias = Hello | Ask | StreamProgress | ForwardEnded
ToForwarder: TypeAlias = Go | RefuseAsk | Abort | Retire

to_agent: Final = msgspec.msgpack.Decoder(ToAgent)
to_forwarder: Final = msgspec.msgpack.Decoder(ToForwarder)
