"""The edge: ordinary HTTP clients in, one QUIC connection to the engine host out (Fig. 2 of the paper).

The edge is an ASGI application. A request waits for one of the connection's streams, by class and within a class by
tenant in turn. Then it is forwarded as it comes, with the client's key and a request id, and the wait is taken off its
targets. A client that leaves ends its request at the engine. A connection that is lost ends its requests with an error,
and another is made.
"""

import asyncio
import math
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus

from aioquic.h3.connection import ProtocolError, validate_request_headers

from sloserve.core.errors import InvalidRequest
from sloserve.http3.answer_service import DEFAULT_CLASSIFY, ResponseService
from sloserve.http3.client_connection import Headers, HeadersTooLarge, Lost
from sloserve.http3.client_settings import ClientSettings
from sloserve.http3.edge_passing import ReadAhead, answer, upload_body
from sloserve.http3.fair_turns import FairTurns, WaitingListFull
from sloserve.http3.httpx_transport import head
from sloserve.http3.upstream_connection import UpstreamConnection
from sloserve.wire.asgi import (
    CLOSE,
    ClientLeft,
    Receive,
    Scope,
    Send,
    answer_json,
    refuse,
)
from sloserve.wire.client import WhileClientWaits
from sloserve.wire.headers import RETRY_AFTER, remaining
from sloserve.wire.opening import BodyLimits, OpenedRequest, open_request

READY_PATH = "/ready"
RETRY_FULL_S = 1


@dataclass(frozen=True, slots=True)
class EdgeSettings:
    """The settings of an edge.

    Args:
        host: host name of the engine host.
        port: UDP port of the engine host.
        client: settings of the edge's side of the connection, its certificate included.
        requests: the most requests on the connection at once, at most as many as the engine host's ``http3.streams``.
        max_waiting: the most requests that wait for a place among them; any more get the status 503.
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
        service = ResponseService.of(*DEFAULT_CLASSIFY(request.scope["headers"]))
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
            reply = client.request(
                self._head(request.scope, loop.time() - arrived_s),
                body_follows=True,
                deadline_s=None if first_s is None else arrived_s + first_s,
                urgency=service.urgency,
                tenant=service.tenant,
            )
        except Lost as error:
            await _refuse_for_now(request, str(error), self.upstream.retry_after_s)
            return
        except HeadersTooLarge as error:
            await refuse(request.send, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, str(error), headers=[CLOSE])
            return
        upload = asyncio.create_task(upload_body(reply, request.body))
        try:
            await answer(reply, request)
        finally:
            upload.cancel()
            reply.cancel()
            with suppress(asyncio.CancelledError):
                await upload


async def _refuse_for_now(request: OpenedRequest, message: str, retry_after_s: int) -> None:
    headers = [CLOSE, (RETRY_AFTER, str(retry_after_s))]
    await refuse(request.send, HTTPStatus.SERVICE_UNAVAILABLE, message, headers=headers)
