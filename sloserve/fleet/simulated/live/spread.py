"""A planner that does not balance load: groups go to instances in turn or at random, and each orders its own.

Source: QLM, Sec. 8.3: round robin and random assignment, "while using default QLM policy per instance". Differs: groups
are assigned, not requests, since a virtual queue holds groups.
"""

from collections.abc import Mapping
from dataclasses import replace

from sloserve.estimator.completion.group_time import Serving
from sloserve.scheduler.virtual_queues.contract import FleetPlan, GroupSums, InstanceState
from sloserve.scheduler.virtual_queues.problem import PlanSettings
from sloserve.scheduler.virtual_queues.qlm_planner import Foreseen, QLMPlanner
from sloserve.sim.workloads.seeding import stream


class Spread(QLMPlanner):
    """A :class:`QLMPlanner` that plans each instance alone. A group stays where it is assigned.

    Args:
        at_random: Whether groups are assigned at random instead of in turn.
    """

    def __init__(
        self,
        serving: Mapping[tuple[str, str], Serving],
        settings: PlanSettings | None = None,
        *,
        seed: int = 0,
        at_random: bool = False,
    ) -> None:
        super().__init__(serving, settings, seed=seed)
        self._rng = stream(seed, "fleet/spread") if at_random else None
        self._drawn: dict[int, float] = {}

    def search(self, foreseen: Foreseen) -> FleetPlan:
        state = foreseen.state
        queues: dict[str, tuple[int, ...]] = {}
        of = {group.ref: self._instance(group, state.instances) for group in foreseen.groups}
        for instance in state.instances:
            own = tuple(group for group in foreseen.groups if of[group.ref] is instance)
            alone = self.foresee(replace(state, groups=own, instances=(instance,)))
            queues |= super().search(alone).queues
        return FleetPlan(queues, foreseen.unserved)

    def _instance(self, group: GroupSums, instances: tuple[InstanceState, ...]) -> InstanceState:
        """Return the instance for a group, where no instance is better than another."""
        can = [instance for instance in instances if group.model in instance.models]
        if self._rng is None:
            return can[group.ref % len(can)]
        if group.ref not in self._drawn:
            self._drawn[group.ref] = float(self._rng.random())
        return can[int(self._drawn[group.ref] * len(can))]
