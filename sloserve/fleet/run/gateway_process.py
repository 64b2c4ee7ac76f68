"""The server of a gateway, in a process of its own or beside a planner."""

import asyncio
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from sloserve.core.errors import ConfigError
from sloserve.core.listening import cannot_listen, check_certificate, family_of
from sloserve.core.slo import SLO
from sloserve.fleet.contract.endpoint import keys_in
from sloserve.fleet.file_sections import GatewaySection
from sloserve.fleet.fleet import Fleet
from sloserve.fleet.gateway.gateway import Gateway, check_address, check_origins
from sloserve.fleet.gateway.serve import config
from sloserve.fleet.gateway.shared_state import GatewayDependencies
from sloserve.fleet.gateway_settings import GatewaySettings
from sloserve.fleet.http import EmbeddedServer
from sloserve.fleet.planning.plan_metrics import PlanCollector
from sloserve.fleet.run.live import Place, certificates_of, check_endpoints, file_limits, refreshing
from sloserve.fleet.run.open_files import allow_open_files
from sloserve.fleet.run.reloading import FileInForce, FleetSource, Reloading
from sloserve.fleet.run.signals import HangUps, Stopping
from sloserve.fleet.store.store import Store, open_store
from sloserve.scheduler.settings import ADMIN_KEY
from sloserve.wire.asgi import Message, Receive, Scope, Send
from sloserve.wire.optional_http3 import Http3Front, Tls, check


class GatewayServer:
    """One gateway and its listening socket.

    :meth:`apply` puts another :class:`Gateway` behind the same socket.

    Raises: ConfigError for a fault in the file of keys, a port that is taken, an address or an agent that needs a key.
    """

    def __init__(
        self, fleet: Fleet, place: Place, store: Store, drain_s: float, in_force: FileInForce | None = None
    ) -> None:
        section, self._place = fleet.gateway, place
        self._certificates = certificates_of(fleet)
        fixed = GatewayDependencies(
            store,
            place.files,
            endpoint_key=next(iter(keys_in(place.endpoint_key)), None),
            endpoint_tls=None if self._certificates is None else self._certificates.of_gateway(),
            admin_key=os.environ.get(ADMIN_KEY) or None,
            file=None if in_force is None else in_force.view,
        )
        self._around = _around(fleet, place, fixed)
        gateway = Gateway(fleet, self._around)
        gateway.metrics.registry.register(PlanCollector(lambda: self._gateway.parts.instances.plan))
        if in_force is not None:
            gateway.metrics.registry.register(in_force)
        self._tls = _tls(section, Path(fleet.source).parent)
        self._listening = _listening(section, section.silent_max_s)
        host, port = self._listening.getsockname()[:2]
        self._http3, self._front, self._udp = section.http3, Http3Front(), (section.host, section.http3.port or port)
        try:
            if self._http3.enabled:
                check(self._http3, self._tls, self._udp)
        except ConfigError:
            self._listening.close()
            raise
        self.address = f"http{'s' if self._tls.certfile else ''}://{f'[{host}]' if ':' in host else host}:{port}"
        """URL at which clients reach the gateway."""
        self._gateway = gateway
        self._leave_s, self._drain_s, self._http3_ended = section.leave_s, drain_s, asyncio.Event()
        ssl_flags = {
            "ssl_certfile": self._tls.certfile,
            "ssl_keyfile": self._tls.keyfile,
            "ssl_ca_certs": self._tls.ca_certs,
            "ssl_cert_reqs": self._tls.cert_reqs,
        }
        self._server = EmbeddedServer(config(self._app, timeout_graceful_shutdown=_graceful_s(drain_s), **ssl_flags))
        self._serving: asyncio.Task[None] | None = None
        self._refreshing: list[asyncio.Task[None]] = []

    async def start(self) -> str | None:
        """Begin to serve, and return where HTTP/3 is served, or ``None`` without it. Raises: ConfigError."""
        self._refreshing = refreshing(self._certificates)
        self._serving = asyncio.create_task(self._server.serve([self._listening]))
        if not self._http3.enabled:
            return None
        registry = self._gateway.metrics.registry
        return await self._front.listen(self._app_now, self._http3, self._tls, self._udp, self._classify, registry)

    async def apply(self, fleet: Fleet) -> None:
        """Serve requests that come after this by another version of the fleet's file.

        Requests that run end by the version that they came with. Raises: ConfigError; then nothing has changed.
        """
        around = _around(fleet, self._place, self._around)
        # It reads the files of keys and policies, for which no stream is held up.
        after = await asyncio.to_thread(partial(Gateway, fleet, around, before=self._gateway))
        await after.take_over()
        self._gateway, self._around = after, around
        self._leave_s, self._drain_s = fleet.gateway.leave_s, fleet.switching.drain_max_s
        self._server.config.timeout_graceful_shutdown = _graceful_s(self._drain_s)
        _limit_silence(self._listening, fleet.gateway.silent_max_s)
        allow_open_files(fleet.gateway.max_requests)

    async def _app_now(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._gateway.app(scope, receive, send)

    def _classify(self, headers: Iterable[tuple[bytes, bytes]], peer: Any = None) -> tuple[SLO, str | None]:
        return self._gateway.classify(headers, peer)

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the gateway's app: advertise HTTP/3 to clients on TCP, and end only after the requests on HTTP/3."""
        if scope["type"] == "lifespan":
            await self._gateway.app(scope, self._after_http3(receive), send)
            return
        send = self._front.advertising(scope, send) if scope["type"] == "http" else send
        await self._gateway.app(scope, receive, send)

    def _after_http3(self, receive: Receive) -> Receive:
        async def received() -> Message:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                await self._http3_ended.wait()
            return message

        return received

    async def _stop_http3(self, linger_s: float) -> None:
        try:
            await self._front.stop(linger_s)
        finally:
            self._http3_ended.set()

    async def leave(self) -> None:
        """Accept requests for ``gateway.leave_s`` more, while health checks fail and others get the requests."""
        self._gateway.leave()
        await asyncio.sleep(self._leave_s)

    async def stop(self, *, at_once: bool = False) -> None:
        """Accept no more requests, and let running ones end, or break them off ``at_once``."""
        for task in self._refreshing:
            task.cancel()
        self._gateway.leave_watchers()
        self._server.should_exit = True
        self._server.force_exit |= at_once
        ending: list[Awaitable[None]] = [self._stop_http3(0.0 if at_once else self._drain_s)]
        ending += [] if self._serving is None else [self._serving]
        await asyncio.gather(*ending, return_exceptions=True)
        await self._gateway.stop()  # a server that is forced to end does not notify its app


def _around(fleet: Fleet, place: Place, fixed: GatewayDependencies) -> GatewayDependencies:
    """Return what a version of the file gives to a gateway, beside what is ``fixed``. Raises: ConfigError."""
    section = fleet.gateway
    keys = None if section.keys is None else Path(fleet.source).parent / section.keys
    check_address(section.host, keys)
    check_origins(section.cors.origins, keys)
    check_endpoints(fleet, place)
    limits = GatewaySettings(**{name: getattr(section, name) for name in GatewaySettings.model_fields})
    return replace(fixed, keys=keys, limits=limits, file_limits=file_limits(fleet))


def _graceful_s(drain_s: float) -> int:
    return max(int(drain_s), 1)


def _tls(section: GatewaySection, folder: Path) -> Tls:
    """Return the gateway's TLS files. Raises: ConfigError for files that are no certificate and key."""
    files = (section.ssl_certfile, section.ssl_keyfile, section.ssl_ca_certs)
    certfile, keyfile, authorities = (None if name is None else str(folder / name) for name in files)
    check_certificate(certfile, keyfile)
    return Tls(certfile, keyfile, authorities, section.ssl_cert_reqs, section.enable_ssl_refresh)


def _listening(section: GatewaySection, silent_max_s: float) -> socket.socket:
    if section.reuse_port and section.http3.enabled:
        raise ConfigError(
            "gateway.reuse_port: packets of one HTTP/3 connection would reach several gateways; leave out HTTP/3, or it"
        )
    try:
        made = socket.create_server(
            (section.host, section.port),
            family=family_of(section.host),
            backlog=2048,
            reuse_port=section.reuse_port,
        )
        _limit_silence(made, silent_max_s)
        return made
    except (OSError, OverflowError) as error:
        reason = cannot_listen(section.host, section.port, error)
        raise ConfigError(f"gateway: {reason}, or in the section gateway of the fleet's file") from None


def _limit_silence(listening: socket.socket, silent_max_s: float) -> None:
    """End connections that are accepted from a socket when the client reads nothing for this time."""
    if sys.platform == "linux":
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(silent_max_s * 1e3))


async def serve_gateway(
    fleet: Fleet, place: Place, say: Callable[[str], None], source: FleetSource | None = None
) -> None:
    """Run a process that is only a gateway, until SIGINT or SIGTERM; on SIGHUP it follows its file.

    Raises: ConfigError.
    """
    stopping, hang_ups, store = Stopping(), HangUps(), open_store(place.store)
    allow_open_files(fleet.gateway.max_requests)
    try:
        in_force = FileInForce(fleet)
        server = GatewayServer(fleet, place, store, fleet.switching.drain_max_s, in_force)
        also = await server.start()
        say(f"gateway: {server.address}/v1" + (f"; {also}" if also else ""))
        reloading = asyncio.create_task(Reloading(source, in_force, server.apply).run(hang_ups))
        await stopping.wait()
        reloading.cancel()
        await asyncio.gather(reloading, return_exceptions=True)
        stopping.again()
        hurried = asyncio.create_task(stopping.wait())
        await stop(server, hurried)
        hurried.cancel()
    finally:
        store.close()


async def stop(server: GatewayServer, hurried: "asyncio.Task[None]") -> None:
    """Accept no more requests, and let running ones end, unless ``hurried`` ends before."""
    leaving = asyncio.create_task(server.leave())
    await asyncio.wait({hurried, leaving}, return_when=asyncio.FIRST_COMPLETED)
    leaving.cancel()
    closing = asyncio.create_task(server.stop())
    await asyncio.wait({hurried, closing}, return_when=asyncio.FIRST_COMPLETED)
    if not closing.done():
        await server.stop(at_once=True)
    await closing
