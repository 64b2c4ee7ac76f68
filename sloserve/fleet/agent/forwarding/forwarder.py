"""A process that forwards requests of gateways to the engines of its host, as the agent decides.

``python -m sloserve.fleet.agent.forwarding.forwarder PARENT SOCKET`` reads a
:class:`~sloserve.fleet.agent.forwarding.forwarder_job.ForwarderJob` from its input. It accepts connections from the
open file SOCKET, beside others like it, and ends with the process PARENT that started it. The agent responds to
``GET /state``. If the agent is replaced, the streams go on: the next agent learns of them as this process connects.
"""

import asyncio
import itertools
import logging
import os
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
from sloserve.fleet.agent.forwarding.forwarder_job import ForwarderJob
from sloserve.fleet.agent.forwarding.messages import (
    Abort,
    Ask,
    ForwardEnded,
    Go,
    Hello,
    RefuseAsk,
    ReportedRequest,
    Retire,
    StreamProgress,
    ToAgent,
    to_forwarder,
)
from sloserve.fleet.contract.endpoint import PREFIX_HEADER, InstanceResponse, LineSize, Refusal, Refused
from sloserve.fleet.contract.reported_tasks import TASK_HEADER
from sloserve.fleet.framing import encoded, next_message
from sloserve.fleet.http import KEEP_ALIVE_S, EmbeddedServer, endpoint_server, keep_renewed
from sloserve.fleet.supervised import supervised
from sloserve.wire.asgi import CLOSE, Message, Receive, Scope, Send, refuse

logger = logging.getLogger(__name__)

PROGRESS_S: Final = 0.25
"""Seconds between reports of the events that have come."""
DECIDED_MAX_S: Final = 30.0
"""Longest wait, in seconds, for an agent that decides a request; then the request is refused."""
CONNECT_AGAIN_S: Final = 0.1
RETIRED_MAX_S: Final = 3600.0
"""Longest time, in seconds, that the requests of a process may take once another process has taken over."""
_LOOK_S: Final = 0.25
_MOST_UNSENT: Final = 1 << 20
"""Bytes that wait for the agent beyond which progress is not reported."""
_MOST_CLIENTS: Final = 32
"""Engines beyond which clients of engines that serve nothing are closed."""


class AgentLink:
    """The connection to the agent that decides requests; it is made again whenever the agent has been replaced.

    Args:
        path: Path of the agent's unix socket.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._writer: asyncio.StreamWriter | None = None
        self._numbers = itertools.count()
        self._asked: dict[int, tuple[Ask, asyncio.Future[Go]]] = {}
        self._requests: dict[int, tuple[InFlightRequest, str]] = {}
        """Requests that have begun or are undecided, each with the name of its instance."""
        self._gone: dict[int, Go] = {}
        """Decisions on requests that have not ended."""
        self._reported: dict[int, int] = {}
        self._clients: dict[tuple[str, str | None, str | None], EngineClient] = {}
        self._uses: dict[EngineClient, int] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self.retired = asyncio.Event()
        """Event that is set once the agent wants this process to take no more requests."""

    def __len__(self) -> int:
        """Return the number of requests that have not ended."""
        return len(self._requests)

    async def send(
        self, instance: str, request: InFlightRequest, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> InstanceResponse:
        """Send a request to the engine that the agent names. Raises: Refused."""
        number = next(self._numbers)
        decided: asyncio.Future[Go] = asyncio.get_running_loop().create_future()
        ask = Ask(
            number,
            instance,
            request.model,
            headers.get(PREFIX_HEADER, ""),
            request.prompt_tokens,
            request.max_tokens,
            request.streams,
            headers.get(TASK_HEADER, ""),
        )
        self._asked[number], self._requests[number] = (ask, decided), (request, instance)
        self._write(ask)
        client: EngineClient | None = None

        def ended(broken: bool) -> None:
            if self._requests.pop(number, None) is None:
                return  # it is called twice for a request that is cancelled as it begins
            self._reported.pop(number, None)
            self._gone.pop(number, None)
            if client is not None:
                self._uses[client] -= 1
            streamed = request.streamed
            self._write(ForwardEnded(number, broken, request.parts, streamed.events, streamed.end))

        try:
            async with asyncio.timeout(DECIDED_MAX_S):
                go = await decided
        except TimeoutError:
            ended(False)
            raise Refused(Refusal.FAILED) from None
        except asyncio.CancelledError:
            ended(False)
            raise
        finally:
            self._asked.pop(number, None)
        request.begun_s = asyncio.get_running_loop().time()
        self._gone[number] = go
        client = self._client_of(go)
        return await passed_on(request, client.send(method, path, headers, body, ended), ended)

    async def serve(self) -> None:
        """Connect to the agent, and read what it says, again and again, until cancelled."""
        while True:
            try:
                reader, writer = await asyncio.open_unix_connection(self._path)
            except OSError:
                await asyncio.sleep(CONNECT_AGAIN_S)
                continue
            self._writer = writer
            try:
                self._begin()
                while (data := await next_message(reader)) is not None:
                    self._heard(data)
            except (ValueError, msgspec.MsgspecError) as error:  # an agent of a version that says something else
                logger.warning("the agent says what this process cannot read: %s", error)
                await asyncio.sleep(CONNECT_AGAIN_S)
            finally:
                self._writer = None
                writer.close()

    async def report(self) -> None:
        """Report the events that have come since the last report."""
        if self._writer is None or self._writer.transport.get_write_buffer_size() > _MOST_UNSENT:
            return
        changed = {
            number: events
            for number, (request, _) in self._requests.items()
            if (events := request.streamed.events) != self._reported.get(number, 0)
        }
        if changed:
            self._reported |= changed
            self._write(StreamProgress(changed))

    async def close(self) -> None:
        """Close the clients of all engines."""
        await asyncio.gather(*(client.close() for client in self._clients.values()), *self._closing)

    def _begin(self) -> None:
        """Say which requests there are, and ask for the ones that are undecided."""
        now_s = asyncio.get_running_loop().time()
        held = [self._held(number, go, now_s) for number, go in self._gone.items()]
        self._reported.clear()
        self._write(Hello(os.getpid(), held))
        for ask, _ in self._asked.values():
            self._write(ask)

    def _held(self, number: int, go: Go, now_s: float) -> ReportedRequest:
        request, instance = self._requests[number]
        return ReportedRequest(
            number,
            instance,
            request.model,
            go.socket,
            go.at,
            request.prompt_tokens,
            request.max_tokens,
            request.streams,
            now_s - request.begun_s,
            request.parts,
            request.streamed.events,
        )

    def _heard(self, data: bytes) -> None:
        match to_forwarder.decode(data):
            case Go() as go:
                self._settle(go.id, go)
            case RefuseAsk(number, reason):
                self._requests.pop(number, None)
                self._settle(number, Refused(reason))
            case Abort(number, reason):
                self._abort(number, reason)
            case Retire():
                self.retired.set()

    def _settle(self, number: int, found: Go | Refused) -> None:
        _, decided = self._asked.get(number, (None, None))
        if decided is None or decided.done():
            return
        if isinstance(found, Go):
            decided.set_result(found)
        else:
            decided.set_exception(found)

    def _abort(self, number: int, reason: Refusal | None) -> None:
        request, _ = self._requests.get(number, (None, ""))
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
        if self._writer is not None and not self._writer.is_closing():
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


class LeavingServer:
    """An ASGI app that can ask clients to use their connections for no further request.

    Args:
        app: The app.
    """

    def __init__(self, app: AgentServer) -> None:
        self._app = app
        self.is_leaving = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_last(message: Message) -> None:
            if self.is_leaving and message["type"] == "http.response.start":
                name, value = CLOSE
                message = {**message, "headers": [*message["headers"], (name.encode(), value.encode())]}
            await send(message)

        await self._app(scope, receive, send_last)


async def forward(job: ForwarderJob, listening: socket.socket) -> None:
    """Serve the endpoint until another process takes over and the requests of this one have ended."""
    link, state = AgentLink(job.decisions), ForwardedState(job.reports)
    app = LeavingServer(
        AgentServer({name: RemoteInstance(name, link) for name in job.instances}, state.answer, job.key)
    )
    tls = None
    beside = [
        asyncio.create_task(supervised("progress of streams is not reported", link.report, PROGRESS_S)),
        asyncio.create_task(link.serve()),
    ]
    if job.certificates is not None:
        from sloserve.fleet.certificates import Certificates

        certificates = Certificates(Path(job.certificates), of_gateways=job.of_gateways)
        tls = certificates.of_endpoint(job.host)
        beside.append(asyncio.create_task(keep_renewed(certificates)))
    server = endpoint_server(app, tls)
    serving = asyncio.create_task(server.serve([listening]))
    try:
        await link.retired.wait()
        app.is_leaving = True
        await _left(server, link)
    finally:
        server.should_exit = server.force_exit = True
        for task in beside:
            task.cancel()
        await asyncio.gather(serving, *beside, return_exceptions=True)
        await state.close()
        await link.close()


async def _left(server: EmbeddedServer, link: AgentLink) -> None:
    """Accept no further connections, and return once no connection is left that may still bring a request.

    An idle connection is closed by its time limit alone: a request that comes as it is closed would be lost.
    """
    for accepting in server.servers:
        accepting.close()
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    while loop.time() - begun_s < RETIRED_MAX_S:
        await asyncio.sleep(_LOOK_S)
        if not len(link) and (not server.server_state.connections or loop.time() - begun_s > 2 * KEEP_ALIVE_S):
            return


def main() -> None:
    """Run the process."""
    if json_log.logs_are_json():
        json_log.use_json_logs()
    else:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # its parent ends it
        signal.signal(number, signal.SIG_IGN)
    parent, listening = map(int, sys.argv[1:3])
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=ForwarderJob)
    die_with(parent)  # also where this process is stopped, for it holds the socket that the next agent opens
    forwarding = forward(job, socket.socket(fileno=listening))
    try:
        import uvloop
    except ImportError:
        asyncio.run(forwarding)
    else:
        uvloop.run(forwarding)


if __name__ == "__main__":
    main()
