"""One request over HTTP/3 and its response, as the ASGI application sees them.

The application is called as soon as the headers are there, so that it may look at a key before a byte of the body is
read; the body waits for it within the stream's flow control window. A response waits for its client: ``send`` has at
most ``buffer_bytes`` of it on their way, whatever the size of its chunks. An exchange is over once its response has
arrived.
"""

import asyncio
import logging
import urllib.parse
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from sloserve.core.slo import SLO
from sloserve.http3.answer_service import ResponseDeadline, ResponseService
from sloserve.http3.request_stream import RequestStream
from sloserve.http3.stream_priority import StreamPriority, parse_priority
from sloserve.wire.asgi import SLO_KNOWN, Message, Receive, Scope, Send
from sloserve.wire.headers import HOP_BY_HOP

logger = logging.getLogger(__name__)
_access_logger = logging.getLogger("uvicorn.access")

App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

NO_BODY = frozenset({204, 304})


def split_headers(headers: Headers) -> tuple[dict[bytes, bytes], Headers]:
    """Return the pseudo-headers, and the rest with cookies in one line and ``host``, as ASGI has them."""
    pseudo = {name: value for name, value in headers if name.startswith(b":")}
    rest = [(name, value) for name, value in headers if not name.startswith(b":") and name != b"cookie"]
    cookies = [value for name, value in headers if name == b"cookie"]
    if cookies:
        rest.append((b"cookie", b"; ".join(cookies)))
    if b":authority" in pseudo:
        rest = [(b"host", pseudo[b":authority"]), *((name, value) for name, value in rest if name != b"host")]
    return pseudo, rest


def make_scope(pseudo: dict[bytes, bytes], headers: Headers, client: Any, server: Any) -> Scope:
    """Return the ASGI scope of a request."""
    raw_path, _, query = pseudo.get(b":path", b"/").partition(b"?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "3",
        "method": pseudo[b":method"].decode("latin-1").upper(),
        "scheme": pseudo.get(b":scheme", b"https").decode("latin-1"),
        "path": urllib.parse.unquote(raw_path.decode("latin-1")),
        "raw_path": raw_path,
        "query_string": query,
        "root_path": "",
        "headers": headers,
        "client": client,
        "server": server,
    }


class Http3Exchange:
    """One request and its response.

    ``moved_s`` is the last time when the client acknowledged some of the response, or when all that was written had
    been acknowledged.

    Args:
        stream: The stream on which both pass.
        scope: The ASGI scope of the request.
        service: How to send the response, from the headers; the application may know more, see :meth:`known`.
        renewed: Whether deadlines are renewed with each chunk.
        buffer_bytes: The most bytes of the response that may wait for the client.
    """

    def __init__(
        self, stream: RequestStream, scope: Scope, service: ResponseService, renewed: bool, buffer_bytes: int
    ) -> None:
        self._stream = stream
        self._scope = scope
        self._service = service
        self._arrival_s = stream.now_s()
        self._deadline = ResponseDeadline(self._arrival_s, service.targets, renewed)
        self._buffer_bytes = buffer_bytes
        self._part_bytes = max(buffer_bytes // 2, 1)
        self._acknowledged_bytes = 0
        self._ready: Callable[[], bool] = stream.may_begin
        self.moved_s = self._arrival_s
        self._parts: deque[bytes] = deque()
        self._unread_bytes = 0
        self._complete = False
        self._reading = True
        self._gone = False
        self._began = False
        self._ended = False
        self._outcome = "answered"
        self._wakened = asyncio.Event()
        self._drained = asyncio.Event()
        stated = [value for name, value in scope["headers"] if name == b"priority"]
        self._stated = parse_priority(b",".join(stated))
        self._aim()

    @property
    def wanted(self) -> bool:
        """Whether more of the response is to come, and a client waits for it."""
        return not (self._ended or self._gone)

    @property
    def outcome(self) -> str:
        """The way in which the exchange ended.

        It is ``answered``, ``failed`` by its application, ``cancelled`` by the client, ``dropped`` because it was late,
        or ``unread`` by a client that wanted it.
        """
        return self._outcome

    def prioritize(self, priority: StreamPriority) -> None:
        """Set the priority that the client states, limited to what its class may have."""
        self._stated = priority
        urgency = priority.clamped(self._service.urgency, self._service.most_urgent)
        self._stream.set_priority(None, urgency, priority.incremental)

    def known(self, slo: SLO) -> None:
        """Set the SLO of the request from here on; it may stand in the body."""
        if self._gone:
            return
        self._service = ResponseService.of(slo, self._service.tenant)
        self._deadline.aim(slo.targets)
        self._aim()

    def _aim(self) -> None:
        self.prioritize(self._stated)
        e2e_s = self._service.targets.e2e_s
        self._stream.late_from(None if e2e_s is None else self._arrival_s + e2e_s)

    def feed(self, data: bytes, end: bool) -> None:
        """Take a part of the request's body."""
        self._complete = self._complete or end
        if self._reading and data:
            self._parts.append(data)
            self._unread_bytes += len(data)
            self._stream.hold(self._unread_bytes)
        self._wakened.set()

    def disconnect(self, outcome: str = "cancelled") -> None:
        """Record that the client is gone, or wants no response any more."""
        if not self._gone and (not self._ended or outcome != "cancelled"):
            self._outcome = outcome
        self._gone = True
        self._wakened.set()
        self._drained.set()

    def arrived(self, unacknowledged_bytes: int, acknowledged_bytes: int) -> None:
        """Record how much of the response is on its way and how much has arrived, and wake what waits for that."""
        if not unacknowledged_bytes or acknowledged_bytes != self._acknowledged_bytes:
            self._acknowledged_bytes, self.moved_s = acknowledged_bytes, self._stream.now_s()
        if not self._drained.is_set() and self._ready():
            self._drained.set()

    def starved(self) -> bool:
        return self._stream.starved()

    async def _until(self, ready: Callable[[], bool]) -> None:
        self._ready = ready
        while not (self._gone or ready()):
            self._drained.clear()
            await self._drained.wait()

    async def _until_unsent(self, most_bytes: int) -> None:
        """Wait until at most ``most_bytes`` of the response are on their way, or the client no longer waits for it."""
        await self._until(lambda: self._stream.unsent_bytes() <= most_bytes)

    async def run(self, app: App) -> None:
        """Run ``app``, and return once the response has arrived; the stream ends whatever ``app`` does."""
        try:
            await self._until(self._stream.may_begin)
            if not self._gone:
                await app({**self._scope, "extensions": {SLO_KNOWN: self.known}}, self.receive, self.send)
        except asyncio.CancelledError:
            self._fail()
            raise
        except Exception:
            logger.exception("the application failed to answer %s %s", self._scope["method"], self._scope["path"])
        if not self._ended:
            self._fail()
        self._stop_reading()
        await self._until_unsent(0)

    async def receive(self) -> Message:
        while not (self._parts or self._complete or self._gone):
            self._wakened.clear()
            await self._wakened.wait()
        if self._reading and not self._gone and (self._parts or self._complete):
            body = b"".join(self._parts)
            self._parts.clear()
            self._unread_bytes = 0
            self._stream.hold(0)
            self._reading = not self._complete
            return {"type": "http.request", "body": body, "more_body": not self._complete}
        while not (self._gone or self._ended):
            self._wakened.clear()
            await self._wakened.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if self._gone or self._ended:
            return
        if message["type"] == "http.response.start":
            self._start(message)
        elif message["type"] == "http.response.body":
            if not self._began:
                raise RuntimeError("the body of a response before its head")
            await self._body(message.get("body", b""), not message.get("more_body", False))

    def _start(self, message: Message) -> None:
        if self._began:
            raise RuntimeError("a response has two heads")
        self._began = True
        given = [(bytes(name).lower(), bytes(value)) for name, value in message.get("headers", [])]
        status: int = message["status"]
        stated = [value for name, value in given if name == b"priority"]
        if stated:  # the server's own word on what matters to this client: RFC 9218, Sec. 8
            priority = parse_priority(b",".join(stated))
            self._stream.set_priority(None, priority.urgency, priority.incremental)
        due_s = self._deadline.began(given)
        if due_s is not None:
            self._stream.set_priority(due_s, None, None)
        kept = [(name, value) for name, value in given if name not in HOP_BY_HOP]
        _log_begun(self._scope, status)
        self._silent = self._scope["method"] == "HEAD" or status in NO_BODY
        self._ended = self._silent
        self._stream.send_head([(b":status", str(status).encode()), *kept], self._silent)

    async def _body(self, data: bytes, end: bool) -> None:
        written_s = self._stream.now_s()
        due_s = self._deadline.chunk(data, written_s)
        rest: bytes | memoryview = data
        while rest or end:
            unsent_bytes = self._stream.unsent_bytes()
            if unsent_bytes + min(len(rest), self._part_bytes) > self._buffer_bytes:
                await self._until_unsent(self._buffer_bytes - self._part_bytes)
                unsent_bytes = self._stream.unsent_bytes()
            if self._gone:
                return
            if not unsent_bytes:
                self.moved_s = self._stream.now_s()  # the client had read all there was
            room = max(self._buffer_bytes - unsent_bytes, 1)
            part, rest = (rest, b"") if len(rest) <= room else (rest[:room], memoryview(rest)[room:])
            self._ended = end and not rest
            self._stream.send_body(bytes(part), self._ended)
            if due_s is not None:
                self._stream.due(due_s, None if rest else self._service.slo_class, written_s)
            if not rest:
                break
        if self._ended:
            self._wakened.set()

    def _fail(self) -> None:
        """End a response that its application did not end: with 500, or by a reset of the stream if it has begun."""
        if self._gone or self._ended:
            return
        self._ended = True
        self._outcome = "failed"
        if self._began:
            self._stream.abort()
        else:
            self._began = True
            _log_begun(self._scope, 500)
            headers = [(b":status", b"500"), (b"content-type", b"text/plain; charset=utf-8")]
            self._stream.send_head(headers, False)
            self._stream.send_body(b"Internal Server Error", True)

    def _stop_reading(self) -> None:
        """Discard what of the body was not read."""
        if self._reading:
            self._reading = False
            self._parts.clear()
            self._unread_bytes = 0
            self._stream.hold(0)
            if not (self._complete or self._gone):
                self._stream.stop_reading()


def _log_begun(scope: Scope, status: int) -> None:
    """Log that a response with this status begins, in uvicorn's access log, which its flags turn on and off.

    The query is left out: some clients put a key there.
    """
    if _access_logger.hasHandlers():  # as uvicorn finds out whether it is on
        host, port = scope["client"]
        method, path = urllib.parse.quote(scope["method"]), urllib.parse.quote(scope["path"])
        _access_logger.info('%s - "%s %s HTTP/%s" %d', f"{host}:{port}", method, path, scope["http_version"], status)
