"""A process that forwards requests of gateways to the engines of its host, as the agent that started it decides.

``python -m sloserve.fleet.agent.forwarding.forwarder`` reads a :class:`ForwarderJob` from its input. It listens on the
socket of the agent's endpoint, beside others like it, and ends when its agent is gone. The agent itself responds to
``GET /state``.
"""

import asyncio
import itertools
import logging
import signal
import socket
import sys
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Final

import msgspec

from sloserve.core import json_log
from sloserve.core.process_death import die_with
from sloserve.fleet.agent.agent_server import AgentServer
from sloserve.fleet.agent.engine_client import EngineClient
from sloserve.fleet.agent.engine_requests import InFlightRequest, passed_on, stream_of
from sloserve.fleet.agent.forwarding.messages import (
    Abort,
    Ask,
    ForwardEnded,
    Go,
    RefuseAsk,
    StreamProgress,
    ToAgent,
    encoded,
    next_message,
    to_forwarder,
)
from sloserve.fleet.contract.endpoint import PREFIX_HEADER, InstanceResponse, LineSize, Refusal, Refused
from sloserve.fleet.http import endpoint_server, keep_renewed
from sloserve.fleet.supervised import supervised
from sloserve.wire.asgi import Send, refuse

PROGRESS_S: Final = 0.25
"""Seconds between reports of the events that have come."""
_MOST_UNSENT: Final = 1 << 20
"""Bytes that wait for the agent beyond which progress is not reported."""
_MOST_CLIENTS: Final = 32
"""Engines beyond which clients of engines that serve nothing are closed."""


class ForwarderJob(msgspec.Struct):
    """What a forwarder is started with.

    Args:
        instances: Names of the agent's instances.
        agent: Path of the unix socket on which the agent responds to ``GET /state``.
        key: Key without which requests are refused; ``None`` to ask for none.
        host: Name of the host, which its certificate has.
        parent: Process id of the agent.
        listening: Number of the open file of the endpoint's socket.
        control: Number of the open file of the socket to the agent.
        certificates: Folder of certificates for an endpoint with TLS; ``None`` for one without.
        of_gateways: Whether gateways show certificates.
    """

    instances: list[str]
    agent: str
    key: str | None
    host: str
    parent: int
    listening: int = -1
    control: int = -1
    certificates: str | None = None
    of_gateways: bool = False


class AgentLink:
    """The connection of a forwarder to its agent: asks for each request, and reports its progress.

    Args:
        reader: Messages of the agent.
        writer: Messages to the agent.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[Go]] = {}
        self._requests: dict[int, InFlightRequest] = {}
        self._reported: dict[int, int] = {}
        self._clients: dict[tuple[str, str | None, str | None], EngineClient] = {}
        self._uses: dict[EngineClient, int] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def send(
        self, instance: str, request: InFlightRequest, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> InstanceResponse:
        """Send a request to the engine that the agent names. Raises: Refused."""
        number = next(self._numbers)
        asked: asyncio.Future[Go] = asyncio.get_running_loop().create_future()
        self._asked[number], self._requests[number] = asked, request
        prefixes = headers.get(PREFIX_HEADER, "")
        self._write(
            Ask(number, instance, request.model, prefixes, request.prompt_tokens, request.max_tokens, request.streams)
        )
        client: EngineClient | None = None

        def ended(broken: bool) -> None:
            if self._requests.pop(number, None) is None:
                return  # it is called twice for a request that is cancelled as it begins
            self._reported.pop(number, None)
            if client is not None:
                self._uses[client] -= 1
            streamed = request.streamed
            self._write(ForwardEnded(number, broken, request.parts, streamed.events, streamed.end))

        try:
            go = await asked
        except asyncio.CancelledError:
            ended(False)
            raise
        finally:
            self._asked.pop(number, None)
        client = self._client_of(go)
        return await passed_on(request, client.send(method, path, headers, body, ended), ended)

    async def serve(self) -> None:
        """Read what the agent says until it is gone."""
        while (data := await next_message(self._reader)) is not None:
            match to_forwarder.decode(data):
                case Go() as go:
                    self._settle(go.id, go)
                case RefuseAsk(number, reason):
                    self._requests.pop(number, None)
                    self._settle(number, Refused(reason))
                case Abort(number, reason):
                    self._abort(number, reason)

    async def report(self) -> None:
        """Report the events that have come since the last report."""
        if self._writer.transport.get_write_buffer_size() > _MOST_UNSENT:
            return
        changed = {
            number: events
            for number, request in self._requests.items()
            if (events := request.streamed.events) != self._reported.get(number, 0)
        }
        if changed:
            self._reported |= changed
            self._write(StreamProgress(changed))

    async def close(self) -> None:
        """Close the clients of all engines."""
        await asyncio.gather(*(client.close() for client in self._clients.values()), *self._closing)

    def _settle(self, number: int, found: Go | Refused) -> None:
        asked = self._asked.get(number)
        if asked is None or asked.done():
            return
        if isinstance(found, Go):
            asked.set_result(found)
        else:
            asked.set_exception(found)

    def _abort(self, number: int, reason: Refusal | None) -> None:
        request = self._requests.get(number)
        # Only what no client has had a byte of may be sent back; the agent may not know yet of the first one.
        if request is not None and not (reason is Refusal.SWITCHING and request.parts):
            request.abort(reason or Refusal.DIED)

    def _client_of(self, go: Go) -> EngineClient:
        key = (go.socket, go.at, go.key)
        client = self._clients.get(key)
        if client is None:
            client = self._clients[key] = EngineClient(Path(go.socket), "", at=go.at, key=go.key)
            self._uses[client] = 0
        self._uses[client] += 1
        if len(self._clients) > _MOST_CLIENTS:
            for idle in [one for one, used in self._clients.items() if not self._uses[used]]:
                gone = self._clients.pop(idle)
                del self._uses[gone]
                # Nothing is awaited here: a request that is cancelled now would keep its place in the agent.
                closing = asyncio.create_task(gone.close())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
        return client

    def _write(self, message: ToAgent) -> None:
        self._writer.write(encoded(message))


class RemoteInstance:
    """An instance of the agent: a :class:`~sloserve.fleet.contract.endpoint.RequestEndpoint`."""

    def __init__(self, name: str, link: AgentLink) -> None:
        self._name, self._link = name, link

    async def send(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        *,
        model: str,
        line: LineSize | None = None,
    ) -> InstanceResponse:
        request = stream_of(model, body, path.partition("?")[0])
        return await self._link.send(self._name, request, method, path, headers, body)


class ForwardedState:
    """The report of the agent, as forwarders pass it on.

    Args:
        agent: Path of the unix socket on which the agent responds to ``GET /state``.
    """

    def __init__(self, agent: str) -> None:
        self._client = EngineClient(Path(agent), "")

    async def answer(self, query: str, send: Send) -> None:
        """Answer a request with this query."""
        path = f"/state?{query}" if query else "/state"
        try:
            response = await self._client.send("GET", path, {}, b"", lambda broken: None)
            body = b"".join([part async for part in response])
        except (Refused, ConnectionResetError):
            await refuse(send, HTTPStatus.SERVICE_UNAVAILABLE, "the agent is gone; ask again once it is back")
            return
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in response.headers.items()]
        await send({"type": "http.response.start", "status": response.status, "headers": raw})
        await send({"type": "http.response.body", "body": body})

    async def close(self) -> None:
        await self._client.close()


async def forward(job: ForwarderJob) -> None:
    """Serve the endpoint until the agent is gone."""
    reader, writer = await asyncio.open_unix_connection(sock=socket.socket(fileno=job.control))
    link = AgentLink(reader, writer)
    state = ForwardedState(job.agent)
    app = AgentServer({name: RemoteInstance(name, link) for name in job.instances}, state.answer, job.key)
    tls = None
    beside = [asyncio.create_task(supervised("progress of streams is not reported", link.report, PROGRESS_S))]
    if job.certificates is not None:
        from sloserve.fleet.certificates import Certificates

        certificates = Certificates(Path(job.certificates), of_gateways=job.of_gateways)
        tls = certificates.of_endpoint(job.host)
        beside.append(asyncio.create_task(keep_renewed(certificates)))
    server = endpoint_server(app, tls)
    serving = asyncio.create_task(server.serve([socket.socket(fileno=job.listening)]))
    link_ends = asyncio.create_task(link.serve())
    try:
        await asyncio.wait({serving, link_ends}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        server.should_exit = server.force_exit = True
        for task in (link_ends, *beside):
            task.cancel()
        await asyncio.gather(serving, link_ends, *beside, return_exceptions=True)
        await state.close()
        await link.close()
        writer.close()


def main() -> None:
    """Run the process."""
    if json_log.logs_are_json():
        json_log.use_json_logs()
    else:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the agent ends it, once its streams have had their time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=ForwarderJob)
    die_with(job.parent)  # also where this process is stopped, for it holds the socket that the next agent opens
    try:
        import uvloop
    except ImportError:
        asyncio.run(forward(job))
    else:
        uvloop.run(forward(job))


if __name__ == "__main__":
    main()
