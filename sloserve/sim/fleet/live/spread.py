"""A planner that does not balance load: groups are spread evenly, and each instance orders its own."""

from dataclasses import replace

from sloserve.virtual_queues.contract import FleetPlan, GroupSums, InstanceState
from sloserve.virtual_queues.qlm_planner import Foreseen, QLMPlanner


class Spread(QLMPlanner):
    """As :class:`QLMPlanner`, for each instance alone."""

    def search(self, foreseen: Foreseen) -> FleetPlan:
        state = foreseen.state
        queues: dict[str, tuple[int, ...]] = {}
        for instance in state.instances:
            own = tuple(group for group in foreseen.groups if _anywhere(group, state.instances) is instance)
            alone = self.foresee(replace(state, groups=own, instances=(instance,)))
            queues |= super().search(alone).queues
        return FleetPlan(queues, foreseen.unserved)


def _anywhere(group: GroupSums, instances: tuple[InstanceState, ...]) -> InstanceState:
    """The instance that a group is assigned to where none is better than another."""
    can = [instance for instance in instances if group.model in instance.models]
    return can[group.ref % len(can)]
