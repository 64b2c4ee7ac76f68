"""Read a server's responses within bounds: events of a stream, and bodies that are JSON.

A server may send anything, without end. Reading it returns a value or raises :class:`UnreadableResponse`, and holds no
more than a stated number of bytes.
"""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import httpx
import msgspec
from httpx_sse import EventSource, ServerSentEvent

from sloserve.core import json_text

MOST_EVENT_BYTES: Final = 4 << 20
"""Largest size of one event of a stream, and of what may come between two events."""
MOST_BODY_BYTES: Final = 16 << 20
"""Largest size of a body that is read as a whole. A list of a thousand models has less than 1 MiB."""
MOST_ERROR_CHARS: Final = 300

IDENTITY: Final = {"accept-encoding": "identity"}
"""Headers of a request for a response without compression.

Compressed tokens come late, and a few bytes may unfold to gigabytes.
"""
COMPRESSIONS: Final = frozenset({"gzip", "deflate", "br", "zstd"})
"""Values of Content-Encoding that httpx decompresses. It passes on the bytes of every other coding as they are."""


class UnreadableResponse(Exception):
    """A response that does not have the form that the API describes, or is too long."""


async def async_events(response: httpx.Response) -> AsyncIterator[ServerSentEvent]:
    """Yield each event of the stream that has data. Raises: UnreadableResponse; SSEError for another content type."""
    stream = _bounded(response)
    async for event in EventSource(response).aiter_sse():
        stream.left = MOST_EVENT_BYTES
        if event.data:
            yield event


def events(response: httpx.Response) -> Iterator[ServerSentEvent]:
    """Yield what :func:`async_events` yields."""
    stream = _bounded(response)
    for event in EventSource(response).iter_sse():
        stream.left = MOST_EVENT_BYTES
        if event.data:
            yield event


async def async_body(response: httpx.Response) -> bytes:
    """Return the body. Raises: UnreadableResponse for one that is compressed or longer than ``MOST_BODY_BYTES``."""
    _bounded(response, MOST_BODY_BYTES)
    return await response.aread()


def body(response: httpx.Response) -> bytes:
    """Return what :func:`async_body` returns."""
    _bounded(response, MOST_BODY_BYTES)
    return response.read()


def json_value(text: str | bytes, kind: Any = Any) -> Any:
    """Return the JSON value of ``text``, of the type ``kind``. Raises: UnreadableResponse.

    NaN and infinity, which JSON does not have but some servers write, count as null. A lone half of a UTF-16 pair, as
    of a character that was cut in two, is kept. Where ``kind`` has a whole number, 4.0 and "4" are 4.
    """
    try:
        return msgspec.json.decode(text, type=kind, strict=False)
    except (msgspec.ValidationError, RecursionError) as error:
        raise UnreadableResponse(printable(str(error))) from None
    except ValueError:
        pass
    try:
        return msgspec.convert(json_text.loads_figures(text), kind, strict=False)
    except (ValueError, RecursionError) as error:
        raise UnreadableResponse(printable(str(error))) from None


def printable(text: str, most_chars: int = MOST_ERROR_CHARS) -> str:
    """Return ``text`` on one line without control characters, shortened to ``most_chars``."""
    return "".join(char if char.isprintable() else " " for char in text[:most_chars])


def error_message(body: Any) -> str:
    """Return what an error body says, in OpenAI's form or FastAPI's, in at most 300 characters."""
    found = body
    for key in ("error", "message", "detail"):
        if isinstance(found, dict) and key in found:
            found = found[key]
    try:
        return printable(found if isinstance(found, str) else json.dumps(found))
    except (ValueError, RecursionError):
        return "an error that cannot be read"


def refusal_text(raw: bytes) -> str:
    """Return what the body of a response other than 200 says, whether it is JSON or not, in at most 300 characters."""
    try:
        return error_message(json_value(raw))
    except UnreadableResponse:
        return printable(raw[: 4 * MOST_ERROR_CHARS].decode(errors="replace"))


class _Bounded(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body as it comes, of at most ``left`` more bytes."""

    def __init__(self, stream: Any, most_bytes: int) -> None:
        self._stream, self._most_bytes, self.left = stream, most_bytes, most_bytes

    def __iter__(self) -> Iterator[bytes]:
        for part in self._stream:
            yield self._counted(part)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._stream:
            yield self._counted(part)

    def close(self) -> None:
        self._stream.close()

    async def aclose(self) -> None:
        await self._stream.aclose()

    def _counted(self, part: bytes) -> bytes:
        self.left -= len(part)
        if self.left < 0:
            raise UnreadableResponse(f"more than {self._most_bytes} bytes of a response without its end")
        return part


def _bounded(response: httpx.Response, most_bytes: int = MOST_EVENT_BYTES) -> _Bounded:
    codings = response.headers.get_list("content-encoding", split_commas=True)
    if any(coding.strip().lower() in COMPRESSIONS for coding in codings):
        said = printable(", ".join(codings), 40)
        raise UnreadableResponse(f"a compressed response (content-encoding {said!r}), although identity was requested")
    response.encoding = "utf-8"  # whatever its header says: JSON and event streams have no other
    response.stream = stream = _Bounded(response.stream, most_bytes)
    return stream
