"""QLM: request groups in virtual queues, one for each instance; a planner orders them, and instances carry that out.

An instance pulls from its head group while the group's model is active, then from the next of the same model, and
switches when the head group is of another. Plans are made anew when a group or a model comes or goes, and every few
seconds; what streams is never aborted for one.

Source: QLM, Sec. 4 to 7.
"""

from collections.abc import Sequence

from sloserve.estimator.completion.group_time import Serving
from sloserve.estimator.completion.queue_backlog import EngineSize
from sloserve.lso.fleet_operations import Queued, fleet_operations
from sloserve.scheduler.qlm.contract import FleetPlan, FleetState, InstanceState, RunningSums
from sloserve.scheduler.qlm.groups import Groups, Member
from sloserve.scheduler.qlm.planner import QLMPlanner
from sloserve.scheduler.qlm.problem import PlanSettings
from sloserve.scheduler.qlm.swaps import swap_table
from sloserve.sim.fleet.contract import Dispatcher, FleetView, Give, Held, InstanceView, Operation, Switch
from sloserve.sim.fleet.dispatchers.room import Room

_REPLAN_S = 1.0
"""A plan is looked at again after so long, whatever happens."""
_BATCH_MEMORY = 0.9
"""Weight of the past in the mean batch of a model."""


class QLM(Dispatcher):
    """seed: of the planner's search."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._groups = Groups()
        self._plan: FleetPlan | None = None
        self._planned: tuple[object, ...] = ()
        self._planned_s = 0.0
        self._batch: dict[str, float] = {}

    def begin(self, view: FleetView) -> Sequence[Switch]:
        settings = PlanSettings(
            min_active_s=view.switching.min_active_s, tail_max_wait_s=max(view.switching.max_wait_s, 1.0)
        )
        serving = {
            (model, instance.device): Serving(
                instance.profile(model),
                EngineSize(
                    instance.limits(model).max_num_seqs,
                    instance.limits(model).max_num_batched_tokens,
                    instance.limits(model).kv_blocks * instance.limits(model).block_size,
                ),
            )
            for instance in view.instances
            for model in instance.models
        }
        self._planner = QLMPlanner(serving, settings, seed=self._seed)
        self._swap_s = swap_table(view.swaps)
        return ()

    def arrived(self, request: Held, view: FleetView) -> None:
        mean, deviation = view.expected_output(request)
        self._groups.add(
            Member(
                request.request_id,
                request.model,
                request.prompt_tokens,
                mean,
                deviation,
                request.arrival_s,
                request.due_s - request.arrival_s,
                request.until_first_token,
            )
        )

    def tick(self, view: FleetView) -> Sequence[Operation]:
        self._groups.tidy()
        sums = self._groups.sums()
        there = (
            tuple(group.ref for group in sums),
            tuple((instance.active, instance.serving) for instance in view.instances),
        )
        if self._plan is None or there != self._planned or view.now_s >= self._planned_s + _REPLAN_S:
            self._note_batches(view)
            instances = tuple(_state_of(instance, view) for instance in view.instances)
            state = FleetState(view.now_s, sums, instances, self._swap_s, self._plan)
            self._plan = self._planner.plan(state)
            self._planned, self._planned_s = there, view.now_s
        queued = {group.ref: Queued(group.ref, group.model, group.first_due_s) for group in sums}
        operations: list[Operation] = []
        for instance in view.instances:
            if instance.serving:
                refs = self._plan.queues.get(instance.name, ())
                operations += self._serve(instance, [queued[ref] for ref in refs if ref in queued])
        return operations

    def _serve(self, instance: InstanceView, queue: Sequence[Queued]) -> list[Operation]:
        """What the instance pulls now, or the model that it switches to. Engines preempt by their own policy."""
        asked = fleet_operations(
            queue, active=instance.active, last_head=None, running=(), warm=(), weights_bytes={}, host_bytes=0
        )
        if asked.activate is not None:
            return [Switch(instance.name, asked.activate)]
        operations: list[Operation] = []
        room = Room(instance)
        for ref in asked.pull:
            while members := self._groups.head(ref, 1):
                (member,) = members
                if not room.takes(int(member.prompt_tokens)):
                    return operations
                self._groups.remove(member.request)
                operations.append(Give(str(member.request), instance.name))
        return operations

    def _note_batches(self, view: FleetView) -> None:
        """Groups are cut at multiples of the batch that their model was seen to have."""
        for instance in view.instances:
            model, now = instance.active, float(instance.num_in_flight)
            if model is not None and instance.serving and now:
                self._batch[model] = _BATCH_MEMORY * self._batch.get(model, now) + (1.0 - _BATCH_MEMORY) * now
                self._groups.set_batch(model, self._batch[model])


def _state_of(instance: InstanceView, view: FleetView) -> InstanceState:
    requests, prefill, context, output, output2, longest = 0, 0.0, 0.0, 0.0, 0.0, 0.0
    for request in instance.in_flight:
        generated = instance.generated(request.request_id)
        mean, deviation = view.expected_output(request, generated)
        requests += 1
        if generated > request.generated_tokens:
            context += request.prompt_tokens + generated - request.generated_tokens
        else:
            prefill += request.prompt_tokens
        output += mean
        output2 += mean**2 + deviation**2
        longest = max(longest, mean)
    running = RunningSums(requests, prefill, context, output, output2, longest)
    return InstanceState(
        instance.name, instance.device, instance.models, instance.activated_s, instance.ready_s, running
    )
