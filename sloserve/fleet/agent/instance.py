"""One instance of an agent: the way to its engines, and the model that serves.

    EMPTY ──switch──▶ SWITCHING ──▶ SERVING ──switch──▶ DRAINING ──▶ SWITCHING ──▶ SERVING
                          │            │ engine dies        │
                          └──fails──▶ FAILED ──new engine───┴──▶ SERVING

One transition runs at a time. From its begin to its end every request is refused: a paused engine would queue it in
silence. An adapter of the active model comes without a transition.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

from sloserve.core.errors import EngineError
from sloserve.core.spans import Phase
from sloserve.fleet.agent.engine import Engine
from sloserve.fleet.agent.engine_note import EngineNote
from sloserve.fleet.agent.engine_requests import InFlightRequest, TakenRequest, line_of, passed_on, stream_of
from sloserve.fleet.agent.engine_set import EngineSet
from sloserve.fleet.agent.engine_spec import EngineModel, EngineProcess
from sloserve.fleet.agent.engine_watch import EngineWatch
from sloserve.fleet.agent.host_parts import HostParts
from sloserve.fleet.agent.recently_sent import RecentlySent
from sloserve.fleet.agent.renewal import follow_settings
from sloserve.fleet.agent.switch_methods import SwitchMethod
from sloserve.fleet.contract.endpoint import (
    PREFIX_HEADER,
    DurableWork,
    InstanceResponse,
    LineSize,
    Refusal,
    Refused,
    read_prefixes,
)
from sloserve.fleet.contract.reported_tasks import TASK_HEADER, task_in
from sloserve.fleet.contract.reports import InstanceReport
from sloserve.fleet.supervised import Faults
from sloserve.scheduler.virtual_queues.contract import ModelState, RunningSums

logger = logging.getLogger(__name__)
T = TypeVar("T")

READS_EVERY_S: Final = 0.001
"""Seconds for each read of a batch line's response: lines of one engine take a core at most 1,000 times a second."""
READ_MAX_S: Final = 0.25
"""Most seconds between two reads of one response, after which its end is seen at the latest."""
_RETRY_S: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Seconds between starts of an engine that does not start; the last value repeats."""
_HOLD_LOOK_S: Final = 0.05
_RENEW_AGAIN_S: Final = 1.0
"""Seconds between looks whether an outdated engine can be replaced: it may keep requests, or change its model."""
_LEAVING_S: Final = 5.0
"""Seconds beyond its limit after which durable work is aborted; what is sent back has as long to end."""


class NoDurableWork:
    """Durable work of an agent that pulls nothing."""

    async def leave(self, instance: str, limit_s: float) -> None:
        """Return at once: there is nothing to give back."""

    def serves(self, instance: str) -> None:
        """Do nothing: there is nothing to pull."""

    def ended(self, instance: str) -> None:
        """Do nothing: there is nothing to pull."""

    def died(self, instance: str) -> None:
        """Do nothing: nothing was lost."""


class Instance:
    """A :class:`~sloserve.fleet.contract.endpoint.InstanceEndpoint`; the owner must close it.

    Args:
        name: Name of the instance.
        device: Kind of its device.
        models: Models that it can serve, by name.
        host: State that the instances of the host share.
        durable: Puller of durable requests.
        drain_max_s: Seconds after which streams that have not ended are parked when their model leaves.
        environment: Environment variables of its engines.
    """

    def __init__(
        self,
        name: str,
        device: str,
        models: Mapping[str, EngineModel],
        host: HostParts,
        durable: DurableWork,
        *,
        drain_max_s: float = 60.0,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._name, self._device, self._models, self._clock = name, device, models, host.clock
        self._durable, self._drain_max_s = durable, drain_max_s
        self._engines = EngineSet(name, models, host, self._died, environment)
        self._faults = Faults(f"{name}: the puller of lines misses events of its engines")
        self._phase = Phase.EMPTY
        self._active: str | None = None
        """Model that serves, or comes: a coming model counts from the begin of its transition."""
        self._since_s = self._ready_s = 0.0
        self._switching = asyncio.Lock()
        self._is_switching = self._is_leaving = self._is_held = False
        self._renewing = host.renewing
        self._adopted: list[Engine] = []
        self._prompts, self._tasks_sent = RecentlySent[int](), RecentlySent[str]()
        self._service = host.service
        self.watch = EngineWatch(name, host, lambda: (self._engines.active, self._phase))
        self._tasks: set[asyncio.Task[Any]] = set()
        for loop in self.watch.loops():
            self._spawn(loop)

    @property
    def name(self) -> str:
        return self._name

    @property
    def standing(self) -> tuple[Phase, str | None, int]:
        """What :func:`~sloserve.fleet.contract.reports.standing_of` returns for the report of now, in less time."""
        phase, room, _ = self._shown()
        return phase, None if self._is_leaving else self._active, room.bit_length()

    def _shown(self) -> tuple[Phase, int, bool]:
        """Return the phase and the room that the report states, and whether an engine serves."""
        engine = self._engines.active
        phase = Phase.DRAINING if self._is_leaving and self._phase is Phase.SERVING else self._phase
        serves = phase is Phase.SERVING and engine is not None
        return phase, engine.places.left(len(engine.requests)) if engine and serves else 0, serves

    def report(self) -> InstanceReport:
        engine, now_s = self._engines.active, self._clock.monotonic_s()
        phase, room, serves = self._shown()
        models = {name: self._engines.state(name) for name in self._models}
        active = None if self._is_leaving else self._active  # no model comes, nor stays
        for name, state in models.items():
            if state is ModelState.ACTIVE and name != active:
                models[name] = ModelState.WARM
        if active is not None:
            models[active] = ModelState.ACTIVE
        running, drain_s = engine.requests.outlook() if engine else (RunningSums(), 0.0)
        return InstanceReport(
            name=self._name,
            device=self._device,
            phase=phase,
            models=models,
            active_for_s=max(now_s - self._since_s, 0.0) if serves else None,
            # Once it is late it is expected to be as late again: gateways would wait for an estimate that stays near.
            ready_in_s=0.0 if serves or self._phase is Phase.EMPTY else max(abs(self._ready_s - now_s), 0.1),
            running=running,
            streams=engine.requests.streams if engine else 0,
            room=room,
            room_for_streams=engine.places.for_streams if engine else 0,
            cached=self._prompts.reported(now_s),
            tasks=self._tasks_sent.reported(now_s),
            drain_s=min(drain_s, self._drain_max_s),
            parked=self._engines.parked,
            service_s={} if self._service is None else self._service.of_instance(self._name),
        )

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
        request = stream_of(model, body, path.partition("?")[0]) if line is None else line_of(model, line)
        taken = self.take(request, headers.get(PREFIX_HEADER, ""), headers.get(TASK_HEADER, ""))
        pause_s = None if line is None else taken.pause_s
        sending = taken.client.send(method, path, headers, body, taken.ended, pause_s)
        return await passed_on(request, sending, taken.ended)

    def take(self, request: InFlightRequest, prefixes: str, task: str = "") -> TakenRequest:
        """Take a request, which counts as one of the engine until it is reported to have ended.

        Args:
            request: The request.
            prefixes: Value of its header ``x-sloserve-prefix``.
            task: Value of its header ``x-sloserve-task``; empty for none.

        Raises: Refused if the instance does not take it.
        """
        engine = self._engine_for(request.model, request.durable)
        taken = self._begun(engine, request, self._clock.monotonic_s())
        self._prompts.sent(read_prefixes(prefixes), request.begun_s)
        if (known := task_in(task)) is not None:
            self._tasks_sent.sent(dict([known]), request.begun_s)
        return taken

    def resume(self, request: InFlightRequest, socket: Path, at: str | None, age_s: float) -> TakenRequest | None:
        """Take a request that an engine has from an earlier agent; ``None`` if there is no such engine.

        Args:
            request: The request.
            socket: Unix socket of the engine.
            at: URL of the engine in place of the socket; ``None`` if it has the socket.
            age_s: Seconds since it was taken.
        """
        engine = self._engines.with_socket(socket, at)
        return None if engine is None else self._begun(engine, request, self._clock.monotonic_s() - age_s)

    def _begun(self, engine: Engine, request: InFlightRequest, begun_s: float) -> TakenRequest:
        def ended(broken: bool) -> None:
            engine.requests.ended(request, self._clock.monotonic_s(), broken=broken)
            if not request.durable:
                self._report_to_work(self._durable.ended)
            if broken:
                self._spawn(self.watch.check_health(engine))

        def pause_s() -> float:
            return min(len(engine.requests) * READS_EVERY_S, READ_MAX_S)

        request.begun_s = begun_s
        engine.requests.begin(request)
        return TakenRequest(engine.client, ended, pause_s)

    async def switch(self, model: str) -> bool:
        if self._may_not_switch() or model not in self._models:
            return False
        if self._phase is Phase.SERVING:
            if self._active == model:
                return True
            if self._engines.expected(self._models[model])[0] is not SwitchMethod.ADAPTER:
                self._phase, self._active = Phase.DRAINING, model  # from this call on everything is refused
        self._is_switching = True
        # The transition has a task of its own: if the caller stops waiting, it still comes to its end.
        return await asyncio.shield(self._spawn(self._switch_or_fail(self._models[model])))

    def _may_not_switch(self) -> bool:
        return self._is_switching or self._is_leaving or self._is_held

    async def keep_warm(self, models: tuple[str, ...]) -> None:
        self._engines.wish = models
        if not self._is_switching and not self._is_held:
            async with self._switching:
                await self._engines.keep(models)

    async def drain(self, limit_s: float) -> None:
        """Take no more requests, for good, and wait at most ``limit_s`` seconds until its engine's requests end."""
        self._is_leaving = True
        engine = self._engines.active
        if engine is not None and not await engine.requests.empty(limit_s):
            await engine.requests.send_back(_LEAVING_S)

    # An agent that takes over from another.

    def adopt(self, found: Iterable[tuple[EngineProcess, EngineNote]]) -> None:
        """Take over the engines of an earlier agent; call this before any switch."""
        for process, note in found:
            engine = self._engines.adopt(process, note)
            if engine is None:
                logger.warning("%s: the engine of model %s is ended, and not taken over", self._name, note.model)
                continue
            logger.info("%s: the engine of model %s is taken over", self._name, note.model)
            self._adopted.append(engine)
        if self._engines.active is not None:
            self._phase, self._active = Phase.SERVING, self._engines.serves
            self._since_s = self._clock.monotonic_s()

    def follow_file(self) -> None:
        """Bring adopted engines to what the fleet's file says, once their requests are known: some are replaced."""
        for engine in self._adopted:
            self._spawn(
                self._end_removed(engine) if self._engines.is_removed(engine) else self._bring_up_to_date(engine)
            )
        self._adopted.clear()

    @property
    def is_switching(self) -> bool:
        """Whether a transition is on its way."""
        return self._is_switching or self._switching.locked()

    async def hold(self) -> None:
        """Begin no further switch, for good, and wait until the one that has begun has ended."""
        self._is_held = True
        while self.is_switching:
            await asyncio.sleep(_HOLD_LOOK_S)

    async def leave(self) -> None:
        """Leave all engines to the next agent."""
        await self._end_tasks()
        await self._engines.leave()

    async def _end_tasks(self) -> None:
        ending = list(self._tasks)
        for task in ending:
            task.cancel()
        self._phase = Phase.EMPTY
        await asyncio.gather(*ending, return_exceptions=True)

    async def _end_removed(self, engine: Engine) -> None:
        """End an engine of a model that the file no longer has; its streams have the time that a switch gives them."""
        logger.warning("%s: model %s is no longer in the fleet's file, and leaves", self._name, engine.model.name)
        if engine is not self._engines.active:
            await self._engines.end(engine)
            return
        self._phase, self._active, self._is_switching = Phase.DRAINING, None, True
        try:
            async with self._switching:
                await engine.requests.empty(self._drain_max_s)
                await self._engines.end(engine)
                self._phase = Phase.EMPTY
        finally:
            self._is_switching = False

    async def _bring_up_to_date(self, engine: Engine) -> None:
        why = "its start in the fleet's file has changed"
        if not self._engines.is_outdated(engine):
            async with self._switching:
                failed = await follow_settings(engine)
                self._engines.note_all()
            if failed is None:
                return
            why, engine.start = failed, ""
        logger.warning("%s: the engine of model %s is replaced: %s", self._name, engine.model.name, why)
        while self._engines.has(engine) and not self._is_held:
            async with self._renewing:  # the other instances of the host serve meanwhile
                if engine is not self._engines.active:
                    await self._engines.discard(engine)
                elif self._phase is Phase.SERVING and self._active is not None and not self._may_not_switch():
                    self._phase, self._is_switching = Phase.DRAINING, True
                    await asyncio.shield(self._spawn(self._switch_or_fail(self._models[self._active], renews=True)))
            await asyncio.sleep(_RENEW_AGAIN_S)

    async def close(self) -> None:
        """End all engines, and the reading of their responses."""
        for task in list(self._tasks):
            task.cancel()
        self._phase = Phase.EMPTY
        await self._engines.close()

    # Transitions.

    async def _switch_or_fail(self, model: EngineModel, *, renews: bool = False) -> bool:
        try:
            async with self._switching:
                return await self._switch_to(model, renews=renews)
        except Exception:  # a fault of the agent in a transition, which must still end
            logger.exception("%s: the transition to %s failed", self._name, model.name)
            await self._engines.close()
            self._fail(model)
            return False
        finally:
            self._is_switching = False

    async def _switch_to(self, model: EngineModel, *, renews: bool = False) -> bool:
        if self._phase is Phase.SERVING and self._active == model.name:
            return True
        method, seconds = self._engines.expected(model)
        if method is not SwitchMethod.ADAPTER or renews:
            await self._drain(model.name, seconds)
        if renews:
            await self._engines.end(self._engines.active)
        if await self._switch_engine(model):
            return True
        if self._phase is Phase.SERVING and self._engines.active is not None:
            return False  # an adapter cannot be loaded: its base continues
        self._fail(model)
        return False

    def _fail(self, model: EngineModel) -> None:
        self._phase, self._active = Phase.FAILED, model.name
        self._spawn(self._recover(model))

    async def _switch_engine(self, model: EngineModel) -> bool:
        """Switch to the model, and return whether it serves now."""
        with self.watch.switching():
            try:
                await self._engines.switch(model)
            except EngineError as error:
                logger.error("%s: %s", self._name, error)
                return False
            except Exception:  # a fault of the agent: the engines' state is not known
                logger.exception("%s: the switch to model %s failed", self._name, model.name)
                await self._engines.close()
                return False
            finally:
                self._prompts.clear()
        self._phase, self._active, self._since_s = Phase.SERVING, model.name, self._clock.monotonic_s()
        self._report_to_work(self._durable.serves)
        return True

    async def _drain(self, coming: str, switch_s: float) -> None:
        """Drain until nothing runs, or what runs has had its time. Requests are refused from the call on."""
        engine, begun_s = self._engines.active, self._clock.monotonic_s()
        if engine is not None:
            self._phase, self._active = Phase.DRAINING, coming
            drain_s = min(engine.requests.drain_s, self._drain_max_s)
            self._ready_s = begun_s + drain_s + switch_s
            leaving = self._spawn(self._durable.leave(self._name, self._drain_max_s))
            await engine.requests.empty(self._drain_max_s)
            left_s = max(begun_s + self._drain_max_s - self._clock.monotonic_s(), 0.0)
            await asyncio.wait({leaving}, timeout=left_s + _LEAVING_S)
            if leaving.done() and not leaving.cancelled() and leaving.exception():
                logger.error("%s: batch lines could not be given back", self._name, exc_info=leaving.exception())
            engine.requests.abort(durable_only=True)
            await engine.requests.send_back(_LEAVING_S)
        self._phase, self._active = Phase.SWITCHING, coming
        self._ready_s = self._clock.monotonic_s() + switch_s

    async def _recover(self, model: EngineModel) -> None:
        """Start an engine for the model again and again, until it serves or another does."""
        for attempt in itertools.count():
            async with self._switching:
                if self._phase is not Phase.FAILED or self._is_held:
                    return
                self._ready_s = self._clock.monotonic_s() + self._engines.expected(model)[1]
                if await self._switch_engine(model):
                    return
            await asyncio.sleep(_RETRY_S[min(attempt, len(_RETRY_S) - 1)])

    # Deaths.

    def _died(self, engine: Engine) -> None:
        logger.warning("%s: the engine of model %s has died", self._name, engine.model.name)
        if engine is not self._engines.active or self._phase is Phase.SWITCHING:
            return  # it slept, or the call that waits for it gets an error
        self._report_to_work(self._durable.died)
        engine.requests.settle()
        if self._phase is Phase.SERVING and self._active is not None:
            self._fail(self._models[self._active])

    def _report_to_work(self, call: Callable[[str], None]) -> None:
        with self._faults:  # faults of the durable work: engines go on
            call(self._name)

    def _engine_for(self, model: str, durable: bool) -> Engine:
        engine = self._engines.active
        if self._is_leaving or self._phase in (Phase.DRAINING, Phase.SWITCHING):
            raise Refused(Refusal.SWITCHING)
        if self._phase is Phase.FAILED:
            raise Refused(Refusal.FAILED)
        if engine is None or model not in engine.serves:
            raise Refused(Refusal.OTHER_MODEL)
        if not engine.places.left(len(engine.requests), durable=durable):
            raise Refused(Refusal.FULL)
        return engine

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
