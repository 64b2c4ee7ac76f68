"""QLM: request groups in virtual queues, one for each instance; a planner orders them, and instances carry that out.

Plans are made anew when a group or a model comes or goes, and once a second. A plan is in force once the time that it
takes is over; until then instances follow the one before. What an instance does for its queue is in ``qlm_queue.py``.

Source: QLM, Sec. 4 to 7.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from sloserve.estimator.planning_cost import GroupLine, planning_costs
from sloserve.scheduler.qlm.contract import FleetPlan, FleetState, GroupSums, InstanceState
from sloserve.scheduler.qlm.groups import Groups, Member
from sloserve.scheduler.qlm.planner import QLMPlanner
from sloserve.scheduler.qlm.problem import PlanSettings
from sloserve.scheduler.qlm.swaps import swap_table
from sloserve.sim.fleet.contract import Dispatcher, FleetView, Held, InstanceView, Operation, Switch
from sloserve.sim.fleet.dispatchers.prefixes import Router, serving_of
from sloserve.sim.fleet.dispatchers.qlm_queue import Operations, Streams, Taken, VirtualQueue
from sloserve.sim.fleet.dispatchers.room import Room

_LEAST_MOVES = 20_000
"""Of a plan that goes on from the last one, a second ago: four times as many make it 0.02 % cheaper."""
_REPLAN_S = 1.0
"""A plan is looked at again after so long, whatever happens."""
_BATCH_MEMORY = 0.9
"""Weight of the past in the mean batch of a model."""


class QLM(Dispatcher):
    """operations: that there are. seed: of the planner's search. delta: largest size of a group, in mean batches. cost:
    of a plan; ``None`` for the shipped table's.
    """

    def __init__(
        self,
        operations: Operations | None = None,
        seed: int = 0,
        delta: float = 4.0,
        cost: GroupLine | None = None,
    ) -> None:
        self._cost = planning_costs().fleet if cost is None else cost
        self._operations, self._seed = operations or Operations(), seed
        self._groups = Groups(delta)
        self._plan: FleetPlan | None = None
        self._next: FleetPlan | None = None  # in force from wakes_s on
        self._wakes_s = math.inf
        self._planned: tuple[object, ...] = ()
        self._planned_s = -math.inf
        self._batch: dict[str, float] = {}
        self._taken: dict[str, Taken] = {}

    def begin(self, view: FleetView) -> Sequence[Switch]:
        settings = PlanSettings(
            min_active_s=view.switching.min_active_s,
            tail_max_wait_s=max(view.switching.max_wait_s, 1.0),
            least_moves=_LEAST_MOVES,
        )
        serving = {
            (model, instance.device): serving_of(instance, model)
            for instance in view.instances
            for model in instance.models
        }
        self._serving = serving
        self._planner = QLMPlanner(serving, settings, seed=self._seed)
        self._swap_s = swap_table(view.swaps)
        self._router = router = Router() if self._operations.prefixes else None
        self._queues = {
            instance.name: VirtualQueue(self._operations, self._groups, self._taken, serving, router)
            for instance in view.instances
        }
        return ()

    def arrived(self, request: Held, view: FleetView) -> None:
        mean, deviation = view.expected_output(request)
        cached = {} if self._router is None else self._router.arrived(request, view.instances)
        if request.kept_on is not None:
            cached[request.kept_on] = max(float(request.kept_tokens), cached.get(request.kept_on, 0.0))
        member = Member(
            request.request_id,
            request.model,
            request.prompt_tokens,
            mean,
            deviation,
            request.arrival_s,
            request.due_s - request.arrival_s,
            request.until_first_token,
            cached,
        )
        before = self._taken.get(request.request_id)
        if before is None:
            self._groups.add(member)
        else:
            before.preempted += 1
            self._groups.put_back(member, before.ref)

    def tick(self, view: FleetView) -> Sequence[Operation]:
        self._groups.tidy()
        sums = self._groups.sums()
        there = (
            tuple(group.ref for group in sums),
            tuple((instance.active, instance.serving) for instance in view.instances),
        )
        self._take_over(view.now_s)
        if self._next is None and (there != self._planned or view.now_s >= self._planned_s + _REPLAN_S):
            self._note_batches(view)
            self._forget_ended(view)
            self._next = self._new_plan(view, sums)
            self._wakes_s = view.now_s + self._cost.seconds(len(sums))
            self._planned, self._planned_s = there, view.now_s
            self._take_over(view.now_s)
        of_ref = {group.ref: group for group in sums}
        operations: list[Operation] = []
        planned = {} if self._plan is None else self._plan.queues
        queues = {
            instance: [of_ref[ref] for ref in planned.get(instance.name, ()) if ref in of_ref]
            for instance in view.instances
            if instance.serving
        }
        rooms = {instance.name: Room(instance) for instance in queues}
        if self._router is not None:
            self._router.rooms = [
                rooms[instance.name]
                for instance, queue in queues.items()
                if queue and queue[0].model == instance.active
            ]
        for instance, queue in queues.items():
            operations += self._queues[instance.name].serve(instance, view, queue, rooms[instance.name])
        return operations

    @property
    def wakes_s(self) -> float:
        return self._wakes_s

    def _take_over(self, now_s: float) -> None:
        """The plan that was made is in force, if its time has come."""
        if self._next is not None and now_s >= self._wakes_s:
            self._plan, self._next, self._wakes_s = self._next, None, math.inf

    def _new_plan(self, view: FleetView, sums: tuple[GroupSums, ...]) -> FleetPlan:
        state = self._state(view, sums)
        instances = state.instances
        if self._operations.balance:
            return self._planner.plan(state)
        queues: dict[str, tuple[int, ...]] = {}
        for place, instance in enumerate(instances):
            own = tuple(group for group in sums if _anywhere(group, instances) == place)
            queues |= self._planner.plan(replace(state, groups=own, instances=(instance,))).queues
        return FleetPlan(queues)

    def _state(self, view: FleetView, sums: tuple[GroupSums, ...]) -> FleetState:
        instances = tuple(_state_of(instance, view, park=self._operations.park) for instance in view.instances)
        return FleetState(view.now_s, sums, instances, self._swap_s, self._plan)

    def _note_batches(self, view: FleetView) -> None:
        """Groups are cut at multiples of the batch that their model was seen to have."""
        for instance in view.instances:
            model, now = instance.active, float(instance.num_in_flight)
            if model is not None and instance.serving and now:
                self._batch[model] = _BATCH_MEMORY * self._batch.get(model, now) + (1.0 - _BATCH_MEMORY) * now
                self._groups.set_batch(model, self._batch[model])

    def _forget_ended(self, view: FleetView) -> None:
        there = {request.request_id for instance in view.instances for request in instance.in_flight}
        for request_id in [i for i in self._taken if i not in there and self._groups.ref_of(i) is None]:
            del self._taken[request_id]


def _state_of(instance: InstanceView, view: FleetView, *, park: bool) -> InstanceState:
    return InstanceState(
        instance.name,
        instance.device,
        instance.models,
        instance.activated_s,
        instance.ready_s,
        Streams.of(instance, view).sums(instance, view, park=park),
    )


def _anywhere(group: GroupSums, instances: Sequence[InstanceState]) -> int:
    """Place of the instance that a group is assigned to where none is better than another."""
    can = [place for place, instance in enumerate(instances) if group.model in instance.models]
    return can[group.ref % len(can)]
