"""One instance in virtual time: an engine for each model, of which one is active, and the switch from one to another.

A switch has three parts: the instance takes no more requests, its streams end (what has not ended at the limit goes
back to the queue with its tokens, for this or another engine to continue), and the weights are exchanged. A switch
never ends a stream that a client reads. KV of what goes back is kept in host memory if its engine has swap space and
finds it worth it, and serves only this instance.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sloserve.core.outcome import Outcome
from sloserve.core.promises import Promised
from sloserve.core.request import WorkloadRequest
from sloserve.core.spans import Phase, PhaseSpan
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.estimator.step_time.profile import Profile
from sloserve.fleet.file_sections import Switching
from sloserve.fleet.simulated.dispatcher import WaitingRequest, waiting_request
from sloserve.fleet.simulated.weight_copies import WeightCopies
from sloserve.scheduler.virtual_queues.contract import ModelState
from sloserve.scheduler.virtual_queues.model_swap import ModelSwap


@dataclass(slots=True)
class FleetClock:
    """The time of the whole fleet, in seconds from the start of the run."""

    now_s: float = 0.0


@dataclass(frozen=True, slots=True)
class InstalledModel:
    """A model on this kind of instance: the way to make its engine, and the cost to swap it."""

    settings: EngineSettings
    profile: Profile
    swap: ModelSwap
    make_engine: Callable[[], Any]


History = dict[str, list[tuple[Any, WorkloadRequest, int]]]
"""The engines that had each request, in order, with the request that each got and the number of tokens with kept KV."""


@dataclass(slots=True)
class _Part:
    """A request in an engine.

    Args:
        before: Output tokens that other engines generated.
    """

    request: WorkloadRequest
    given: WorkloadRequest
    before: int


class SimulatedInstance:
    """One instance in virtual time; a dispatcher reads its :class:`~sloserve.fleet.simulated.dispatcher.InstanceView`.

    Args:
        began: Called with each request of which the first token has come.
        ended: Called with each request that is over, and its tokens.
        evicted: Called with each request that goes back to the queue, the tokens that it has, this instance's name, and
            the number of tokens with KV that the instance keeps.
    """

    def __init__(
        self,
        name: str,
        device: str,
        *,
        served: Mapping[str, InstalledModel],
        memory: WeightCopies,
        switching: Switching,
        clock: FleetClock,
        history: History,
        began: Callable[[WorkloadRequest], None],
        ended: Callable[[WorkloadRequest, int], None],
        evicted: Callable[[WorkloadRequest, int, str, int], None],
    ) -> None:
        self.name, self.device = name, device
        self._served, self._memory, self._switching = served, memory, switching
        self._clock, self._began, self._ended, self._evicted = clock, began, ended, evicted
        self.active: str | None = None
        self.phase = Phase.SERVING
        self.activated_s = 0.0
        self._until_s = math.inf
        self._leaving: str | None = None
        self._warm = self._keep_kv = False
        self._copied_s = 0.0  # time when the kept KV has left the device
        self._reading: tuple[float, str] | None = None  # time when weights arrive in host memory, and their model
        self._engines: dict[str, Any] = {}
        self._parts: dict[str, _Part] = {}
        self._num_given = 0
        self._history = history
        self._span_since_s = 0.0
        self.spans: list[PhaseSpan] = []

    # These are what a dispatcher reads.

    @property
    def models(self) -> Mapping[str, ModelState]:
        return {
            model: ModelState.ACTIVE
            if model == self.active
            else ModelState.WARM
            if self._memory.holds(self.name, model)
            else ModelState.COLD
            for model in self._served
        }

    @property
    def now_s(self) -> float:
        return self._clock.now_s

    @property
    def serving(self) -> bool:
        return self.phase is Phase.SERVING and self.active is not None

    @property
    def ready_s(self) -> float:
        if self.phase is Phase.SWITCHING:
            return self._until_s
        if self.phase is Phase.DRAINING and self.active is not None:
            return self.now_s + self._exchange_s(self.active)
        return self.now_s

    @property
    def in_flight(self) -> Sequence[WaitingRequest]:
        return [waiting_request(part.request, part.before) for part in self._parts.values()]

    @property
    def num_in_flight(self) -> int:
        return len(self._parts)

    def generated(self, request_id: str) -> int:
        part = self._parts[request_id]
        return part.before + int(self._engine.output_tokens(part.given.request_id))

    def service_s(self) -> Mapping[str, float] | None:
        return dict(self._engine.service_s(self.now_s)) if self.serving else None

    def can_switch(self) -> bool:
        if self.active is None:
            return True
        return self.serving and self.now_s >= self.activated_s + self._switching.min_active_s

    def profile(self, model: str) -> Profile:
        return self._served[model].profile

    def limits(self, model: str) -> EngineSettings:
        return self._served[model].settings

    def swap_s(self, model: str) -> float:
        leaving = self._served[self.active].swap if self.active is not None else None
        return self._served[model].swap.seconds(leaving, warm=self._memory.holds(self.name, model))

    def weights_bytes(self, model: str) -> int:
        """Return the size of a copy of the weights in host memory, in bytes."""
        return self._served[model].swap.weights_bytes

    # The fleet calls these methods.

    @property
    def at(self) -> float:
        """The time of the next event, in seconds."""
        read_at = self._reading[0] if self._reading is not None else math.inf
        if self.phase is Phase.SWITCHING:
            return min(self._until_s, read_at)
        engine_at = self._engine.at if self._engines else math.inf
        return float(min(engine_at, read_at, self._until_s if self.phase is Phase.DRAINING else math.inf))

    def start_with(self, model: str) -> None:
        """Make ``model`` active from the beginning."""
        self._memory.release(self.name, model)
        self._switched(model)
        self.activated_s = -math.inf

    def give(self, request: WorkloadRequest, generated: int, *, promised: Promised | None = None) -> None:
        """Serve the request on the active engine.

        Args:
            request: The request.
            generated: Number of its output tokens that exist already.
            promised: The promise that the fleet gave, which its engine takes over; ``None`` for none.

        Raises: ValueError where another model is active, or none takes requests.
        """
        if not self.serving or request.model != self.active:
            raise ValueError(f"{self.name} is {self.phase} with {self.active}, and got a request for {request.model}")
        request_id, engine = request.request_id, self._engine
        part = _Part(request, self._given(request, generated, promised=promised), generated)
        self._num_given += 1
        self._parts[request_id] = part
        self._history.setdefault(request_id, []).append((engine, part.given, engine.kept_tokens(request_id)))
        engine.unpark(request_id, part.given.request_id)
        engine.give(part.given, now_s=self.now_s)

    def preempt(self, request_id: str, *, keep_kv: bool) -> None:
        """Put the request back into the queue, if it is in flight."""
        part = self._parts.pop(request_id, None)
        if part is not None:
            self._give_back(part, keep_kv)

    def forget(self, request: WorkloadRequest) -> None:
        """Drop the kept KV of the request: another instance serves it."""
        self._engines[request.model].forget(request.request_id)

    def warm(self, model: str) -> None:
        """Begin to read weights into host memory, if they are on disk and no others are being read."""
        if self._reading is None and model != self.active and not self._memory.holds(self.name, model):
            swap = self._served[model].swap
            self._reading = self.now_s + max(swap.reload_s - swap.wake_s, 0.0), model

    def drop(self, model: str) -> None:
        """Remove the weights from host memory, unless they are on their way to the device."""
        if model != self.active:
            self._memory.release(self.name, model)

    def set_elsewhere(self, service_s: Mapping[str, float]) -> None:
        """Set what tenants have had in the other engines of the fleet, if an engine serves."""
        if self.serving:
            self._engine.set_elsewhere(service_s, self.now_s)

    def switch(self, model: str, *, keep_kv: bool = True) -> None:
        """Begin the switch to ``model``; do nothing if it is active, or the instance may not switch now."""
        if model == self.active or not self.can_switch():
            return
        self._keep_kv = keep_kv
        self._enter(Phase.DRAINING)
        self._leaving, self.active = self.active, model
        self._until_s = self.now_s + self._switching.drain_max_s
        self._exchange_if_drained()

    def advance(self) -> None:
        """Handle the next event; the clock shows its time."""
        if self._reading is not None and self._reading[0] <= self.now_s:
            self._read(self._reading[1])
            return
        if self.phase is Phase.SWITCHING:
            assert self.active is not None
            self._memory.release(self.name, self.active)
            self._enter(Phase.SERVING)
            self._switched(self.active)
            return
        engine = self._engine
        if engine.at <= self.now_s:
            engine.advance()
        if self.phase is Phase.DRAINING:
            if self.now_s >= self._until_s:
                self._give_back_all()
            self._exchange_if_drained()

    def finish(self) -> None:
        """Close the last span at the end of the run."""
        self._enter(self.phase)

    @property
    def engines(self) -> Sequence[Any]:
        """The engines that were ever active."""
        return list(self._engines.values())

    # These methods are internal.

    @property
    def _serving_model(self) -> str:
        """The model that serves the requests in flight."""
        model = self._leaving if self.phase is Phase.DRAINING else self.active
        assert model is not None
        return model

    @property
    def _engine(self) -> Any:
        return self._engines[self._serving_model]

    def _switched(self, model: str) -> None:
        if model not in self._engines:
            engine = self._served[model].make_engine()
            engine.notify_started(self._first_token)
            engine.notify_ended(self._over)
            self._engines[model] = engine
        self.active, self.activated_s = model, self.now_s
        self._until_s, self._leaving = math.inf, None

    def _given(self, request: WorkloadRequest, generated: int, *, promised: Promised | None) -> WorkloadRequest:
        """Return the request as the engine sees it: under its own id, and without the output that exists already.

        If output exists, the rest has no target for a first token. Without a promise of the fleet it asks for none.
        """
        wish = request.slo.promise
        if wish is not None:
            wish = None if promised is None else replace(wish, given_after_s=promised.first_after_s)
        slo = replace(request.slo, promise=wish)
        number = f"{request.request_id}~{self.name}~{self._num_given}"
        if not generated:
            return replace(request, request_id=number, slo=slo)
        targets = replace(request.slo.targets, ttft_s=None)
        return replace(
            request,
            request_id=number,
            prompt_tokens=request.prompt_tokens + generated,
            output_tokens=request.output_tokens - generated,
            max_tokens=None if request.max_tokens is None else request.max_tokens - generated,
            slo=replace(slo, targets=targets),
        )

    def _part_of(self, given_id: str) -> _Part | None:
        return self._parts.get(given_id.partition("~")[0])

    def _first_token(self, given_id: str) -> None:
        part = self._part_of(given_id)
        if part is not None and not part.before:
            self._began(part.request)

    def _over(self, given_id: str, _outcome: Outcome) -> None:
        part = self._part_of(given_id)
        if part is None:
            return
        tokens = part.before + int(self._engine.output_tokens(given_id))
        del self._parts[part.request.request_id]
        self._ended(part.request, tokens)

    def _give_back_all(self) -> None:
        parts = list(self._parts.values())
        self._parts.clear()
        self._until_s = math.inf
        for part in parts:
            self._give_back(part, self._keep_kv)

    def _give_back(self, part: _Part, keep_kv: bool) -> None:
        """Remove from the engine a request that is no longer in flight."""
        engine, request_id, given_id = self._engine, part.request.request_id, part.given.request_id
        tokens = part.before + int(engine.output_tokens(given_id))
        if keep_kv:
            self._copied_s = engine.park(given_id, request_id, self.now_s)
        else:
            engine.abort(given_id, self.now_s)
        self._evicted(part.request, tokens, self.name, engine.kept_tokens(request_id))

    def _read(self, model: str) -> None:
        """Take in weights that have come from disk."""
        self._reading = None
        size = self.weights_bytes(model)
        if model != self.active and self._memory.fits(size):
            self._memory.keep(self.name, model, size)

    def _exchange_if_drained(self) -> None:
        if self._parts or (self._leaving is not None and self._engine.at != math.inf):
            return
        assert self.active is not None
        seconds = self._exchange_s(self.active)
        self._warm = self._memory.holds(self.name, self.active)
        leaving = self._leaving
        if leaving is not None:
            self._engines[leaving].empty_prefix_cache()
            self._memory.keep(self.name, leaving, self._served[leaving].swap.weights_bytes, spare=self.active)
        self._enter(Phase.SWITCHING)
        # Weights leave after the KV: both use one link.
        self._until_s = max(self.now_s, self._copied_s) + seconds

    def _exchange_s(self, coming: str) -> float:
        leaving = None if self._leaving is None else self._served[self._leaving].swap
        return self._served[coming].swap.seconds(leaving, warm=self._memory.holds(self.name, coming))

    def _enter(self, phase: Phase) -> None:
        """Record the phase that ends now."""
        if self.now_s > self._span_since_s:
            model = self._leaving if self.phase is Phase.DRAINING else self.active
            warm = self._warm and self.phase is Phase.SWITCHING
            self.spans.append(PhaseSpan(self.name, self.phase, model, self._span_since_s, self.now_s, warm))
        self.phase, self._span_since_s = phase, self.now_s
