"""The servers of an endpoint picker: gRPC for Envoy and for probes, HTTP for its metrics."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from prometheus_client.core import GaugeMetricFamily

from sloserve.core.clock import Clock, SystemClock
from sloserve.core.listening import check_certificate, check_port_free, family_of
from sloserve.fleet.beside.endpoint_picker.exchange import BodyMemory, PickerExchange, PickerState
from sloserve.fleet.beside.endpoint_picker.messages import METHOD, SERVICE, ProcessingRequest, ProcessingResponse
from sloserve.fleet.beside.endpoint_picker.picker_file import SELF_SIGNED, ListenSection, PickerFile
from sloserve.fleet.beside.endpoint_picker.picker_metrics import PickerMetrics
from sloserve.fleet.beside.endpoint_picker.sampling import Sampling
from sloserve.fleet.beside.endpoint_picker.self_signed import self_signed
from sloserve.fleet.beside.endpoint_picker.server_list import ServerList
from sloserve.fleet.beside.picking import Picking
from sloserve.fleet.beside.request_reading import RequestReading
from sloserve.fleet.gateway.serve import config
from sloserve.fleet.http import EmbeddedServer
from sloserve.fleet.supervised import supervised
from sloserve.wire.asgi import Receive, Scope, Send, answer, refuse

_PAGE: Final = "text/plain; version=0.0.4; charset=utf-8"
_READY: Final = ("", "readiness", SERVICE)
"""Names of the health service that say whether requests can be served; ``liveness`` says that the process responds."""
_READY_S: Final = 0.2
_STOP_S: Final = 120.0
"""Seconds for the streams of requests to end after a signal; Envoy goes on without them."""
_EXTRA_BYTES: Final = 1 << 20


class PickerServer:
    """One picker.

    Args:
        file: Contents of its file.
        clock: Clock of this process.

    Raises: ConfigError for a profile or a certificate that cannot be read.
    """

    def __init__(self, file: PickerFile, clock: Clock | None = None) -> None:
        clock, listen = clock or SystemClock(), file.listen
        self._listen, self._folder = listen, file.folder
        self.picking = Picking(file.models, file.choice, clock, listen.others)
        self._sampling = Sampling(file.servers, ServerList(file.servers, file.folder), self.picking)
        self._memory = BodyMemory(listen.max_bodies_mib << 20, listen.max_body_mib << 20)
        self._metrics = PickerMetrics()
        self._metrics.watch(self._gauges)
        self._state = PickerState(self.picking, RequestReading(file.settings), self._memory, self._metrics, clock)
        self._health = health.aio.HealthServicer()
        self._servers: list[grpc.aio.Server] = []
        self._http: tuple[EmbeddedServer, asyncio.Task[None]] | None = None
        self._renewing: asyncio.Task[None] | None = None
        self.port = self.health_port = self.metrics_port = 0

    async def start(self) -> None:
        """Begin to serve. Raises: ConfigError for an address that cannot be listened on."""
        listen = self._listen
        for port in {listen.port, listen.health_port or 0, listen.metrics_port or 0} - {0}:
            check_port_free(listen.host, port)
        await self._sampling.start()
        picker, with_health = self._server(), self._server()
        handler = grpc.stream_stream_rpc_method_handler(
            self._process, ProcessingRequest.FromString, ProcessingResponse.SerializeToString
        )
        picker.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))
        credentials = _credentials(listen, self._folder)
        at = f"{f'[{listen.host}]' if ':' in listen.host else listen.host}:"
        add = picker.add_insecure_port if credentials is None else picker.add_secure_port
        self.port = add(f"{at}{listen.port}", *(() if credentials is None else (credentials,)))
        if listen.health_port is None:
            health_pb2_grpc.add_HealthServicer_to_server(self._health, picker)
            self.health_port = self.port
        else:
            health_pb2_grpc.add_HealthServicer_to_server(self._health, with_health)
            self.health_port = with_health.add_insecure_port(f"{at}{listen.health_port}")
            await with_health.start()
        self._servers = [picker, with_health]
        await self._health.set("liveness", health_pb2.HealthCheckResponse.SERVING)
        await self._renew_health()
        self._renewing = asyncio.create_task(
            supervised("the state of the health service is not renewed", self._renew_health, _READY_S)
        )
        await picker.start()
        if listen.metrics_port is not None:
            self._serve_metrics(listen)

    async def stop(self, grace_s: float = _STOP_S) -> None:
        """Take no more requests, and end once the streams of the present ones have ended, or ``grace_s`` later."""
        if self._renewing is not None:
            self._renewing.cancel()
        await self._health.enter_graceful_shutdown()
        if self._servers:
            await self._servers[0].stop(grace_s)
            await self._servers[1].stop(0.0)
        await self._sampling.stop()
        if self._http is not None:
            self._http[0].should_exit = True
            await self._http[1]

    def _server(self) -> grpc.aio.Server:
        """Return a server that takes a body of the most bytes in one message, as Envoy's buffered mode sends it."""
        most_bytes = (self._listen.max_body_mib << 20) + _EXTRA_BYTES
        options = [("grpc.max_receive_message_length", most_bytes), ("grpc.so_reuseport", 0)]
        return grpc.aio.server(options=options, maximum_concurrent_rpcs=self._listen.max_requests)

    async def _process(self, messages: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        """Answer the messages of one request."""
        exchange = PickerExchange(self._state)
        try:
            async for message in messages:
                for made in await exchange.take(message):
                    yield made
                if exchange.is_over:
                    return
        finally:
            exchange.over()

    async def _renew_health(self) -> None:
        status = health_pb2.HealthCheckResponse
        for name in _READY:
            await self._health.set(name, status.SERVING if self._sampling.is_ready else status.NOT_SERVING)

    def _serve_metrics(self, listen: ListenSection) -> None:
        listening = socket.create_server((listen.host, listen.metrics_port or 0), family=family_of(listen.host))
        self.metrics_port = listening.getsockname()[1]
        server = EmbeddedServer(config(self._metrics_app, lifespan="off"))
        self._http = server, asyncio.create_task(server.serve([listening]))

    async def _metrics_app(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["path"] == "/metrics" and scope["method"] == "GET":
            await answer(send, HTTPStatus.OK, self._metrics.page(), _PAGE)
        else:
            await refuse(send, HTTPStatus.NOT_FOUND, "there is no such route; there is GET /metrics")

    def _gauges(self) -> Iterator[GaugeMetricFamily]:
        now_s = self._state.clock.monotonic_s()
        known = self.picking.instances.by_name.values()
        fresh = sum(one.is_fresh(now_s) for one in known)
        servers = GaugeMetricFamily(
            "sloserve:picker_servers", "Servers of the list, by whether their figures are fresh.", labels=["figures"]
        )
        servers.add_metric(["fresh"], fresh)
        servers.add_metric(["none"], max(len(self.picking.servers) - fresh, 0))
        yield servers
        waiting = "Requests that wait for a server with room."
        yield GaugeMetricFamily("sloserve:picker_held_requests", waiting, self.picking.waiting)
        kept = "Bytes of bodies that are kept until their end."
        yield GaugeMetricFamily("sloserve:picker_body_bytes", kept, self._memory.kept)


def _credentials(listen: ListenSection, folder: Path) -> grpc.ServerCredentials | None:
    """Return the certificate with which to serve; ``None`` to serve without TLS. Raises: ConfigError."""
    if listen.certfile is None:
        return None
    if listen.certfile == SELF_SIGNED:
        return grpc.ssl_server_credentials([self_signed(SystemClock())])
    certfile, keyfile = folder / listen.certfile, folder / str(listen.keyfile)
    check_certificate(str(certfile), str(keyfile))
    return grpc.ssl_server_credentials([(keyfile.read_bytes(), certfile.read_bytes())])


async def serve_picker(file: PickerFile, say: Callable[[str], None], stopped: Callable[[], Awaitable[None]]) -> None:
    """Run a picker until ``stopped`` returns. Raises: ConfigError."""
    server = PickerServer(file)
    try:
        await server.start()
        metrics = f"; metrics: http://{file.listen.host}:{server.metrics_port}/metrics" if server.metrics_port else ""
        say(f"endpoint picker: {file.listen.host}:{server.port}{metrics}")
        await stopped()
    finally:
        await server.stop()
