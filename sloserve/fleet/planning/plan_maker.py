"""Makes the next plan in force from the waiting requests, the reports of members, and the last plan.

This is synchronous, without store and clock, so that the planner's task and a fleet in virtual time make the same
plans.
"""

from collections.abc import Iterable

from sloserve.fleet.contract.plan_in_force import PlanInForce, PlannedGroup
from sloserve.fleet.fleet import Fleet
from sloserve.fleet.planner_rule import expects_streams
from sloserve.fleet.planning.pressure import slo_pressure
from sloserve.fleet.planning.rules import planner_of
from sloserve.fleet.planning.snapshot import LiveMembers, Swaps, fleet_state, plan_settings, serving_of
from sloserve.fleet.planning.waiting_groups import HORIZON_S, Group
from sloserve.scheduler.virtual_queues.contract import FleetPlan
from sloserve.scheduler.virtual_queues.qlm_planner import QLMPlanner


class PlanMaker:
    """Makes plans for one fleet. It keeps nothing but the swap times that agents measured.

    Args:
        fleet: Settings of the fleet, from its file.
        planner: Planner to use in place of the file's, for comparison.
        seed: Seed of the search.
    """

    def __init__(self, fleet: Fleet, *, planner: QLMPlanner | None = None, seed: int = 0) -> None:
        self._planner = planner or planner_of(fleet.planner, serving_of(fleet), plan_settings(fleet), seed)
        self._horizon_s = HORIZON_S if expects_streams(fleet.planner) else 0.0
        self._classes = sorted(one.name for one in fleet.settings.classes)
        self._swaps = Swaps(fleet)

    def plan(
        self, now_s: float, durable: Iterable[Group], members: LiveMembers, last: PlanInForce | None
    ) -> PlanInForce:
        """Return the next plan in force.

        Args:
            now_s: Epoch seconds by the store's clock.
            durable: Groups that the store holds.
            members: Agents and gateways that are alive.
            last: The plan in force; ``None`` at the start.
        """
        self._swaps.note(report for report, _ in members.agents)
        in_force = None if last is None else FleetPlan({name: tuple(refs) for name, refs in last.order.items()})
        durable = tuple(durable)
        held = sum(demand.held for demand, _ in members.demands)
        running = sum(one.streams for report, _ in members.agents for one in report.instances)
        state, groups = fleet_state(now_s, durable, members, self._swaps.table, in_force, horizon_s=self._horizon_s)
        foreseen = self._planner.foresee(state)
        found = self._planner.search(foreseen)
        return PlanInForce(
            made_s=now_s,
            queues={name: tuple(_planned(groups[r], now_s) for r in q) for name, q in found.queues.items()},
            late_s=round(found.late_s, 3),
            instances_needed=found.instances_needed,
            solver=found.solver,
            pressure=dict.fromkeys(self._classes, 0.0) | slo_pressure(foreseen, found, groups),
            waiting=held + sum(group.sums.requests for group in durable),
            streams=held + running,
        )


def _planned(group: Group, now_s: float) -> PlannedGroup:
    sums = group.sums
    due_in_s = None if sums.first_due_s == float("inf") else round(sums.first_due_s - now_s, 3)
    return PlannedGroup(sums.ref, sums.model, group.slo_class, due_in_s)
