"""The edge: ordinary HTTP clients in, one QUIC connection to the engine host out (Fig. 2 of the paper).

The edge is an ASGI application. A request waits for one of the connection's streams, by class and within a class by
tenant in turn. Then it is forwarded as it comes, with the client's key and a request id, and the wait is taken off its
targets. A client that leaves ends its request at the engine. A connection that is lost ends its requests with an error,
and another is made.
"""

import asyncio
import json
import logging
import math
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus

from aioquic.h3.connection import ProtocolError, validate_request_headers

from sloserve.core.errors import BodyTooSlow, ConfigError, InvalidRequest
from sloserve.http3.answer_service import DEFAULT_CLASSIFY, ResponseService
from sloserve.http3.client_connection import (
    BrokenOff,
    ConnectionLost,
    H3Client,
    H3Response,
    Headers,
    HeadersTooLarge,
    connect,
)
from sloserve.http3.client_settings import ClientSettings
from sloserve.http3.fair_turns import FairTurns, WaitingListFull
from sloserve.http3.httpx_transport import head
from sloserve.wire import errors
from sloserve.wire.asgi import (
    CLOSE,
    ClientLeft,
    Message,
    Receive,
    Scope,
    Send,
    answer_json,
    refuse,
)
from sloserve.wire.client import WhileClientWaits
from sloserve.wire.event_stream import EVENT_STREAM
from sloserve.wire.headers import HOP_BY_HOP, RETRY_AFTER, remaining
from sloserve.wire.opening import BodyLimits, OpenedRequest, open_request

logger = logging.getLogger(__name__)

READY_PATH = "/ready"
RETRY_FULL_S = 1


@dataclass(frozen=True, slots=True)
class EdgeSettings:
    """The settings of an edge.

    Args:
        host: Host name of the engine host.
        port: UDP port of the engine host.
        client: Settings of the edge's side of the connection, its certificate included.
        requests: The most requests on the connection at once, at most as many as the engine host's ``http3.streams``.
        max_waiting: The most requests that wait for a place among them; any more get the status 503.
    """

    host: str
    port: int
    client: ClientSettings
    requests: int = 128
    max_waiting: int = 1024


class Edge:
    """The ASGI application that forwards requests to the engine host."""

    def __init__(self, settings: EdgeSettings) -> None:
        self.upstream = UpstreamConnection(settings.host, settings.port, settings.client)
        self.turns = FairTurns(settings.requests, settings.max_waiting)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        while (message := await receive())["type"] != "lifespan.shutdown":
            if message["type"] == "lifespan.startup":
                self.upstream.start()
                await send({"type": "lifespan.startup.complete"})
        await self.upstream.stop()
        await send({"type": "lifespan.shutdown.complete"})

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == READY_PATH:
            connected = self.upstream.connected
            status = HTTPStatus.OK if connected else HTTPStatus.SERVICE_UNAVAILABLE
            await answer_json(send, status, {"status": "ready" if connected else "disconnected"})
            return
        client = ReadAhead(receive)
        request = await open_request(scope, client, send, BodyLimits(math.inf))
        if request is None:
            return
        try:
            self._check(request.scope)
        except InvalidRequest as error:
            await request.refuse(error)
            return
        service = ResponseService.of(*DEFAULT_CLASSIFY(request.scope["headers"], None))
        arrived_s = asyncio.get_running_loop().time()
        try:
            async with WhileClientWaits(client.until_left):
                await self.turns.take(service.urgency, service.tenant or "")
        except ClientLeft:
            return
        except WaitingListFull:
            message = f"the edge's waiting list is full; retry in {RETRY_FULL_S} s"
            await _refuse_for_now(request, message, RETRY_FULL_S)
            return
        try:
            await self._forward(request, service, arrived_s)
        finally:
            self.turns.give_back()

    def _check(self, scope: Scope) -> None:
        """Raise InvalidRequest for what HTTP/3 cannot carry: a malformed request ends the connection of all."""
        try:
            validate_request_headers(self._head(scope, 0.0))
        except ProtocolError as error:
            raise InvalidRequest("request", error.reason_phrase, "a request that HTTP/3 can carry") from error

    def _head(self, scope: Scope, waited_s: float) -> Headers:
        path = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        client = scope.get("client")
        headers = [(name.lower(), value.strip(b" \t")) for name, value in remaining(scope["headers"], waited_s)]
        forwarded = [value for name, value in headers if name == b"x-forwarded-for"]
        forwarded += [] if client is None else [str(client[0]).encode()]
        headers = [(name, value) for name, value in headers if name != b"x-forwarded-for"]
        headers.append((b"x-forwarded-for", b", ".join(forwarded)))
        return head(scope["method"].encode(), self.upstream.authority, path, headers)

    async def _forward(self, request: OpenedRequest, service: ResponseService, arrived_s: float) -> None:
        loop = asyncio.get_running_loop()
        first_s = service.targets.next_s()
        try:
            client = self.upstream.client()
            response = client.request(
                self._head(request.scope, loop.time() - arrived_s),
                body_follows=True,
                deadline_s=None if first_s is None else arrived_s + first_s,
                urgency=service.urgency,
                tenant=service.tenant,
            )
        except ConnectionLost as error:
            await _refuse_for_now(request, str(error), self.upstream.retry_after_s)
            return
        except HeadersTooLarge as error:
            await refuse(request.send, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, str(error), headers=[CLOSE])
            return
        upload = asyncio.create_task(upload_body(response, request.body))
        try:
            await pass_on(response, request)
        finally:
            upload.cancel()
            response.cancel()
            with suppress(asyncio.CancelledError):
                await upload


async def _refuse_for_now(request: OpenedRequest, message: str, retry_after_s: int) -> None:
    headers = [CLOSE, (RETRY_AFTER, str(retry_after_s))]
    await refuse(request.send, HTTPStatus.SERVICE_UNAVAILABLE, message, headers=headers)


class ReadAhead:
    """What the client sends while its request waits: a body in one part, or its first part, and a disconnect."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._messages: deque[Message] = deque()

    async def __call__(self) -> Message:
        """Return the next message, as ASGI has it."""
        return self._messages.popleft() if self._messages else await self._receive()

    async def until_left(self) -> Message:
        """Return once the client has left."""
        while not self._messages or self._messages[-1]["type"] == "http.request":
            if self._messages and self._messages[-1].get("more_body", False):
                await asyncio.Event().wait()  # the rest of a long body stays with the client
            self._messages.append(await self._receive())
        return self._messages[-1]


class Left(BrokenOff):
    """The client of the edge is gone."""


async def upload_body(response: H3Response, receive: Receive) -> None:
    """Pass the request's body on; then watch for the client to leave, which cancels the request.

    A body that does not come cancels the request as well, since the request holds a place that others wait for.
    """
    more = True
    why: Exception = Left("the client has left")
    try:
        while (message := await receive())["type"] == "http.request":
            if more:
                more = message.get("more_body", False)
                await response.send(message.get("body", b""), end=not more)
    except BodyTooSlow as error:
        why = error
    response.cancel()
    response.fail(why)


async def pass_on(response: H3Response, request: OpenedRequest) -> None:
    """Pass the response on.

    A response that breaks off before its head becomes a 502; a stream of events that breaks off ends with an error.

    Raises: BrokenOff, ConnectionLost or BodyTooSlow where only breaking off the response to the client is left.
    """
    send = request.send
    try:
        await response.head()
    except Left:
        return
    except BodyTooSlow as error:
        await request.refuse(error)
        return
    except (ConnectionLost, BrokenOff) as error:
        message = f"the engine host did not answer: {error}; retry"
        await refuse(send, HTTPStatus.BAD_GATEWAY, message, headers=[CLOSE])
        return
    headers = [(name, value) for name, value in response.headers if name not in HOP_BY_HOP]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    try:
        async for part in response.body():
            await send({"type": "http.response.body", "body": part, "more_body": True})
    except Left:
        return
    except (ConnectionLost, BrokenOff, BodyTooSlow) as error:
        if not any(name == b"content-type" and value.startswith(EVENT_STREAM) for name, value in headers):
            raise
        said = errors.body(HTTPStatus.BAD_GATEWAY, f"the engine host ended the response early: {error}; retry")
        await send({"type": "http.response.body", "body": b"data: " + json.dumps(said).encode() + b"\n\n"})
        return
    await send({"type": "http.response.body"})


FIRST_DELAY_S, LONGEST_DELAY_S = 0.1, 10.0
"""Seconds between two attempts to connect: the first delay, doubled after each that fails, up to the longest."""


class UpstreamConnection:
    """The edge's connection to the engine host, which is made again whenever it is lost.

    Args:
        host: Host name of the engine host.
        port: UDP port of the engine host's HTTP/3.
        settings: Settings of the edge's side of the connection.
    """

    def __init__(self, host: str, port: int, settings: ClientSettings) -> None:
        self._host, self._port, self._settings = host, port, settings
        self._client: H3Client | None = None
        self._delay_s = FIRST_DELAY_S
        self._task: asyncio.Task[None] | None = None
        self._finishing: set[asyncio.Task[None]] = set()
        self._why = "the edge is starting"

    @property
    def authority(self) -> bytes:
        return f"{self._host}:{self._port}".encode()

    @property
    def connected(self) -> bool:
        return self._client is not None and self._client.usable

    @property
    def retry_after_s(self) -> int:
        """The time in whole seconds after which the next attempt will have been made."""
        return math.ceil(self._delay_s)

    def client(self) -> H3Client:
        """Return the connection.

        Raises: ConnectionLost with the reason if there is none now.
        """
        if self._client is None or not self._client.usable:
            raise ConnectionLost(f"no connection to {self._host} port {self._port}: {self._why}")
        return self._client

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._client is not None:
            await self._client.end()
        for finishing in [*self._finishing]:
            finishing.cancel()
            await asyncio.wait([finishing])

    async def _finish(self, client: H3Client) -> None:
        """Wait until an engine host that is stopping has finished what it has begun, then end the connection."""
        try:
            await client.finish()
        finally:
            await client.end()

    async def _keep(self) -> None:
        while True:
            try:
                self._client = await connect(self._host, self._port, self._settings, settled=True)
                logger.info("connected to %s UDP port %d", self._host, self._port)
                self._delay_s = FIRST_DELAY_S
                await self._client.wait_unusable()
                self._why = str(self._client.lost or "the engine host is stopping")
                finishing = asyncio.create_task(self._finish(self._client))
                self._finishing.add(finishing)
                finishing.add_done_callback(self._finishing.discard)
                logger.warning("the connection to %s is lost: %s", self._host, self._why)
            except (ConnectionLost, ConfigError) as error:  # a certificate may be half written
                self._why = str(error)
                logger.warning("cannot connect, next attempt in %g s: %s", self._delay_s, error)
            await asyncio.sleep(self._delay_s)
            self._delay_s = min(2 * self._delay_s, LONGEST_DELAY_S)
