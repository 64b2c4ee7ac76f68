"""A fleet in virtual time whose hosts come and go, as a pool starts and ends them.

All hosts that there may ever be are in the fleet's file; how many there are, a rule says after each plan, within the
hold times of :class:`~sloserve.fleet.planning.scaling.Scaling`. A host takes requests ``start_s`` after it was asked
for. One that is not needed, the least busy, takes none any more, its lines go back, and it goes when its streams have
ended.

Differs: a host that drains is not taken back, and its streams have all the time that they need.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from sloserve.fleet.contract.plan_in_force import Plan
from sloserve.fleet.contract.reports import AgentReport
from sloserve.fleet.planning.scaling import ScaledKind, Scaling
from sloserve.fleet.run.scaler import SCALE_S
from sloserve.fleet.simulated.dispatcher import FleetView, Operation, Switch
from sloserve.fleet.simulated.live.live_fleet import LiveFleet
from sloserve.fleet.simulated.live.simulated_agent import SimulatedAgent

_KIND: Final = "host"

Needed = Callable[[Plan, Sequence[AgentReport]], int]
"""How many instances there should be, from the plan in force and what agents last said."""


@dataclass(frozen=True, slots=True)
class Hosts:
    """least: so many hosts there are, and at the start. up_s, down_s: as of ``Scaling``. start_s: of a node."""

    least: int
    start_s: float
    up_s: float
    down_s: float


class ScaledFleet(LiveFleet):
    """All hosts are of one kind. needed: the rule."""

    def __init__(self, needed: Needed, hosts: Hosts, planner: str = "qlm", seed: int = 0) -> None:
        super().__init__(planner, seed=seed)
        self._needed, self._hosts = needed, hosts
        self._idle: list[SimulatedAgent] = []
        self._starting: list[tuple[float, SimulatedAgent]] = []
        self._draining: list[SimulatedAgent] = []
        self._since_s: dict[str, float] = {}
        self._used_s = 0.0
        self.most_hosts = 0

    def begin(self, view: FleetView) -> Sequence[Switch]:
        switches = super().begin(view)
        least, every = self._hosts.least, self._agents
        self._agents, self._idle = every[:least], every[least:]
        self._since_s = {agent.host: 0.0 for agent in self._agents}
        self.most_hosts = least
        self._per_host = len(every[0].instances)
        kind = ScaledKind(self._per_host, least, len(every))
        self._scaling = Scaling({_KIND: kind}, self._hosts.up_s, self._hosts.down_s)
        self._every_s["scale"] = self._due_s["scale"] = SCALE_S
        return switches

    def tick(self, view: FleetView) -> Sequence[Operation]:
        now_s = view.now_s
        for agent in self._draining:
            agent.pull(now_s)
        for agent in [one for one in self._draining if not any(i.view.num_in_flight for i in one.instances.values())]:
            self._draining.remove(agent)
            self._idle.append(agent)
            self._used_s += now_s - self._since_s.pop(agent.host)
        if self._is_due("scale", now_s):
            self._scale(now_s)
        return super().tick(view)

    def used_s(self, end_s: float) -> float:
        """Seconds of all hosts together, from when each was asked for until it was gone, or ``end_s``."""
        return self._used_s + sum(end_s - since_s for since_s in self._since_s.values())

    def _scale(self, now_s: float) -> None:
        for ready_s, agent in [one for one in self._starting if one[0] <= now_s]:
            self._starting.remove((ready_s, agent))
            for one in agent.instances.values():
                one.is_switching = False
            self._agents.append(agent)
        plan = self._store.plan
        if plan is None:
            return
        needed = self._needed(plan, [report for report, _ in self._reports.values()])
        wanted = self._scaling.want(now_s, needed, len(self._agents) * self._per_host)[_KIND]
        for _ in range(wanted - len(self._agents) - len(self._starting)):
            if self._idle:
                agent = self._idle.pop(0)
                self._starting.append((now_s + self._hosts.start_s, agent))
                self._since_s[agent.host] = now_s
        self.most_hosts = max(self.most_hosts, len(self._agents) + len(self._starting))
        if len(self._agents) > wanted:
            self._drain(min(self._agents, key=lambda agent: (_requests(agent), agent.host)))

    def _drain(self, agent: SimulatedAgent) -> None:
        self._agents.remove(agent)
        self._reports.pop(agent.host, None)
        self._draining.append(agent)
        for one in agent.instances.values():
            one.is_switching = True  # so it refuses streams, and its lines go back


def _requests(agent: SimulatedAgent) -> int:
    return sum(len(one.in_flight) for one in agent.instances.values())
