"""The server of a gateway, in a process of its own or beside a planner."""

import asyncio
import os
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from sloserve.core.errors import ConfigError
from sloserve.core.listening import cannot_listen, check_certificate, family_of
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
from sloserve.fleet.run.signals import Stopping
from sloserve.fleet.store.store import Store, open_store
from sloserve.scheduler.settings import ADMIN_KEY
from sloserve.wire.asgi import Message, Receive, Scope, Send
from sloserve.wire.optional_http3 import Http3Front, Tls, check


class GatewayServer:
    """One gateway and its listening socket.

    Raises: ConfigError for a fault in the file of keys, a port that is taken, an address or an agent that needs a key.
    """

    def __init__(self, fleet: Fleet, place: Place, store: Store, drain_s: float) -> None:
        section = fleet.gateway
        keys = None if section.keys is None else Path(fleet.source).parent / section.keys
        check_address(section.host, keys)
        check_origins(section.cors.origins, keys)
        check_endpoints(fleet, place)
        limits = GatewaySettings(**{name: getattr(section, name) for name in GatewaySettings.model_fields})
        self._certificates = certificates_of(fleet)
        around = GatewayDependencies(
            store,
            place.files,
            keys,
            endpoint_key=next(iter(keys_in(place.endpoint_key)), None),
            endpoint_tls=None if self._certificates is None else self._certificates.of_gateway(),
            limits=limits,
            file_limits=file_limits(fleet),
            admin_key=os.environ.get(ADMIN_KEY) or None,
        )
        gateway = Gateway(fleet, around)
        gateway.metrics.registry.register(PlanCollector(lambda: gateway.parts.instances.plan))
        self._tls = _tls(section, Path(fleet.source).parent)
        self._listening = _listening(section, limits.silent_max_s)
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
        self._drain_s, self._http3_ended = drain_s, asyncio.Event()
        ssl_flags = {
            "ssl_certfile": self._tls.certfile,
            "ssl_keyfile": self._tls.keyfile,
            "ssl_ca_certs": self._tls.ca_certs,
            "ssl_cert_reqs": self._tls.cert_reqs,
        }
        self._server = EmbeddedServer(config(self._app, timeout_graceful_shutdown=max(int(drain_s), 1), **ssl_flags))
        self._serving: asyncio.Task[None] | None = None
        self._refreshing: list[asyncio.Task[None]] = []

    async def start(self) -> str | None:
        """Begin to serve, and return where HTTP/3 is served, or ``None`` without it. Raises: ConfigError."""
        self._refreshing = refreshing(self._certificates)
        self._serving = asyncio.create_task(self._server.serve([self._listening]))
        if not self._http3.enabled:
            return None
        gateway = self._gateway
        return await self._front.listen(
            gateway.app, self._http3, self._tls, self._udp, gateway.classify, gateway.metrics.registry
        )

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


def _tls(section: GatewaySection, folder: Path) -> Tls:
    """Return the gateway's TLS files. Raises: ConfigError for files that are no certificate and key."""
    files = (section.ssl_certfile, section.ssl_keyfile, section.ssl_ca_certs)
    certfile, keyfile, authorities = (None if name is None else str(folder / name) for name in files)
    check_certificate(certfile, keyfile)
    return Tls(certfile, keyfile, authorities, section.ssl_cert_reqs, section.enable_ssl_refresh)


def _listening(section: GatewaySection, silent_max_s: float) -> socket.socket:
    try:
        made = socket.create_server((section.host, section.port), family=family_of(section.host), backlog=2048)
        if sys.platform == "linux":
            # This limits all its connections: one ends when its client reads nothing for this time, whatever is still
            # to be sent.
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(silent_max_s * 1e3))
        return made
    except (OSError, OverflowError) as error:
        reason = cannot_listen(section.host, section.port, error)
        raise ConfigError(f"gateway: {reason}, or in the section gateway of the fleet's file") from None


async def serve_gateway(fleet: Fleet, place: Place, say: Callable[[str], None]) -> None:
    """Run a process that is only a gateway, until SIGINT or SIGTERM. Raises: ConfigError."""
    stopping, store = Stopping(), open_store(place.store)
    allow_open_files(fleet.gateway.max_requests)
    try:
        server = GatewayServer(fleet, place, store, fleet.switching.drain_max_s)
        also = await server.start()
        say(f"gateway: {server.address}/v1" + (f"; {also}" if also else ""))
        await stopping.wait()
        stopping.again()
        hurried = asyncio.create_task(stopping.wait())
        await stop(server, hurried)
        hurried.cancel()
    finally:
        store.close()


async def stop(server: GatewayServer, hurried: "asyncio.Task[None]") -> None:
    """Accept no more requests, and let running ones end, unless ``hurried`` ends before."""
    closing = asyncio.create_task(server.stop())
    await asyncio.wait({hurried, closing}, return_when=asyncio.FIRST_COMPLETED)
    if not closing.done():
        await server.stop(at_once=True)
    await closing
