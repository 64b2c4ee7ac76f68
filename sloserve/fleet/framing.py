"""MessagePack messages behind four bytes of length, between processes of one host on a unix socket."""

import asyncio
import struct
from typing import Any, Final

import msgspec

_LENGTH: Final = struct.Struct("!I")
_MOST_BYTES: Final = 64 << 20

_encoder: Final = msgspec.msgpack.Encoder()


def encoded(message: Any) -> bytes:
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
