"""A run of a fleet: engines, arrivals and ticks of the dispatcher on one virtual clock, the earliest first.

The dispatcher is called when a request arrives; when another has ended or a model has come, but then not more often
than an agent looks (``TICK_S``); every ``HEARTBEAT_S`` while requests are held; and at the time that it names.
"""

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from sloserve.core.outcome import Outcome
from sloserve.core.promises import Promised
from sloserve.core.request import WorkloadRequest
from sloserve.core.runlog import RequestLog, RunLog
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.estimator.planning_cost import planning_costs
from sloserve.estimator.step_time.profile import Profile
from sloserve.fleet.fleet import GIB, Fleet
from sloserve.fleet.planning.replayed_model import engine_settings
from sloserve.fleet.simulated.dispatcher import (
    Dispatcher,
    Drop,
    Give,
    Operation,
    Preempt,
    Refuse,
    SetElsewhere,
    Switch,
    WaitingRequest,
    Warm,
    model_shares,
    waiting_request,
)
from sloserve.fleet.simulated.log import FleetLog, joined
from sloserve.fleet.simulated.output_lengths import OutputLengths
from sloserve.fleet.simulated.simulated_instance import FleetClock, History, InstalledModel, SimulatedInstance
from sloserve.fleet.simulated.weight_copies import WeightCopies
from sloserve.scheduler.admission.admission import Admission
from sloserve.scheduler.registry import parse_policy, policy_class
from sloserve.scheduler.settings import KEY
from sloserve.sim.closed_loop import Source
from sloserve.sim.replicas import all_steps

TICK_S = 0.02
HEARTBEAT_S = 0.1
_STUCK_S = 1800.0
"""Seconds without a request given or ended and without a switch, after which held requests are never served."""


class _Open(Source):
    """Requests that all arrive whatever becomes of the others."""

    def __init__(self, workload: Sequence[WorkloadRequest]) -> None:
        self._workload = workload

    def first(self) -> Sequence[WorkloadRequest]:
        return self._workload

    def after(self, request: WorkloadRequest, outcome: Outcome, now_s: float) -> tuple[()]:
        return ()


class FleetRun:
    """One run of a fleet, which is the :class:`~sloserve.fleet.simulated.dispatcher.SimulatedView` of its dispatcher.

    Args:
        engine_class: Class of the engines: the virtual engine or the model of it.
        policy: Policy of the engines; ``None`` for stock's scheduler.
        oracle: Whether the dispatcher knows how long outputs will be.
        prefix_caching: Whether engines have a prefix cache; where no prompts share a prefix it only costs time.
    """

    def __init__(
        self,
        fleet: Fleet,
        dispatcher: Dispatcher,
        engine_class: Callable[..., Any],
        *,
        policy: str | None,
        seed: int = 0,
        oracle: bool = False,
        prefix_caching: bool = False,
    ) -> None:
        self.fleet, self._dispatcher, self._oracle = fleet, dispatcher, oracle
        self._clock = FleetClock()
        self._counters: Counter[str] = Counter()
        self._held: dict[str, tuple[WorkloadRequest, int]] = {}
        self._kept_on: dict[str, str] = {}  # the instance that keeps KV of each held request
        self._history: History = {}
        self._refused: set[str] = set()
        self._promised: dict[str, Promised] = {}
        self._num_ended = 0
        self._source: Source = _Open(())
        self._coming: list[tuple[float, int, WorkloadRequest]] = []
        """Heap of the requests that are known and have not arrived, each with its number."""
        self._requests: dict[str, WorkloadRequest] = {}
        self._lengths = OutputLengths()
        self._changed_s = 0.0
        self._dirty = self._arrived = False
        swaps = fleet.swaps()
        self._orders = policy is not None and bool(policy_class(parse_policy(policy)[0]).needs)
        config = (
            None if policy is None else {KEY: {**fleet.section, "policy": policy, "policy_options": {}, "seed": seed}}
        )
        self.instances: list[SimulatedInstance] = []
        memory = {name: WeightCopies(host.host_memory_bytes) for name, host in fleet.hosts.items()}
        for name, host in fleet.instances:
            served = {}
            models = fleet.models_on(host)
            # Each engine takes its memory when it starts.
            swap_space_gib = host.swap_space_bytes / GIB / (len(host.instances) * len(models))
            if not dispatcher.has_swap_space:
                swap_space_gib = 0.0
            for model in models:
                profile = fleet.models[model].profiles[host.device]
                settings = engine_settings(fleet.models[model], profile, swap_space_gib, prefix_caching=prefix_caching)
                make = partial(_make_engine, engine_class, settings, profile, config, self._admission)
                served[model] = InstalledModel(settings, profile, swaps[model, host.device], make)
            instance = SimulatedInstance(
                name,
                host.device,
                served=served,
                memory=memory[host.name],
                switching=fleet.switching,
                clock=self._clock,
                history=self._history,
                began=self._began,
                ended=self._over,
                evicted=self._evicted,
            )
            self.instances.append(instance)
        self._by_name = {instance.name: instance for instance in self.instances}
        self._begin(memory)

    # These are what the dispatcher reads.

    @property
    def now_s(self) -> float:
        return self._clock.now_s

    @property
    def promises(self) -> bool:
        return self._orders and any(one.promise is not None for one in self.fleet.stated_classes)

    def expected_output(self, request: WaitingRequest, generated: int = 0) -> tuple[float, float]:
        return self._lengths.expected(request, max(generated, request.generated_tokens))

    # These methods run the fleet.

    def learn(self, workload: Sequence[WorkloadRequest]) -> None:
        """Learn the output lengths of requests that ended before the run begins."""
        for request in workload:
            self._lengths.ended(request.model, request.output_tokens)

    def run(self, workload: Sequence[WorkloadRequest], on_progress: Callable[[int], None] | None = None) -> FleetLog:
        """Serve ``workload`` (ascending arrivals) to its end; ``on_progress`` gets the number of ended requests."""
        return self.run_source(_Open(workload), on_progress)

    def run_source(self, source: Source, on_progress: Callable[[int], None] | None = None) -> FleetLog:
        """Serve the requests of ``source``, some of which may follow others, until nothing is left to do.

        Clients do not leave: ``Source.leaves_s`` is not asked.

        Args:
            source: Source of the requests, which the run uses up.
            on_progress: Called with the number of ended requests.
        """
        self._source = source
        if self._oracle:
            self._lengths = OutputLengths(self._requests)
        self._add(source.first())
        tick_at, ticked_s, reported = math.inf, -math.inf, 0
        while True:
            arrival_s = self._coming[0][0] if self._coming else math.inf
            first = min(self.instances, key=lambda instance: instance.at)
            now_s = min(arrival_s, first.at, tick_at)
            if now_s == math.inf or (arrival_s == math.inf and now_s > self._changed_s + _STUCK_S):
                break
            self._clock.now_s = max(now_s, self._clock.now_s)
            if arrival_s <= now_s:
                self._arrive(heapq.heappop(self._coming)[-1], 0)
            elif first.at <= now_s:
                was_serving = first.serving
                first.advance()
                self._dirty = self._dirty or first.serving is not was_serving
            else:
                ticked_s, self._dirty, self._arrived = self._clock.now_s, False, False
                self._carry_out(self._dispatcher.tick(self))
            if self._arrived:
                tick_at = self._clock.now_s
            elif self._dirty:
                tick_at = max(self._clock.now_s, ticked_s + TICK_S)
            else:
                tick_at = ticked_s + HEARTBEAT_S if self._held else math.inf
            tick_at = min(tick_at, max(self._dispatcher.wakes_s, self._clock.now_s))
            if self._num_ended == len(self._requests):  # only the last steps remain
                tick_at = math.inf
            if on_progress is not None and self._num_ended >= reported + 50:
                reported = self._num_ended
                on_progress(reported)
        for instance in self.instances:
            instance.finish()
        return self._log(sorted(self._requests.values(), key=lambda request: request.arrival_s))

    def _add(self, requests: Iterable[WorkloadRequest]) -> None:
        for request in requests:
            heapq.heappush(self._coming, (request.arrival_s, len(self._requests), request))
            self._requests[request.request_id] = request

    def _begin(self, memory: Mapping[str, WeightCopies]) -> None:
        """Choose the models to begin with.

        They are the file's, the dispatcher's, then models that are nowhere yet, then the most requested ones. The
        others are warm as far as host memory goes, in the order of the file.
        """
        chosen = dict(self.fleet.active)
        chosen |= {switch.instance: switch.model for switch in self._dispatcher.begin(self)}
        shares = model_shares(self.fleet)
        for instance in self.instances:
            if instance.name not in chosen:
                active = list(chosen.values())
                chosen[instance.name] = min(instance.models, key=lambda m: (active.count(m) / shares[m], -shares[m]))
            instance.start_with(chosen[instance.name])
        for name, host in self.fleet.instances:
            for model in self.fleet.models_on(host):
                size = self._by_name[name].weights_bytes(model)
                if chosen[name] != model and memory[host.name].fits(size):
                    memory[host.name].keep(name, model, size)

    def _arrive(self, request: WorkloadRequest, generated: int, kept_on: str | None = None, kept: int = 0) -> None:
        self._held[request.request_id] = (request, generated)
        self._arrived = True
        self._dispatcher.arrived(waiting_request(request, generated, kept_on, kept, oracle=self._oracle), self)

    def _evicted(self, request: WorkloadRequest, generated: int, instance: str, kept: int) -> None:
        self._counters["preempted_for_others" if self._by_name[instance].serving else "evicted_on_switch"] += 1
        self._counters["parked"] += kept > 0
        if kept:
            self._kept_on[request.request_id] = instance
        self._arrive(request, generated, instance if kept else None, kept)

    def _admission(self) -> Admission | None:
        """Return the admission of an engine; ``None`` where requests ask for no promises, and it refuses none."""
        return Admission(self.fleet.settings.classes.names, lambda place: True) if self.promises else None

    def _began(self, request: WorkloadRequest) -> None:
        self._dispatcher.began(request.request_id, self)

    def _over(self, request: WorkloadRequest, tokens: int) -> None:
        self._num_ended += 1
        self._dirty = True
        self._changed_s = self._clock.now_s
        self._lengths.ended(request.model, tokens)
        self._dispatcher.ended(request.request_id, tokens, self)
        self._add(self._source.after(request, Outcome.COMPLETED, self._clock.now_s))

    def _carry_out(self, operations: Sequence[Operation]) -> None:
        for operation in operations:
            if isinstance(operation, SetElsewhere):
                self._by_name[operation.instance].set_elsewhere(operation.service_s)
                continue
            self._changed_s = self._clock.now_s
            if isinstance(operation, Give):
                request, generated = self._held.pop(operation.request_id)
                kept_on = self._kept_on.pop(operation.request_id, None)
                if kept_on is not None and kept_on != operation.instance:
                    self._by_name[kept_on].forget(request)
                if operation.promised is not None:
                    self._promised[operation.request_id] = operation.promised
                self._by_name[operation.instance].give(request, generated, promised=operation.promised)
            elif isinstance(operation, Switch):
                self._by_name[operation.instance].switch(operation.model, keep_kv=operation.keep_kv)
            elif isinstance(operation, Preempt):
                self._by_name[operation.instance].preempt(operation.request_id, keep_kv=operation.keep_kv)
            elif isinstance(operation, Warm):
                self._by_name[operation.instance].warm(operation.model)
            elif isinstance(operation, Drop):
                self._by_name[operation.instance].drop(operation.model)
            elif isinstance(operation, Refuse):
                request, _ = self._held.pop(operation.request_id)
                self._refused.add(operation.request_id)
                self._num_ended += 1
                self._add(self._source.after(request, Outcome.REJECTED, self._clock.now_s))

    def _log(self, workload: Sequence[WorkloadRequest]) -> FleetLog:
        engines: dict[int, tuple[Any, list[WorkloadRequest]]] = {
            id(engine): (engine, []) for instance in self.instances for engine in instance.engines
        }
        for parts in self._history.values():
            for engine, part, _ in parts:
                engines[id(engine)][1].append(part)
        logs = [engine.log(parts) for engine, parts in engines.values()]
        of_part = {part.request.request_id: part for log in logs for part in log.requests}
        requests = []
        for request in workload:
            if request.request_id in self._refused:
                requests.append(RequestLog(request, Outcome.REJECTED, np.empty(0)))
            else:
                given = self._history.get(request.request_id, ())
                logs_of = [of_part[part.request_id] for _, part, _ in given]
                promised = self._promised.get(request.request_id)
                requests.append(joined(request, logs_of, [kept for _, _, kept in given], promised))
        counters: Counter[str] = Counter(self._counters)
        for log in logs:
            counters.update(log.counters)
        service_s: Counter[str] = Counter()
        for log in logs:
            service_s.update(log.tenant_service_s or {})
        steps = all_steps([log.steps for log in logs])
        run = RunLog(requests, steps, {}, dict(counters), tenant_service_s=dict(service_s) or None)
        return FleetLog(run, tuple(span for instance in self.instances for span in instance.spans))


def _make_engine(
    engine_class: Callable[..., Any],
    settings: EngineSettings,
    profile: Profile,
    config: dict[str, Any] | None,
    admission: Callable[[], Admission | None],
) -> Any:
    return engine_class(settings, profile, config, admission(), planning_costs=planning_costs())
