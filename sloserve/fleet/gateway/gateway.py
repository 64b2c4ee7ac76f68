"""One gateway put together: an ASGI app from a fleet's file, its store and its keys."""

import asyncio
from collections.abc import Collection, Iterable
from functools import partial
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
from sloserve.engine.metrics.class_metrics import attainment_gauge
from sloserve.fleet.batch_api.routes import BatchApi
from sloserve.fleet.batch_api.runner import BatchRunner
from sloserve.fleet.fleet import Fleet
from sloserve.fleet.gateway.app import TENANT, GatewayApp
from sloserve.fleet.gateway.batch_work import BatchWork
from sloserve.fleet.gateway.fleet_load import FleetLoad
from sloserve.fleet.gateway.fleet_view import FleetView, WatchRoutes
from sloserve.fleet.gateway.gateway_request import own_salts
from sloserve.fleet.gateway.held import Hold
from sloserve.fleet.gateway.keys import KeyFile, Tenant
from sloserve.fleet.gateway.metrics import held_gauge, tenant_counters
from sloserve.fleet.gateway.model_sets import ModelSets
from sloserve.fleet.gateway.parts import GatewayState
from sloserve.fleet.gateway.prediction import paces_of
from sloserve.fleet.gateway.shared_state import GatewayDependencies, SharedState, tokens_an_event
from sloserve.fleet.gateway.shared_use import SharedUse
from sloserve.fleet.gateway.traffic_log import TrafficLog
from sloserve.fleet.gateway.watch import Watch
from sloserve.fleet.gateway_settings import SHARED
from sloserve.fleet.supervised import supervised
from sloserve.wire.asgi import CLOSE, Receive, Scope, Send, key_in, refuse
from sloserve.wire.rate_limits import TenantRates
from sloserve.wire.resolve import resolve_headers

CHECK_S = 10.0
"""Seconds between looks for streams that make no progress."""
BATCH_CLASS = "batch"
"""Class of a batch's lines if the fleet has a class of this name; otherwise they have the least urgent class."""


class Gateway:
    """One gateway of a fleet. Any ASGI server with lifespan may serve ``app``, over any version of HTTP.

    Another version of the fleet's file makes another gateway, which takes over from the one before: its member in the
    store, its questions to agents, its held requests and all that counts, see :class:`GatewayState`. Requests that run
    in the one before end there; it owns no task and no connection any more.
    """

    shared: SharedState
    parts: GatewayState

    def __init__(
        self,
        fleet: Fleet,
        around: GatewayDependencies,
        clock: Clock | None = None,
        *,
        before: "Gateway | None" = None,
    ) -> None:
        """Put the gateway together.

        Args:
            fleet: Settings of the fleet, from its file.
            around: What the gateway is given.
            clock: Clock of this process; ``None`` for the system's, or the one of the gateway before.
            before: Gateway that this one takes over from, see :meth:`take_over`; nothing changes there until then.

        Raises: ConfigError for a fault in the file of keys, a policy of the router that cannot be used, or files that
        cannot be opened or differ from the files of the other gateways.
        """
        shared = SharedState.first(fleet, around, clock or SystemClock()) if before is None else before.shared
        self.shared, settings, limits, clock = shared, fleet.settings, around.limits, shared.clock
        self.keys = KeyFile(around.keys, settings.classes, fleet.models, clock)
        self._paces = paces_of(fleet)
        shares = self.keys.is_open or limits.prefix_sharing == SHARED
        self.metrics = shared.metrics
        self._before, known = before, None if before is None else before.parts
        if before is None:
            shared.instances.paces = self._paces
        self.parts = GatewayState(
            tuple(fleet.models),
            settings,
            limits,
            clock,
            shared.instances,
            shared.agents,
            shared.hold,
            shared.demand,
            shared.metrics,
            _traffic(fleet, known, clock),
            secret=shared.secret,
            storing=fleet.storing_models(),
            salt=own_salts if shares else shared.secret.salt,
            before=known,
        )
        self._an_event = tokens_an_event(fleet)
        self._sets = None
        if fleet.router is not None:
            seed, sets = sha256(shared.name.encode()).digest(), None if before is None else before.sets
            self._sets = self.parts.chooser = ModelSets(fleet, fleet.router, self.parts, seed, sets)
        self._checking: asyncio.Task[None] | None = None
        self._sampling: asyncio.Task[None] | None = None
        self._runner = self._batch_runner(around)
        self._work = None if self._runner is None else BatchWork(self._runner, clock)
        if before is None:
            use = SharedUse(self.parts.rates, self.keys.tenants)
            self.watch = Watch(shared.name, around.store, around.endpoints, self.parts, use)
            self._load = FleetLoad(self.parts)
            self.metrics.watch(partial(_gauges, shared.hold, self.parts.rates, settings.max_tenant_labels, self._load))
            self._view = FleetView(self.parts, self._load.parts)
            self.watching = None
            if around.admin_key is not None:
                self.watching = WatchRoutes(around.admin_key, self._view.read, self._load.history, around.file)
        else:
            self.watch, self._load, self._view, self.watching = (
                before.watch,
                before._load,
                before._view,
                before.watching,
            )
        self.app = GatewayApp(
            self.parts,
            self.keys,
            self._batch_routes(around),
            self.watching,
            cors=limits.cors,
            start=self.start,
            stop=self.stop,
            is_ready=lambda: bool(self.watch.answered),
            is_leaving=lambda: shared.is_leaving,
        )

    @property
    def sets(self) -> ModelSets | None:
        """The sets of models, with the router that chooses among them; ``None`` without one."""
        return self._sets

    async def start(self) -> None:
        """Begin to ask agents and to advance batches. The app calls it if its server knows lifespans."""
        self.watch.start()
        self._begin()

    async def take_over(self) -> None:
        """Take over from the gateway before; new requests have to come here as soon as this returns.

        The step of its batches that runs is done first, so that there is one runner for this member at a time.
        """
        before, self._before = self._before, None
        assert before is not None, "the gateway was made with one before it"
        old, is_running = before.sets, before.is_running
        if old is not None and (self._sets is None or not self._sets.goes_on):
            await asyncio.to_thread(old.close)  # the next log may have the same file
            self.metrics.rolled_back(is_so=False)
        await before.hand_over()
        # From here on nothing waits: no request sees one half of the settings.
        self.parts.instances.paces = self._paces
        self.parts.take_effect(self._an_event)
        self.watch.follow(self.parts, self.keys.tenants)
        self._load.follow(self.parts)
        self._view.follow(self.parts)
        if is_running:
            self._begin()

    async def hand_over(self) -> None:
        """End the tasks of this gateway except for the ones that the next one goes on with."""
        if self._work is not None:
            await asyncio.to_thread(self._work.stop)
        for task in (self._checking, self._sampling):
            if task is not None:
                task.cancel()
        self._checking = self._sampling = None

    @property
    def is_running(self) -> bool:
        """Whether the gateway was started, and neither stopped nor followed by another."""
        return self._checking is not None

    def leave(self) -> None:
        """Let health checks fail, so that other gateways get the requests of this process."""
        self.shared.is_leaving = True

    def _begin(self) -> None:
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
            await self._end_recording()
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
            await self._end_recording()
            await self.shared.agents.close()

    async def _end_recording(self) -> None:
        if self.parts.refusals is not None:
            await asyncio.to_thread(self.parts.refusals.close)

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

    def _batch_runner(self, around: GatewayDependencies) -> BatchRunner | None:
        if around.store is None or self.shared.files is None:
            return None
        classes = self.parts.settings.classes
        return BatchRunner(
            around.store,
            self.shared.files,
            models_of=lambda tenant: self.parts.models_of(self.keys.named(tenant))[0],
            class_of=lambda tenant: batch_class(classes, self.keys.named(tenant)),
            limits=around.file_limits,
            quota_of=lambda tenant: self.keys.named(tenant).quota,
            member=self.shared.name,
            salt_of=self.parts.salt,
            to_confirm=self.shared.to_confirm,
        )

    def _batch_routes(self, around: GatewayDependencies) -> Router | None:
        if self._runner is None:
            return None
        api = BatchApi(
            self._runner.store,
            self._runner.folder,
            _tenant_name,
            self._runner.confirm_later,
            limits=around.file_limits,
            quota_of=self._runner.quota_of,
            member=self.shared.name,
        )
        return Router(api.routes(), redirect_slashes=False, default=_no_route)


def _traffic(fleet: Fleet, known: GatewayState | None, clock: Clock) -> TrafficLog | None:
    """Return the recent requests, with the ones that were seen before; ``None`` for a fleet that replays none."""
    if not fleet.replays_traffic:
        return None
    return TrafficLog(clock.monotonic_s()) if known is None or known.traffic is None else known.traffic


def _gauges(hold: Hold, rates: TenantRates, most_tenants: int, load: FleetLoad) -> Iterable[Any]:
    yield held_gauge((request.model, request.slo_class) for request in hold.held)
    yield attainment_gauge("sloserve:gateway_slo_attainment_ratio", load.ratios())
    yield from tenant_counters(rates.used(), most_tenants)


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
