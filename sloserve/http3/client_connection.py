"""A client's HTTP/3 connection: requests that are streamed both ways, each with a place in the stream scheduler.

:mod:`sloserve.http3.httpx_transport` puts it under httpx, and so under OpenAI's SDK; :mod:`sloserve.http3.edge`
forwards through it.
"""

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from aioquic.h3.connection import ErrorCode, FrameUnexpected
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.events import ConnectionTerminated, HandshakeCompleted, QuicEvent, StopSendingReceived, StreamReset

from sloserve.http3.bounded_h3 import BoundedH3, Malformed, section_bytes
from sloserve.http3.client_settings import ClientSettings
from sloserve.http3.scheduled_connection import ScheduledConnection
from sloserve.http3.stream_schedulers import DEFAULT_URGENCY, scheduler
from sloserve.http3.transmitting import TransmittingProtocol
from sloserve.http3.transport_limits import TransportLimits

Headers = list[tuple[bytes, bytes]]

MAX_HEADER_BYTES = 64 * 1024
"""Most bytes of the headers of a response."""
SMALL_BYTES = 1024
"""A smaller part of a request's body waits for the next part, since a server bounds how many frames it takes."""


class ConnectionLost(ConnectionError):
    """The connection is gone; what had not begun may be tried again on another."""


class RequestRefused(ConnectionLost):
    """The server did not serve the request (H3_REQUEST_REJECTED), so it may be tried again."""


class BrokenOff(ConnectionError):
    """The server ended the response before its end."""


class HeadersTooLarge(ValueError):
    """The headers of a request have more bytes than the server accepts."""


class H3Response:
    """One response, as it arrives.

    ``status`` and ``headers`` hold the head's values once :meth:`head` has returned.
    """

    def __init__(self, connection: "H3Client", stream_id: int, body_follows: bool) -> None:
        self.status = 0
        self.headers: Headers = []
        self._connection = connection
        self._stream_id = stream_id
        self._parts: deque[bytes] = deque()
        self._unread_bytes = 0
        self._ended = False
        self._small = bytearray()
        self._sent = not body_follows
        self._error: Exception | None = None
        self._changed = asyncio.Event()
        self._drained = asyncio.Event()

    @property
    def over(self) -> bool:
        """Whether nothing more comes."""
        return self._ended or self._error is not None

    async def head(self) -> None:
        """Wait for the head of the response.

        Raises: ConnectionLost, RequestRefused, BrokenOff.
        """
        while not self.status:
            if self._error is not None:
                raise self._error
            self._changed.clear()
            await self._changed.wait()

    async def body(self) -> AsyncIterator[bytes]:
        """Yield the parts of the body as they arrive.

        Raises: ConnectionLost, BrokenOff.
        """
        while True:
            if self._parts:
                data = b"".join(self._parts)
                self._parts.clear()
                self._unread_bytes = 0
                self._connection.quic.hold(self._stream_id, 0)
                self._connection.transmit_soon()
                yield data
            elif self._ended:
                return
            elif self._error is not None:
                raise self._error
            else:
                self._changed.clear()
                await self._changed.wait()

    async def send(self, data: bytes, end: bool = False) -> None:
        """Send a part of the request's body, and return once the connection has room for the next.

        Raises: ConnectionLost.
        """
        if self.over:
            return  # the server has answered already, or never will
        self._small += data
        if len(self._small) < SMALL_BYTES and not end:
            return
        self._connection.send_body(self._stream_id, bytes(self._small), end)
        self._small.clear()
        self._sent = end
        limit = self._connection.settings.buffer_bytes
        while not self.over and self._connection.quic.unsent_bytes(self._stream_id) > limit:
            self._drained.clear()
            await self._drained.wait()

    def cancel(self) -> None:
        """Cancel the request, so that the server stops to work on it; call it at the end of each response too."""
        if not (self._ended and self._sent):
            self._connection.cancel(self._stream_id)
        self._connection.forget(self._stream_id)

    # What the connection tells it

    def began(self, headers: Headers) -> None:
        status = int(dict(headers)[b":status"])
        if status >= 200:
            self.status, self.headers = status, [h for h in headers if not h[0].startswith(b":")]
            self._changed.set()

    def feed(self, data: bytes, end: bool) -> None:
        if data:
            self._parts.append(data)
            self._unread_bytes += len(data)
            self._connection.quic.hold(self._stream_id, self._unread_bytes)
        self._ended = self._ended or end
        self._changed.set()

    def fail(self, error: Exception) -> None:
        """Record that nothing more of the response comes; code that waits for it gets ``error``."""
        if not self._ended:
            self._error = self._error or error
            self._changed.set()
            self._drained.set()

    def drained(self) -> None:
        self._drained.set()


class H3Client(TransmittingProtocol):
    """One connection to a server; made by :func:`connect`."""

    def __init__(self, quic: ScheduledConnection, settings: ClientSettings) -> None:
        super().__init__(quic)
        self.settings = settings
        self.lost: ConnectionLost | None = None
        self._responses: dict[int, H3Response] = {}
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._going = False
        self._heard_s: float | None = None
        self._silent = 0
        self._unusable = asyncio.Event()
        self._settled = asyncio.Event()
        self._fewer = asyncio.Event()
        self._closed_socket: asyncio.Future[None] = self._loop.create_future()

    @property
    def usable(self) -> bool:
        """Whether a new request may be begun."""
        return self._h3 is not None and self.lost is None and not self._going

    @property
    def in_flight(self) -> int:
        """The number of requests that are not over."""
        return sum(not response.over for response in self._responses.values())

    async def wait_unusable(self) -> None:
        """Return once no new request may be begun any more."""
        await self._unusable.wait()

    async def ready(self, settled: bool = False) -> None:
        """Wait for the end of the handshake.

        Args:
            settled: Whether to wait for the server's limits too, another half of a round trip.

        Raises: ConnectionLost.
        """
        await asyncio.shield(self._ready)
        if settled:
            await self._settled.wait()
            if self.lost is not None:
                raise self.lost

    def request(
        self,
        headers: Headers,
        *,
        body_follows: bool = False,
        deadline_s: float | None = None,
        urgency: int = DEFAULT_URGENCY,
        incremental: bool = False,
        tenant: str | None = None,
    ) -> H3Response:
        """Begin a request.

        Args:
            headers: The request's headers, pseudo-headers first.
            body_follows: Whether the request has a body, which is sent later.
            deadline_s: When what is sent is due, for the stream scheduler.
            urgency: Urgency of what is sent, 0..7, lower first.
            incremental: Whether parts of the request are of use to the server.
            tenant: Name of the tenant among which streams rotate, if any.

        Raises: ConnectionLost if the connection has ended or takes no more requests; HeadersTooLarge.
        """
        if self._h3 is None or self.lost is not None or self._going:
            raise self.lost or ConnectionLost("the server takes no more requests on this connection")
        size, most = section_bytes(headers), self._h3.peer_header_bytes
        if most is not None and size > most:
            raise HeadersTooLarge(f"request headers: {size} bytes; send at most {most}")
        stream_id = self.quic.get_next_available_stream_id()
        response = self._responses[stream_id] = H3Response(self, stream_id, body_follows)
        self._h3.send_headers(stream_id, headers, end_stream=not body_follows)
        self.quic.set_stream(stream_id, deadline_s=deadline_s, urgency=urgency, incremental=incremental, tenant=tenant)
        self.transmit_soon()
        return response

    def send_body(self, stream_id: int, data: bytes, end: bool) -> None:
        assert self._h3 is not None
        with contextlib.suppress(RuntimeError, FrameUnexpected):  # the server wanted no more of it
            self._h3.send_data(stream_id, data, end)
        self.transmit_soon()

    def cancel(self, stream_id: int) -> None:
        if self.lost is None and self._h3 is not None:
            self._h3.abort(stream_id, ErrorCode.H3_REQUEST_CANCELLED)
            self.transmit_soon()

    def forget(self, stream_id: int) -> None:
        self._responses.pop(stream_id, None)
        self._fewer.set()
        self.quic.hold(stream_id, 0)

    async def finish(self) -> None:
        """End the connection once its requests are over, however they end."""
        while self._responses and self.lost is None:
            self._fewer.clear()
            await self._fewer.wait()
        await self.end()

    async def end(self) -> None:
        """End the connection, and its socket."""
        self.close(error_code=ErrorCode.H3_NO_ERROR)
        self._fail(ConnectionLost("the connection was closed"))
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.close()
            await self._closed_socket

    # What asyncio and aioquic call

    def quic_event_received(self, event: QuicEvent) -> None:
        if isinstance(event, HandshakeCompleted):
            self._h3 = BoundedH3(self.quic, MAX_HEADER_BYTES, on_goaway=self._goaway)
            if not self._ready.done():
                self._ready.set_result(None)
            self._keep_alive()
        elif isinstance(event, ConnectionTerminated):
            self._fail(ConnectionLost(f"connection ended: {event.reason_phrase or hex(event.error_code)}"))
            if self._transport is not None:
                self._transport.close()
        if self._h3 is None:
            return
        for h3_event in self._h3.handle_event(event):
            if isinstance(h3_event, HeadersReceived | DataReceived | Malformed):
                response = self._responses.get(h3_event.stream_id)
                if response is None:
                    continue
                if isinstance(h3_event, Malformed):
                    response.fail(BrokenOff(f"the response is malformed: {h3_event.reason}"))
                elif isinstance(h3_event, DataReceived):
                    response.feed(h3_event.data, h3_event.stream_ended)
                else:
                    if not response.status:  # else these are trailers, which are of no use here
                        response.began(h3_event.headers)
                    response.feed(b"", h3_event.stream_ended)
        if self._h3.received_settings is not None:
            self._settled.set()
        if isinstance(event, StreamReset) and event.stream_id in self._responses:
            kind = RequestRefused if event.error_code == ErrorCode.H3_REQUEST_REJECTED else BrokenOff
            self._responses[event.stream_id].fail(kind(f"the server reset the stream: {event.error_code:#x}"))
        elif isinstance(event, StopSendingReceived) and event.stream_id in self._responses:
            self._responses[event.stream_id].drained()

    def datagram_received(self, data: bytes | str, addr: Any) -> None:
        super().datagram_received(data, addr)
        limit = self.settings.buffer_bytes // 2
        for stream_id, response in self._responses.items():
            if self.quic.unsent_bytes(stream_id) <= limit:
                response.drained()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._closed_socket.done():
            self._closed_socket.set_result(None)

    def error_received(self, exc: Exception) -> None:
        """Report at once that nothing listens there, rather than when the handshake has timed out."""
        if not self._ready.done():
            self._fail(ConnectionLost(f"cannot connect: {exc}"))

    def _keep_alive(self) -> None:
        """Send a ping, and give a server up that has been silent for ``silent_s``.

        Silence is counted in pings, since time may also pass while this process itself does nothing.
        """
        settings = self.settings
        if settings.keep_alive_s is None or self.lost is not None:
            return
        self._silent = 0 if self.quic.heard_s != self._heard_s else self._silent + 1
        self._heard_s = self.quic.heard_s
        if settings.silent_s is not None and self._silent * settings.keep_alive_s >= settings.silent_s:
            self._fail(ConnectionLost(f"the server has been silent for {settings.silent_s:g} s"))
            self.close(error_code=ErrorCode.H3_NO_ERROR)
            return
        self.quic.send_ping(0)
        self.transmit_soon()
        self._loop.call_later(settings.keep_alive_s, self._keep_alive)

    def _goaway(self) -> None:
        """Record that the server is stopping: it finishes the requests that it has begun, and takes no more."""
        self._going = True
        self._unusable.set()

    def _fail(self, error: ConnectionLost) -> None:
        if self.lost is None:
            self.lost, self.is_over = error, True
            self._unusable.set()
            self._settled.set()
            self._fewer.set()
            if not self._ready.done():
                self._ready.set_exception(error)
                self._ready.exception()  # seen, also where no one waits any more
            for response in self._responses.values():
                response.fail(error)


async def connect(
    host: str, port: int, settings: ClientSettings, timeout_s: float = 10.0, *, settled: bool = False
) -> H3Client:
    """Return a connection that is ready for requests.

    Args:
        host: Host name or address of the server.
        port: UDP port of the server.
        settings: Settings of the client's side.
        timeout_s: How long to wait for the connection, in seconds.
        settled: Whether to wait until the server has sent its limits.

    Raises: ConnectionLost if there is no connection within ``timeout_s``.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except OSError as error:
        raise ConnectionLost(f"{host}: {error.strerror or error}") from error
    family, _, _, _, address = found[0]
    window_bytes = TransportLimits().stream_window_bytes * settings.requests
    quic = ScheduledConnection(
        configuration=settings.configuration(host),
        scheduler=scheduler(settings.scheduler),
        limits=TransportLimits(streams=1, connection_window_bytes=window_bytes),
    )
    local = ("::", 0) if family == socket.AF_INET6 else ("0.0.0.0", 0)
    try:
        _, client = await loop.create_datagram_endpoint(lambda: H3Client(quic, settings), local_addr=local)
    except OSError as error:
        raise ConnectionLost(f"{host} port {port}: {error.strerror or error}") from error
    client.connect(address)
    try:
        async with asyncio.timeout(timeout_s):
            await client.ready(settled)
    except (TimeoutError, ConnectionLost) as error:
        await client.end()
        raise ConnectionLost(f"{host} port {port}: {error or f'no response within {timeout_s:g} s'}") from None
    except asyncio.CancelledError:
        await client.end()
        raise
    return client
