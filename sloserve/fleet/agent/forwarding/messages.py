"""The messages between an agent and a process that forwards requests for it.

They are MessagePack behind four bytes of length, on a connected pair of unix sockets that the agent made.
"""

import asyncio
import struct
from typing import Final, TypeAlias

import msgspec

from sloserve.fleet.contract.endpoint import Refusal

_LENGTH: Final = struct.Struct("!I")
_MOST_BYTES: Final = 16 << 20


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
    """

    id: int
    instance: str
    model: str
    prefixes: str
    prompt_tokens: float
    max_tokens: int | None
    streams: bool


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


ToAgent: TypeAlias = Ask | StreamProgress | ForwardEnded
ToForwarder: TypeAlias = Go | RefuseAsk | Abort

_encoder: Final = msgspec.msgpack.Encoder()
to_agent: Final = msgspec.msgpack.Decoder(ToAgent)
to_forwarder: Final = msgspec.msgpack.Decoder(ToForwarder)


def encoded(message: ToAgent | ToForwarder) -> bytes:
    """Return the message with its length."""
    data = _encoder.encode(message)
    return _LENGTH.pack(len(data)) + data


async def next_message(reader: asyncio.StreamReader) -> bytes | None:
    """Return the next message, or ``None`` when the other side is gone. Raises: ValueError for one that is too long."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if length > _MOST_BYTES:
            raise ValueError(f"a message has {length} bytes, and at most {_MOST_BYTES} are read")
        return await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
