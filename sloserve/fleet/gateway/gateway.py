"""One gateway put together: an ASGI app from a fleet's file, its store and its keys."""

import asyncio
import secrets
import ssl
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.routing import Router

from sloserve.core.addresses import is_exposed
from sloserve.core.clock import Clock, SystemClock
from sloserve.core.errors import ConfigError
from sloserve.core.slo import SLO, ClassTable, Targets
from sloserve.engine.metrics import load_history
from sloserve.fleet.batch_api.files import Files, check_shared, open_files
from sloserve.fleet.batch_api.lines import Limits
from sloserve.fleet.batch_api.routes import BatchApi
from sloserve.fleet.batch_api.runner import BatchRunner
from sloserve.fleet.fleet import Fleet
from sloserve.fleet.gateway.agent_connections import AgentConnections
from sloserve.fleet.gateway.app import TENANT, GatewayApp
from sloserve.fleet.gateway.batch_work import BatchWork
from sloserve.fleet.gateway.demand import DemandMeter
from sloserve.fleet.gateway.fleet_load import FleetLoad
from sloserve.fleet.gateway.fleet_view import FleetView, WatchRoutes
from sloserve.fleet.gateway.gateway_request import Salt, own_salts
from sloserve.fleet.gateway.held import Hold
from sloserve.fleet.gateway.instances import Instances
from sloserve.fleet.gateway.keys import KeyFile, Tenant
from sloserve.fleet.gateway.metrics import GatewayMetrics, held_gauge, tenant_counters
from sloserve.fleet.gateway.model_sets import ModelSets
from sloserve.fleet.gateway.parts import GatewayState
from sloserve.fleet.gateway.prediction import Pace
from sloserve.fleet.gateway.salts import FleetSecret
from sloserve.fleet.gateway.shared_use import SharedUse
from sloserve.fleet.gateway.traffic_log import TrafficLog
from sloserve.fleet.gateway.watch import Watch
from sloserve.fleet.gateway_settings import SHARED, GatewaySettings
from sloserve.fleet.planning.snapshot import serving_of
from sloserve.fleet.store.store import Store
from sloserve.fleet.supervised import supervised
from sloserve.wire.asgi import CLOSE, Receive, Scope, Send, key_in, refuse
from sloserve.wire.resolve import resolve_headers

CHECK_S = 10.0
"""Seconds between looks for streams that make no progress."""
BATCH_CLASS = "batch"
"""Class of a batch's lines if the fleet has a class of this name; otherwise they have the least urgent class."""


@dataclass(frozen=True)
class GatewayDependencies:
    """What a gateway is given: store, files, keys and limits.

    Args:
        store: Store shared with agents and planners; ``None`` for a gateway without batches and without a plan.
        files: Place of the bytes of files: a folder, or an address of object storage.
        keys: File of keys; ``None`` for one tenant, on this machine only.
        endpoints: Endpoints of agents that are asked whatever the store says.
        endpoint_key: Key for endpoints on TCP, see :class:`~sloserve.fleet.gateway.agent_connections.AgentConnections`.
        endpoint_tls: TLS context for endpoints on TCP, see the same class.
        limits: Limits of the gateway.
        file_limits: Limits of one input file of a batch.
        name: Name that is unique among all members; ``None`` for a random one.
        admin_key: Key that the live feed asks for; without one there is no live feed.
    """

    store: Store | None = None
    files: str | Path | None = None
    keys: Path | None = None
    endpoints: Collection[str] = ()
    endpoint_key: str | None = field(default=None, repr=False)
    endpoint_tls: ssl.SSLContext | None = None
    limits: GatewaySettings = GatewaySettings()
    file_limits: Limits = Limits()
    name: str | None = None
    admin_key: str | None = field(default=None, repr=False)


class Gateway:
    """One gateway of a fleet. Any ASGI server with lifespan may serve ``app``, over any version of HTTP."""

    def __init__(self, fleet: Fleet, around: GatewayDependencies, clock: Clock | None = None) -> None:
        """Put the gateway together.

        Raises: ConfigError for a fault in the file of keys, a policy of the router that cannot be used, or files that
        cannot be opened or differ from the files of the other gateways.
        """
        clock, settings, limits = clock or SystemClock(), fleet.settings, around.limits
        self.keys = KeyFile(around.keys, settings.classes, fleet.models, clock)
        paces = {key: Pace(serving) for key, serving in serving_of(fleet).items()}
        instances = Instances(paces, limits.affinity)
        name = around.name or f"gateway-{secrets.token_hex(8)}"
        files = _files(around, name)
        secret = FleetSecret(None if files is None or around.store is None else around.store.files_mark(None))
        shares = self.keys.is_open or limits.prefix_sharing == SHARED
        salt: Salt = own_salts if shares else secret.salt
        self._agents = AgentConnections(limits.silent_max_s, around.endpoint_key, around.endpoint_tls)
        hold = Hold(instances, clock, limits.max_held, settings.tenant_shares)
        self.metrics = GatewayMetrics()
        self.parts = GatewayState(
            tuple(fleet.models),
            settings,
            limits,
            clock,
            instances,
            self._agents,
            hold,
            DemandMeter(settings.classes, {m.name: m.start.tokens_an_event for m in fleet.models.values()}),
            self.metrics,
            TrafficLog(clock.monotonic_s()) if fleet.replays_traffic else None,
            secret=secret,
            storing=fleet.storing_models(),
            salt=salt,
        )
        self._sets = None
        if fleet.router is not None:
            seed = sha256(name.encode()).digest()
            self._sets = self.parts.chooser = ModelSets(fleet, fleet.router, self.parts, seed)
        self.metrics.watch(self._gauges)
        use = SharedUse(self.parts.rates, self.keys.tenants)
        self.watch = Watch(name, around.store, around.endpoints, self.parts, use)
        self._checking: asyncio.Task[None] | None = None
        batches, self._work = self._batches(around, files, clock, name)
        self._load = FleetLoad(self.parts)
        self.watching = None
        if around.admin_key is not None:
            view = FleetView(self.parts, self._load.parts)
            self.watching = WatchRoutes(around.admin_key, view.read, self._load.history)
        self._sampling: asyncio.Task[None] | None = None
        self.app = GatewayApp(
            self.parts,
            self.keys,
            batches,
            self.watching,
            cors=limits.cors,
            start=self.start,
            stop=self.stop,
            is_ready=lambda: bool(self.watch.answered),
        )

    async def start(self) -> None:
        """Begin to ask agents and to advance batches. The app calls it if its server knows lifespans."""
        self.watch.start()
        every_s = min(self.parts.limits.silent_max_s / 4, CHECK_S)
        checking = supervised("streams without progress are not ended", self._check_streams, every_s)
        self._checking = asyncio.create_task(checking)
        if self.watching is not None:
            sampling = supervised("no samples of the load are taken", self._load.sample, load_history.EVERY_S)
            self._sampling = asyncio.create_task(sampling)
        if self._work is not None:
            self._work.start()

    async def stop(self) -> None:
        """Stop asking agents and advancing batches; requests should have ended before. A further call does nothing."""
        if self._checking is None:
            return
        self._checking.cancel()
        self._checking = None
        if self._sampling is not None:
            self._sampling.cancel()
        try:
            await self.watch.stop()
            if self._work is not None:
                await asyncio.to_thread(self._work.stop)
            if self._sets is not None:
                await asyncio.to_thread(self._sets.close)
        finally:
            await self._agents.close()

    async def _check_streams(self) -> None:
        for answer in list(self.parts.passing_on):
            answer.end_if_silent(self.parts.clock.monotonic_s(), self.parts.limits.silent_max_s)

    def leave_watchers(self) -> None:
        """End the responses to watchers, which would hold up a server that stops."""
        if self.watching is not None:
            self.watching.close()

    def classify(self, headers: Iterable[tuple[bytes, bytes]], peer: Any = None) -> tuple[SLO, str | None]:
        """Return a request's SLO and tenant by its headers, from whichever peer.

        A request without a key will be refused, and has the default class.
        """
        tenant = self.keys.tenant_of(key_in(headers))
        if tenant is None:
            return self.parts.settings.classes.slo(None, Targets()), None
        reader = self.parts.reader
        return resolve_headers(reader.rules_of(tenant), reader.header_rules, headers, tenant.name)

    def _batches(
        self, around: GatewayDependencies, folder: Files | None, clock: Clock, name: str
    ) -> tuple[Router | None, BatchWork | None]:
        if around.store is None or folder is None:
            return None, None
        store = around.store
        classes = self.parts.settings.classes
        runner = BatchRunner(
            store,
            folder,
            models_of=lambda tenant: self.parts.models_of(self.keys.named(tenant))[0],
            class_of=lambda tenant: batch_class(classes, self.keys.named(tenant)),
            limits=around.file_limits,
            quota_of=lambda tenant: self.keys.named(tenant).quota,
            member=name,
            salt_of=self.parts.salt,
        )
        api = BatchApi(
            store,
            folder,
            _tenant_name,
            runner.confirm_later,
            limits=around.file_limits,
            quota_of=runner.quota_of,
            member=name,
        )
        return Router(api.routes(), redirect_slashes=False, default=_no_route), BatchWork(runner, clock)

    def _gauges(self) -> Iterable[Any]:
        yield held_gauge((request.model, request.slo_class) for request in self.parts.hold.held)
        yield from tenant_counters(self.parts.rates.used(), self.parts.settings.max_tenant_labels)


def _files(around: GatewayDependencies, name: str) -> Files | None:
    """Open the files of batches; ``None`` for a gateway without batches. Raises: ConfigError."""
    if around.store is None or around.files is None:
        return None
    files = open_files(around.files, name)
    check_shared(files, around.store, around.files)
    return files


def batch_class(classes: ClassTable, tenant: Tenant) -> str:
    """Return the class of a batch's lines, no more urgent than the tenant may use."""
    name = BATCH_CLASS if BATCH_CLASS in classes else max(classes, key=lambda one: one.rank).name
    held = tenant.slo_class
    return held if held is not None and classes[held].rank > classes[name].rank else name


def check_address(host: str, keys: Path | None) -> None:
    """Check the address to listen on. Raises: ConfigError if a gateway without keys could be reached from elsewhere."""
    if keys is None and is_exposed(host):
        raise ConfigError(
            f"--host {host}: without --keys the gateway listens on 127.0.0.1 or ::1 only; give --keys FILE"
        )


def check_origins(origins: Collection[str], keys: Path | None) -> None:
    """Check the origins that may use a gateway. Raises: ConfigError if every page of a browser here could use it."""
    if keys is None and "*" in origins:
        raise ConfigError(
            "gateway.cors.origins: '*' without keys: every page that a browser of this machine opens could use the "
            "gateway; name the origins, or give --keys FILE"
        )


async def _no_route(scope: Scope, receive: Receive, send: Send) -> None:
    await refuse(
        send, HTTPStatus.NOT_FOUND, f"{scope['path']}: there is no such route of files or batches", None, [CLOSE]
    )


def _tenant_name(request: Request) -> str:
    tenant: Tenant = request.scope[TENANT]
    return tenant.name
