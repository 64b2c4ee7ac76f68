"""Orders of one instance: which model it has, what it pulls from, which models it keeps warm.

They follow from the order of its queue alone; :mod:`sloserve.scheduler.virtual_queues.fleet_operations` reads it. The
module is synchronous, without store and clock: agents use it in each look at the plan, and a fleet in virtual time does
the same.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sloserve.core.spans import Phase
from sloserve.fleet.contract.plan_in_force import PlanInForce
from sloserve.fleet.contract.reports import InstanceReport
from sloserve.fleet.fleet import Fleet
from sloserve.scheduler.virtual_queues.contract import FleetState, GroupSums, ModelState
from sloserve.scheduler.virtual_queues.fleet_operations import Queued, fleet_operations

_PARKED: Final = -1
"""Number of a group that stands for streams in a sleeping engine. It is never pulled from."""


@dataclass(frozen=True, slots=True)
class Orders:
    """Orders of one instance.

    Args:
        pull: Durable groups to pull from, the first one first.
        warm: Models to have in host memory besides the active one; ``None`` leaves them as they are.
        switch_to: Model to switch to now. Nothing is pulled before that is over, and ``warm`` begins with it.
        head: First group of the queue; ``None`` if the queue is empty, or the model switches.
        head_due_s: Deadline of the first group, in seconds.
        preempt: Groups with running lines that give way to the head, see :mod:`sloserve.fleet.agent.giving_way`.
    """

    pull: tuple[Queued, ...] = ()
    warm: tuple[str, ...] | None = None
    switch_to: str | None = None
    head: int | None = None
    head_due_s: float = math.inf
    preempt: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Agenda:
    """Rules by which one instance follows its queue.

    Args:
        first: Model to begin with if nothing waits; ``None`` for none.
        min_active_s: Least seconds for which a model that came stays.
        weights_bytes: Bytes of each model that may be warm, by name.
        host_bytes: Bytes of host memory for such models.
    """

    first: str | None
    min_active_s: float
    weights_bytes: Mapping[str, int]
    host_bytes: int

    def orders(
        self,
        report: InstanceReport,
        queue: Sequence[Queued],
        others: Iterable[Queued] = (),
        *,
        last_head: int | None = None,
        running: Sequence[Queued] = (),
    ) -> Orders:
        """Return what the instance does now.

        Args:
            report: Report of the instance.
            queue: Groups that wait for it, the head first.
            others: Groups that wait for other instances, with which it helps if it has room left.
            last_head: Head of the queue at the previous call, see :func:`fleet_operations`.
            running: Groups with running lines, see the same function; none if lines do not give way.
        """
        # A planner that was started with another file may know models that this host does not.
        queue = [one for one in queue if one.model in report.models]
        # No other instance can continue what is parked here: its model comes back once nothing else waits.
        queue += [Queued(_PARKED, model, math.inf) for model in sorted(report.parked.keys() & report.models.keys())]
        if report.phase is Phase.EMPTY and not queue:
            return Orders() if self.first is None else Orders(warm=(self.first,), switch_to=self.first)
        asked = fleet_operations(
            queue,
            active=report.active,
            last_head=last_head,
            running=running,
            warm=[model for model, state in report.models.items() if state is ModelState.WARM],
            weights_bytes=self.weights_bytes,
            host_bytes=self.host_bytes,
        )
        pulled, warm = set(asked.pull), asked.warm
        if asked.switch_to is not None:
            warm = (asked.switch_to, *warm)  # it must not be dropped just before it comes
            if self._may_switch(report):
                return Orders(warm=warm, switch_to=asked.switch_to)
            # The instance serves what it has until then.
            pulled = {one.ref for one in queue if one.model == report.active}
        order = [one for one in queue if one.ref in pulled and one.ref >= 0]
        # If room is left, the instance helps with other groups of its model: a group may stand behind streams that are
        # only expected.
        rest = {one.ref: one for one in others if one.ref >= 0}
        order += sorted((q for q in rest.values() if q.model == report.active and q not in order), key=_by_due)
        if not queue:
            return Orders(tuple(order), warm)
        return Orders(tuple(order), warm, None, queue[0].ref, queue[0].due_s, asked.preempt)

    def _may_switch(self, report: InstanceReport) -> bool:
        if report.phase is Phase.SERVING:
            return report.active_for_s is None or report.active_for_s >= self.min_active_s
        return report.phase in (Phase.EMPTY, Phase.FAILED)


def agendas(fleet: Fleet, instances: Iterable[str]) -> dict[str, Agenda]:
    """Return the agenda of each of these instances by its name. A host's instances share its memory equally."""
    hosts, swaps = dict(fleet.instances), fleet.swaps()
    return {
        name: Agenda(
            fleet.active.get(name),
            fleet.switching.min_active_s,
            {m: swaps[m, hosts[name].device].weights_bytes for m in fleet.models_on(hosts[name])},
            hosts[name].host_memory_bytes // len(hosts[name].instances),
        )
        for name in instances
    }


def planned(plan: PlanInForce, instance: str) -> list[Queued]:
    """Return the plan's queue of an instance."""
    return [
        Queued(group.ref, group.model, math.inf if group.due_in_s is None else plan.made_s + group.due_in_s)
        for group in plan.queues.get(instance, ())
    ]


def unplanned(instance: str, last: PlanInForce | None, state: FleetState, max_wait_s: float) -> list[Queued]:
    """Return what an instance serves if no planner says: groups of the last plan, then groups of its model.

    The groups of the last plan are the ones that still have requests; the groups of the model that it has follow by
    their deadlines. A model that is active nowhere, and has a request that has waited for ``max_wait_s``, comes before
    all on one of the instances that can serve it.
    """
    groups = {group.ref: group for group in state.groups}
    kept = [one for one in ([] if last is None else planned(last, instance)) if one.ref in groups]
    held = {group.ref for queue in ({} if last is None else last.queues).values() for group in queue}
    others = sorted((g for g in state.groups if g.ref not in held), key=lambda g: (g.first_due_s, g.ref))
    actives = {one.name: one.active for one in state.instances}
    own = [_queued(group) for group in others if group.model == actives.get(instance)]
    starved = [
        group
        for group in sorted(state.groups, key=lambda g: (g.first_due_s, g.ref))
        if group.model not in actives.values() and state.now_s - group.first_arrival_s >= max_wait_s
    ]
    mine = [_queued(group) for group in starved if _turns(group.model, state) == instance]
    first = {one.ref for one in mine}
    return [*mine, *(one for one in (*kept, *own) if one.ref not in first)]


def _turns(model: str, state: FleetState) -> str | None:
    """Return the instance that turns to a model that is active nowhere; all agents choose the same one."""
    can = sorted(one.name for one in state.instances if model in one.models)
    if not can:
        return None
    return can[int.from_bytes(hashlib.sha256(model.encode()).digest()[:4], "big") % len(can)]


def _by_due(one: Queued) -> tuple[float, int]:
    return one.due_s, one.ref


def _queued(group: GroupSums) -> Queued:
    return Queued(group.ref, group.model, group.first_due_s)
