"""HTTP/1.1 for unknown clients: uvicorn's protocol, with a bound on the bytes of a request beside its body.

Uvicorn on httptools keeps headers of any length, before a body and behind it, and waits for their end for ever. Headers
come before any key is checked.
"""

import asyncio
from typing import Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_HEAD_BYTES: Final = 65_536
HEAD_S: Final = 30.0
"""Seconds from the connection, or from the first byte of a later request, to the end of the headers."""
_FRAMES: Final = 8
"""A body may be sent in chunks, with this many bytes around each byte of it."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection with bounded requests."""

    _head_ends: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _beside = 0
    """Bytes that came behind a head and are neither body nor its framing, such as a trailer."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begin_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._head_ends is None and not self._answers:
            self._begin_head()
        head = self._head_ends
        self._beside += len(data)
        super().data_received(data)
        if head is not None and self._head_ends is head:
            self._head_bytes += len(data)
        of_head = self._head_ends is not None
        if (self._head_bytes if of_head else self._beside) > MOST_HEAD_BYTES:
            self._end_head()
            if self._answers:
                self.transport.close()
            else:
                self.send_400_response(f"The request's head has more than {MOST_HEAD_BYTES} bytes.")

    def on_message_begin(self) -> None:
        if self._head_ends is None:  # it follows a request that has no response yet
            self._begin_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._end_head()
        self._beside = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._beside -= (1 + _FRAMES) * len(body)
        super().on_body(body)

    @property
    def _answers(self) -> bool:
        """Whether a request still waits for the end of its response."""
        return self.cycle is not None and not self.cycle.response_complete

    def _begin_head(self) -> None:
        self._head_bytes = 0
        self._head_ends = self.loop.call_later(HEAD_S, self.transport.close)

    def _end_head(self) -> None:
        if self._head_ends is not None:
            self._head_ends.cancel()
            self._head_ends = None
