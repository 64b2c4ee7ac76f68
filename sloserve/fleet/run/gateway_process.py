"""The server of a gateway, in a process of its own or beside a planner."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from sloserve.core.errors import ConfigError
from sloserve.fleet.file import Fleet
from sloserve.fleet.file_sections import GatewaySection
from sloserve.fleet.gateway.gateway import Gateway, Surroundings, check_address
from sloserve.fleet.gateway.serve import config
from sloserve.fleet.gateway.settings import GatewaySettings
from sloserve.fleet.planning.metrics import PlanCollector
from sloserve.fleet.run.live import Place, file_limits
from sloserve.fleet.run.signals import Stopping
from sloserve.fleet.store.store import Store, open_store


class _Server(uvicorn.Server):
    """Leaves signals to the process that it is a part of."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class GatewayServer:
    """One gateway and its listening socket.

    Raises: ConfigError for a fault in the file of keys, a port that is taken, or an address that needs keys.
    """

    def __init__(self, fleet: Fleet, place: Place, store: Store, drain_s: float) -> None:
        section = fleet.gateway
        keys = None if section.keys is None else Path(fleet.source).parent / section.keys
        check_address(section.host, keys)
        limits = GatewaySettings(**section.model_dump(include=set(GatewaySettings.model_fields)))
        around = Surroundings(store, place.files, keys, limits=limits, file_limits=file_limits(fleet))
        gateway = Gateway(fleet, around)
        gateway.metrics.registry.register(PlanCollector(lambda: gateway.parts.instances.plan))
        self._listening = _listening(section)
        host, port = self._listening.getsockname()[:2]
        self.address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        """Where clients reach it."""
        self._gateway = gateway
        self._server = _Server(config(gateway.app, timeout_graceful_shutdown=max(int(drain_s), 1)))
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Requests are answered soon after."""
        self._serving = asyncio.create_task(self._server.serve([self._listening]))

    async def stop(self, *, at_once: bool = False) -> None:
        """Takes no more requests, and lets those that run end; or breaks them off ``at_once``."""
        self._server.should_exit = True
        self._server.force_exit |= at_once
        if self._serving is not None:
            await asyncio.gather(self._serving, return_exceptions=True)
        await self._gateway.stop()  # a server that is forced to end does not tell its app


def _listening(section: GatewaySection) -> socket.socket:
    try:
        return socket.create_server((section.host, section.port), family=_family(section.host), backlog=2048)
    except OSError as error:
        raise ConfigError(
            f"gateway: cannot listen on {section.host} port {section.port}: {error.strerror or error}; choose another "
            "with --port or --host, or in the section gateway of the fleet's file"
        ) from None


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


async def serve_gateway(fleet: Fleet, place: Place, say: Callable[[str], None]) -> None:
    """A process that does nothing else, until SIGINT or SIGTERM. Raises: ConfigError."""
    stopping, store = Stopping(), open_store(place.store)
    try:
        server = GatewayServer(fleet, place, store, fleet.switching.drain_max_s)
        await server.start()
        say(f"gateway: {server.address}/v1")
        await stopping.wait()
        await server.stop()
    finally:
        store.close()
