"""``qlm`` as a live fleet runs it, in virtual time: for the predictions of ``fleet_paced.py``.

The simulator's own ``qlm`` has one queue for streams and lines, plans at each event, and expects nothing. In a live
fleet the gateway tells of its demand once a second, the planner plans once a second, and the agent looks twice a
second; streams go past the queue of lines, and some are planned for before they come. This is made of the fleet's own
parts: the meter of demand, what an agent knows of its requests, groups, planner, operations. HTTP, store and canary
prompts take no time.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from sloserve.core.request import WorkloadRequest
from sloserve.fleet.agent.flights import Flight, Flights
from sloserve.fleet.agent.following import LOOK_S
from sloserve.fleet.contract.reports import AgentReport, Demand, InstanceReport, Phase
from sloserve.fleet.file import Fleet
from sloserve.fleet.gateway.demand import DemandMeter
from sloserve.fleet.gateway.held import HeldRequest
from sloserve.fleet.gateway.prediction import Work
from sloserve.fleet.gateway.watch import STORE_S
from sloserve.fleet.planning.groups import HORIZON_S, Group
from sloserve.fleet.planning.planner import REPLAN_S
from sloserve.fleet.planning.rules import planner_of
from sloserve.fleet.planning.snapshot import Members, fleet_state, plan_settings, serving_of
from sloserve.fleet.store.records import QueuedSums
from sloserve.fleet.streamed import Streamed
from sloserve.lso.fleet_operations import FleetOperations, Queued, fleet_operations
from sloserve.scheduler.qlm.contract import FleetPlan, ModelState
from sloserve.scheduler.qlm.swaps import swap_table
from sloserve.sim.fleet.contract import Dispatcher, FleetView, Give, Held, InstanceView, Operation, Preempt, Switch

SEATS, FOR_STREAMS = 1.25, 0.25
"""Places that an agent gives, in parts of ``max_num_seqs``: to all, and besides these to streams alone."""
_BEGIN_S = {"told": 0.1, "looked": 0.2, "planned": 0.4}


class _Answer:
    """Of an engine, a token an event."""

    def __init__(self, tokens: int) -> None:
        self.parts, self.streamed = tokens, Streamed(tokens)


class LivePlanner(Dispatcher):
    """workload: for the limits that requests state, which a gateway knows. urgent: the class that is streamed."""

    def __init__(self, fleet: Fleet, workload: Sequence[WorkloadRequest], urgent: str) -> None:
        self._fleet, self._urgent = fleet, urgent
        self._of = {request.request_id: request for request in workload}
        self._meter = DemandMeter(fleet.settings.classes)
        self._streams: dict[str, HeldRequest] = {}
        self._lines: dict[int, list[Held]] = {}
        self._groups: dict[tuple[float, str], int] = {}
        """Of lines, by the file that they came in and their model."""
        self._flights: dict[tuple[str, str], Flights] = {}
        self._flying: dict[str, tuple[Flights, Flight]] = {}
        self._serves: dict[str, str] = {}
        self._due_s = dict(_BEGIN_S)
        self._demand: tuple[tuple[Demand, ...], float] = ((), 0.0)
        self._plan, self._followed = FleetPlan({}), FleetPlan({})
        self._planned: Mapping[int, Group] = {}

    def begin(self, view: FleetView) -> Sequence[Switch]:
        self._planner = planner_of(self._fleet.planner, serving_of(self._fleet), plan_settings(self._fleet))
        self._swap_s = swap_table(view.swaps)
        return ()

    @property
    def wakes_s(self) -> float:
        return min(self._due_s.values())

    def arrived(self, request: Held, view: FleetView) -> None:
        asked = self._of[request.request_id]
        self._end(request.request_id, view.now_s)
        if not self._is_stream(request.request_id):
            group = self._groups.setdefault((asked.arrival_s, asked.model), len(self._groups))
            lines = self._lines.setdefault(group, [])
            lines.insert(0 if request.generated_tokens else len(lines), request)
            return
        slo_class = asked.slo.slo_class
        if not request.generated_tokens:
            self._meter.arrived(asked.model, slo_class.name, asked.prompt_tokens, view.now_s)
        output = self._meter.output_tokens(asked.model, slo_class.name, asked.output_tokens)
        due_s = asked.arrival_s + (slo_class.targets.next_s() or math.inf)
        work = Work(1, request.prompt_tokens, output)
        self._streams[request.request_id] = HeldRequest(
            asked.model, slo_class.name, asked.arrival_s, due_s, slo_class.rank, work=work
        )

    def tick(self, view: FleetView) -> Sequence[Operation]:
        self._note(view)
        if self._is_due("told", STORE_S, view.now_s):
            self._demand = self._meter.report(self._streams.values(), view.now_s).demand, view.now_s
        if self._is_due("planned", REPLAN_S, view.now_s):
            self._make_plan(view)
        looks = self._is_due("looked", LOOK_S, view.now_s)
        if looks:
            self._followed = self._plan
        room = _Room(view, self._serves)
        return [*self._give_streams(view, room), *self._instances_do(view, room, looks)]

    # Gateway.

    def _give_streams(self, view: FleetView, room: "_Room") -> list[Operation]:
        named = {
            (name, self._planned[ref].sums.model)
            for name, queue in self._plan.queues.items()
            for ref in queue
            if ref < 0
        }
        given: list[Operation] = []
        for request_id, wanted in sorted(self._streams.items(), key=lambda item: item[1].due_s):
            able = [i for i in view.instances if i.serving and i.active == wanted.model and room.left(i.name) > 0]
            able = [i for i in able if (i.name, wanted.model) in named] or able
            if able:
                best = max(able, key=lambda i: room.left(i.name))
                given.append(self._give(request_id, best, room, view.now_s))
                del self._streams[request_id]
        return given

    # Agent.

    def _instances_do(self, view: FleetView, room: "_Room", looks: bool) -> list[Operation]:
        queues = {
            name: [Queued(ref, g.model, g.first_due_s) for ref in queue if (g := self._planned[ref].sums)]
            for name, queue in self._followed.queues.items()
            if all(ref in self._planned for ref in queue)
        }
        lines = [one for queue in queues.values() for one in queue if one.ref >= 0]
        done: list[Operation] = []
        for instance in view.instances:
            queue = queues.get(instance.name, [])
            if not instance.serving:
                done += self._leave(instance)
                continue
            asked = _operations(instance, view, queue)
            if asked.activate is not None and instance.can_switch():
                if looks:
                    done.append(Switch(instance.name, asked.activate, keep_kv=False))
                continue
            own = [one for one in queue if one.model == instance.active and one.ref >= 0]
            others = sorted(
                (one for one in lines if one.model == instance.active), key=lambda one: (one.due_s, one.ref)
            )
            for one in dict.fromkeys((*own, *others)):
                waiting = self._lines.get(one.ref, [])
                while waiting and room.left(instance.name) > room.for_streams(instance.name):
                    done.append(self._give(waiting.pop(0).request_id, instance, room, view.now_s))
        return done

    def _leave(self, instance: InstanceView) -> list[Operation]:
        """Lines go on while streams end, and leave with the last of them."""
        ids = [request.request_id for request in instance.in_flight]
        return [] if any(map(self._is_stream, ids)) else [Preempt(id, instance.name, keep_kv=False) for id in ids]

    def _give(self, request_id: str, instance: InstanceView, room: "_Room", now_s: float) -> Give:
        asked = self._of[request_id]
        flights = self._flights.setdefault((instance.name, asked.model), Flights())
        flight = Flight(
            asked.model, not self._is_stream(request_id), asked.prompt_tokens, asked.output_tokens, True, now_s
        )
        flights.begin(flight)
        self._flying[request_id] = flights, flight
        room.given[instance.name] += 1
        return Give(request_id, instance.name)

    def _report(self, instance: InstanceView, view: FleetView) -> InstanceReport:
        flights = self._flights.setdefault((instance.name, self._serves[instance.name]), Flights())
        for request in instance.in_flight:
            tokens = instance.generated(request.request_id)
            answer: Any = _Answer(tokens) if tokens else None
            self._flying[request.request_id][1].answer = answer
        drain_s = min(flights.drain_s, view.switching.drain_max_s)
        phase, ready_in_s = Phase.SERVING, 0.0
        if not instance.serving:
            drains = instance.num_in_flight > 0
            phase = Phase.DRAINING if drains else Phase.SWAPPING
            ready_in_s = max(instance.ready_s - view.now_s, 0.1) + (drain_s if drains else 0.0)
        active_for_s = view.now_s - instance.activated_s if instance.serving else None
        models, sums = instance.models, flights.sums()
        return InstanceReport(
            instance.name, instance.device, phase, models, active_for_s, ready_in_s, sums, drain_s=drain_s
        )

    # Planner.

    def _make_plan(self, view: FleetView) -> None:
        demands, told_s = self._demand
        reports = tuple(self._report(instance, view) for instance in view.instances)
        members = Members(((AgentReport("a", "", reports), 0.0),), tuple((d, view.now_s - told_s) for d in demands))
        last = self._plan if self._planned else None
        state, self._planned = fleet_state(view.now_s, self._sums(), members, self._swap_s, last, horizon_s=HORIZON_S)
        self._plan = self._planner.plan(state)

    def _sums(self) -> list[QueuedSums]:
        found = []
        for (_, model), group in self._groups.items():
            held = self._lines[group]
            left = [self._of[one.request_id].output_tokens - one.generated_tokens for one in held]
            dues, arrivals = [one.due_s for one in held], [one.arrival_s for one in held]
            if held:
                prompts, squares = sum(one.prompt_tokens for one in held), sum(tokens**2 for tokens in left)
                one = QueuedSums(
                    group, model, "batch", len(held), prompts, sum(left), squares, min(dues), max(dues), min(arrivals)
                )
                found.append(one)
        return found

    # Small parts.

    def _note(self, view: FleetView) -> None:
        """What has ended, and which model each instance serves."""
        self._serves |= {i.name: str(i.active) for i in view.instances if i.serving}
        there = {request.request_id for instance in view.instances for request in instance.in_flight}
        for request_id in self._flying.keys() - there:
            asked = self._of[request_id]
            self._end(request_id, view.now_s)
            if self._is_stream(request_id):
                whole = Streamed(asked.output_tokens + 1)  # and the event that says that it is the last
                self._meter.ended(asked.model, asked.slo.slo_class.name, whole, None)

    def _end(self, request_id: str, now_s: float) -> None:
        flights, flight = self._flying.pop(request_id, (None, None))
        if flights is not None and flight is not None:
            flights.ended(flight, now_s, broken=False)

    def _is_stream(self, request_id: str) -> bool:
        return self._of[request_id].slo.slo_class.name == self._urgent

    def _is_due(self, what: str, every_s: float, now_s: float) -> bool:
        is_due = now_s >= self._due_s[what]
        if is_due:
            self._due_s[what] = now_s + every_s
        return is_due


class _Room:
    """Places that instances have left."""

    def __init__(self, view: FleetView, serves: Mapping[str, str]) -> None:
        self.given = Counter({i.name: i.num_in_flight for i in view.instances})
        self._seats = {i.name: i.limits(serves[i.name]).max_num_seqs for i in view.instances if i.name in serves}

    def for_streams(self, name: str) -> int:
        return math.ceil(FOR_STREAMS * self._seats[name])

    def left(self, name: str) -> int:
        return round(SEATS * self._seats[name]) + self.for_streams(name) - self.given[name]


def _operations(instance: InstanceView, view: FleetView, queue: Sequence[Queued]) -> FleetOperations:
    return fleet_operations(
        queue,
        active=instance.active,
        last_head=None,
        running=(),
        warm=[model for model, state in instance.models.items() if state is ModelState.WARM],
        weights_bytes={model: view.swaps[model, instance.device].weights_bytes for model in instance.models},
        host_bytes=instance.host_bytes,
    )
