"""The engines of one instance: one is active, others sleep. It switches models by the cheapest valid method."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from sloserve.core.errors import EngineError
from sloserve.fleet.agent.alike import are_alike
from sloserve.fleet.agent.engine import Engine
from sloserve.fleet.agent.engine_client import EngineClient
from sloserve.fleet.agent.engine_note import EngineNote
from sloserve.fleet.agent.engine_spec import EngineModel, EngineProcess
from sloserve.fleet.agent.engine_starter import EngineStarter
from sloserve.fleet.agent.host_parts import HostParts
from sloserve.fleet.agent.switch_methods import Situation, SwitchMethod, choose
from sloserve.scheduler.virtual_queues.contract import ModelState

logger = logging.getLogger(__name__)

_ABORT_S: Final = 5.0
_MOST_EMPTY: Final = 2
"""Most engines of an instance that sleep without weights: each still holds a process and a context on the device."""


class EngineSet:
    """The engines of one instance.

    Args:
        instance: Name of the instance.
        models: Models that it can serve, by name.
        host: State that the instances of the host share.
        died: Called with each engine that ends by itself, before it is forgotten.
        environment: Environment variables of all its engines.
    """

    def __init__(
        self,
        instance: str,
        models: Mapping[str, EngineModel],
        host: HostParts,
        died: Callable[[Engine], None],
        environment: Mapping[str, str],
    ) -> None:
        self._instance, self._models, self._host, self._died = instance, models, host, died
        self._starter = EngineStarter(instance, models, host, environment)
        self.active: Engine | None = None
        self.wish: tuple[str, ...] | None = None
        """Models to keep in host memory, the most needed first; ``None`` before any were named."""
        self._engines: list[Engine] = []
        self.serves: str | None = None
        """Name of the model that the active engine serves, which may be an adapter."""
        self._watching: set[asyncio.Task[None]] = set()

    def state(self, name: str) -> ModelState:
        """Return where the model's weights are, also for an active model."""
        model = self._models[name]
        engine = self._holder(model)
        if engine is None or engine.level == 2 or (model.adapter_of and name not in engine.adapters):
            return ModelState.COLD
        return ModelState.ACTIVE if engine is self.active and model.adapter_of is None else ModelState.WARM

    @property
    def parked(self) -> dict[str, int]:
        """Number of streams that wait in sleeping engines, by model."""
        return {e.model.name: len(e.requests) for e in self._engines if e is not self.active and len(e.requests)}

    def expected(self, model: EngineModel) -> tuple[SwitchMethod, float]:
        """Return the method by which the model would come now, and the seconds that it would take."""
        at, costs = self._situation(model), self._host.costs
        leaves_s = 0.0 if self.active is None else costs.sleep_s(self.active.model.name) or 1.0
        return choose(at, lambda method: costs.switch_s(model.name, method), leaves_s)

    async def switch(self, model: EngineModel) -> None:
        """Switch to the model; the requests of the active model have ended or are parked.

        A method that fails is followed by the start of a new engine. Raises: EngineError if that fails too; then no
        model is active, unless an adapter was to be loaded.
        """
        holder = self._holder(model)
        if holder is not None and holder is not self.active and self.is_outdated(holder):
            await self.discard(holder)
        method, _ = self.expected(model)
        for engine in (self.active, self._holder(model)):
            if engine is not None and method is not SwitchMethod.ADAPTER:
                self._note(engine, is_steady=False)
        try:
            await self._switch_or_start(model, method)
            self.serves = model.name
        except EngineError:
            self.note_all()
            raise
        # After a fault or a cancellation the states of engines are not known, and their notes say so.
        self.note_all()

    async def _switch_or_start(self, model: EngineModel, method: SwitchMethod) -> None:
        try:
            await self._switch_by(model, method)
        except EngineError as error:
            if method is SwitchMethod.ADAPTER or method.starts:
                raise
            logger.warning(
                "%s: the switch to model %s by method %s failed: %s", self._instance, model.name, method, error
            )
            await self._remove(self.active if method is SwitchMethod.IN_PLACE else self._holder(model))
            await self._switch_by(model, SwitchMethod.FORKED)

    async def keep(self, names: tuple[str, ...]) -> None:
        """End engines that sleep with weights of other models. Engines that keep requests stay."""
        self.wish = names
        wanted = self._wanted()
        for engine in [e for e in self._engines if e is not self.active and e.level == 1]:
            if engine.model.name not in wanted and not len(engine.requests):
                await self._remove(engine)

    def adopt(self, process: EngineProcess, note: EngineNote) -> Engine | None:
        """Take over an engine of an earlier agent; return ``None``, and kill it, if its state is unknown.

        Call this before any switch. The model may be one that the instance no longer has.
        """
        model, client = self._models.get(note.model), EngineClient(Path(note.socket), note.key)
        model = model or EngineModel(note.model, note.model)
        is_active = note.level == 0 and note.serves is not None
        is_known = note.is_steady and (note.level > 0 or (is_active and self.active is None))
        if not is_known or self._holder_of(model.name) is not None:
            process.kill()
            return None
        engine = Engine(model, process, client, self._host.limits)
        engine.level, engine.parked, engine.adapters = note.level, note.parked, set(note.adapters)
        engine.start, engine.settings = note.start, note.settings
        self._add(engine)
        self._host.canaries.restore(note.canaries)
        if is_active:
            self.active, self.serves = engine, note.serves if note.serves in self._models else model.name
        elif note.level == 1:
            self._host.memory.hold(self._instance, model.name, model.weights_bytes)
        return engine

    def with_socket(self, socket: Path, at: str | None) -> Engine | None:
        """Return the engine that listens on this socket, or at this URL if there is one."""
        return next(
            (e for e in self._engines if (e.client.at == at if at is not None else e.client.socket == socket)), None
        )

    def is_outdated(self, engine: Engine) -> bool:
        """Return whether an engine would be started with something else today."""
        return engine.start != self._starter.digest(engine.model)

    def has(self, engine: Engine) -> bool:
        """Return whether the engine runs, and is one of these."""
        return engine in self._engines

    def is_removed(self, engine: Engine) -> bool:
        """Return whether the instance no longer has the engine's model."""
        return engine.model.name not in self._models

    async def end(self, engine: Engine | None) -> None:
        """End an engine with its requests."""
        if engine is not None:
            engine.requests.abort()
        await self._remove(engine)

    async def discard(self, engine: Engine) -> None:
        """End an engine that sleeps, unless it keeps requests."""
        if engine is not self.active and not len(engine.requests):
            await self._remove(engine)

    async def leave(self) -> None:
        """Leave all engines to the next agent."""
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*(engine.leave() for engine in self._engines))

    async def close(self) -> None:
        """End all engines."""
        for task in self._watching:
            task.cancel()
        for engine in self._engines:
            engine.requests.abort()  # a response that is held and not read would keep its connection
        await asyncio.gather(*(self._remove(engine) for engine in list(self._engines)))

    # Switching.

    async def _switch_by(self, model: EngineModel, method: SwitchMethod) -> None:
        host, base = self._host, self._base(model)
        if not method.stays and self.active is not None:
            await self._leave(self.active, base)
        begun_s = host.clock.monotonic_s()
        engine = self.active if method.stays else self._holder(base)
        if method.starts:
            engine = await self._start(base)
            method = SwitchMethod.FORKED if engine.process.is_forked else SwitchMethod.COLD
        elif engine is None:
            raise EngineError("its engine has died meanwhile")
        elif method is SwitchMethod.IN_PLACE:
            was_outdated = self.is_outdated(engine)
            await engine.read_weights(base)
            engine.start = engine.start if was_outdated else self._starter.digest(base)
        elif not method.stays:
            await engine.wake()
            host.memory.free(self._instance, base.name)
        self.active = engine
        try:
            if method is not SwitchMethod.ADAPTER:
                check = host.canaries.record if method.starts else host.canaries.check
                await check(engine, base.name)
            if model is not base:
                if model.name not in engine.adapters:
                    await engine.load_adapter(model)
                await host.canaries.check(engine, model.name)
        except EngineError:
            if method.starts:
                await self._remove(engine)
            raise
        seconds = host.clock.monotonic_s() - begun_s
        if base.attached is None:  # to find a running server says nothing of the cost of a start
            host.costs.note_switch(model.name, method, seconds)
        logger.info("%s: model %s serves, by method %s in %.2f s", self._instance, model.name, method, seconds)

    async def _start(self, model: EngineModel) -> Engine:
        engine, log = await self._starter.launch(model)
        self._add(engine)
        try:
            await engine.ready()
            await engine.check_attached()
        except EngineError as error:
            await self._remove(engine)
            raise EngineError(f"model {model.name} does not start: {error}; its log is {log}") from error
        return engine

    def _add(self, engine: Engine) -> None:
        self._engines.append(engine)
        watching = asyncio.create_task(self._watch(engine))
        self._watching.add(watching)
        watching.add_done_callback(self._watching.discard)

    # Notes for the next agent.

    def note_all(self) -> None:
        """Note the states of all engines; no control call is on its way."""
        for engine in self._engines:
            self._note(engine)

    def _note(self, engine: Engine, *, is_steady: bool = True) -> None:
        """Note the state of an engine; ``is_steady`` says whether no control call is on its way."""
        model, names = engine.model, [engine.model.name, *engine.adapters]
        note = EngineNote(
            self._instance,
            model.name,
            engine.start,
            str(engine.client.socket),
            engine.client.admin_key,
            engine.settings,
            is_steady,
            self.serves if engine is self.active else None,
            engine.level,
            engine.parked,
            sorted(engine.adapters),
            self._host.canaries.of(names),
        )
        self._host.note(engine.process, msgspec.json.encode(note))

    # Leaving.

    async def _leave(self, engine: Engine, coming: EngineModel) -> None:
        """Put an engine to sleep; what still runs is parked if there is room for the weights, and aborted otherwise.

        The method never raises.

        Args:
            engine: Engine that leaves.
            coming: Model for which it leaves.
        """
        begun_s, name = self._host.clock.monotonic_s(), engine.model.name
        self.active = None
        try:
            keeps = await self._make_room(engine, coming)
            if keeps:  # before it sleeps: other instances of the host look for the same room
                self._host.memory.hold(self._instance, name, engine.model.weights_bytes)
            if len(engine.requests) and keeps:
                parked = await engine.park()
                logger.info("%s: %d requests of model %s are parked", self._instance, parked, name)
            else:
                engine.requests.abort()
                await engine.requests.empty(_ABORT_S)
                await engine.sleep(1 if keeps else 2)
            self._note(engine)
            await self._limit_empty(coming)
        except EngineError as error:
            logger.warning("%s: model %s does not sleep, and its engine is killed: %s", self._instance, name, error)
            await self._remove(engine)
        self._host.costs.note_sleep(name, self._host.clock.monotonic_s() - begun_s)

    async def _make_room(self, engine: Engine, coming: EngineModel) -> bool:
        """Return whether the weights stay in host memory; sleeping models that are wanted less give way.

        Args:
            engine: Engine that leaves.
            coming: Model that leaves host memory as it wakes, so that its room is free.
        """
        memory, weights_bytes, names = self._host.memory, engine.model.weights_bytes, self._wanted()
        order = {name: place for place, name in enumerate(names)}
        own = order.get(engine.model.name, len(names))
        if own == len(names) and not len(engine.requests):
            return False
        memory.free(self._instance, coming.name)
        asleep = [(order.get(e.model.name, len(names) + 1), e) for e in self._engines if e.level == 1]
        for place, other in sorted(asleep, key=lambda found: found[0], reverse=True):
            if memory.has_room(weights_bytes) or place <= own:
                break
            if other.model is not coming and not len(other.requests):
                await self._remove(other)
        return memory.has_room(weights_bytes)

    def _wanted(self) -> tuple[str, ...]:
        """Return the models with weights to keep, the most needed first; an adapter needs the weights of its base."""
        names = tuple(self._models) if self.wish is None else self.wish
        return tuple(dict.fromkeys(self._base(self._models[name]).name for name in names if name in self._models))

    async def _limit_empty(self, coming: EngineModel) -> None:
        others = [engine for engine in self._engines if engine.level == 2 and engine.model.name != coming.name]
        for engine in others[:-_MOST_EMPTY]:
            await self._remove(engine)

    async def _remove(self, engine: Engine | None) -> None:
        if engine is not None and engine in self._engines:
            self._forget(engine)
            await engine.kill_and_wait()

    def _forget(self, engine: Engine) -> None:
        self._engines.remove(engine)
        self._host.memory.free(self._instance, engine.model.name)
        engine.client.socket.unlink(missing_ok=True)
        if self.active is engine:
            self.active = None

    async def _watch(self, engine: Engine) -> None:
        await asyncio.wait({engine.ended})
        if engine in self._engines:
            engine.kill()  # ends the processes that it has left behind
            self._died(engine)
            self._forget(engine)
            await engine.client.close()

    # Present engines.

    def _base(self, model: EngineModel) -> EngineModel:
        return model if model.adapter_of is None else self._models[model.adapter_of]

    def _holder(self, model: EngineModel) -> Engine | None:
        return self._holder_of(self._base(model).name)

    def _holder_of(self, name: str) -> Engine | None:
        return next((engine for engine in self._engines if engine.model.name == name), None)

    def _situation(self, model: EngineModel) -> Situation:
        base, active = self._base(model), self.active
        holder = self._holder(base)
        return Situation(
            base_is_active=active is not None and holder is active,
            is_alike=active is not None
            and not len(active.requests)
            and base is model
            and holder is None
            and not active.adapters
            and are_alike(active.model, model),
            sleeps_at=None if holder is None or holder is active else holder.level,
            can_fork=True,
            weights_bytes=model.weights_bytes,
        )
