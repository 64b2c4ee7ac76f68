"""HTTP/1.1 for clients that are not known yet: uvicorn's, with a bound on the size of a request's head and on its time.

Uvicorn on httptools keeps headers however long they are, and waits for their end for ever. Both come before any key.
"""

import asyncio
from typing import Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_HEAD_BYTES: Final = 65_536
HEAD_S: Final = 30.0
"""From the connection, or from the first byte of a later request, to the end of the headers."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection."""

    _head_ends: asyncio.TimerHandle | None = None
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begin_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._head_ends is None and self.cycle is not None and self.cycle.response_complete:
            self._begin_head()
        super().data_received(data)
        if self._head_ends is not None:
            self._head_bytes += len(data)
            if self._head_bytes > MOST_HEAD_BYTES:
                self._end_head()
                self.send_400_response(f"The request's head has more than {MOST_HEAD_BYTES} bytes.")

    def on_headers_complete(self) -> None:
        self._end_head()
        super().on_headers_complete()

    def _begin_head(self) -> None:
        self._head_bytes = 0
        self._head_ends = self.loop.call_later(HEAD_S, self.transport.close)

    def _end_head(self) -> None:
        if self._head_ends is not None:
            self._head_ends.cancel()
            self._head_ends = None
