"""A fleet in virtual time whose hosts come and go, as a pool starts and ends them.

All hosts that there may ever be are in the fleet's file; how many there are, a rule says after each plan, within the
hold times of :class:`~sloserve.fleet.planning.scaling.Scaling`. A host takes requests ``start_s`` after it was asked
for. One that is not needed, the least busy, takes none any more, its lines go back, and it goes when its streams have
ended.

Differs: a host that drains is not taken back, and its streams have all the time that they need.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from sloserve.core.slo import Targets
from sloserve.fleet.contract.plan_in_force import PlanInForce
from sloserve.fleet.contract.reports import AgentReport
from sloserve.fleet.contract.traffic import RecentTraffic
from sloserve.fleet.gateway.traffic_log import LoggedRequest, TrafficLog
from sloserve.fleet.planning.scaling import ScaledKind, Scaling
from sloserve.fleet.run.scaler import SCALE_S
from sloserve.fleet.simulated.dispatcher import Operation, SimulatedView, Switch, WaitingRequest
from sloserve.fleet.simulated.live.live_fleet import LiveFleet
from sloserve.fleet.simulated.live.simulated_agent import SimulatedAgent

_KIND: Final = "host"
MEASURED_S: Final = 60.0
"""Seconds over which latencies are measured."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What a rule may know about the fleet.

    Args:
        now_s: Seconds from the start of the run.
        plan: Plan in force.
        reports: Last reports of the agents.
        hosts: Number of hosts that serve or start.
        waiting: Number of requests that wait in gateways and in the store.
        worst: Largest ratio, among the classes, of the 90th percentile of the latency in the last MEASURED_S to the
            class's target; 0 without a measurement.
        streams: Number of streams that wait or run.
        traffic: Returns the traffic of the last minutes.
    """

    now_s: float
    plan: PlanInForce
    reports: Sequence[AgentReport]
    hosts: int
    waiting: int
    worst: float
    streams: int
    traffic: Callable[[], RecentTraffic]

    @property
    def running(self) -> int:
        """Number of requests that engines have."""
        return sum(one.running.requests for report in self.reports for one in report.instances)


Needed = Callable[[Observed], int]
"""A rule: returns how many instances there should be."""


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
        self._unstarted: dict[str, WaitingRequest] = {}
        self._latencies: deque[tuple[float, str, float]] = deque()
        self._traffic = TrafficLog(0.0)
        self._logged: dict[str, LoggedRequest] = {}
        self.most_hosts = 0

    def begin(self, view: SimulatedView) -> Sequence[Switch]:
        switches = super().begin(view)
        least, every = self._hosts.least, self._agents
        self._agents, self._idle = every[:least], every[least:]
        self._since_s = {agent.host: 0.0 for agent in self._agents}
        self.most_hosts = least
        self._per_host = len(every[0].instances)
        kind = ScaledKind(self._per_host, least, len(every))
        self._scaling = Scaling({_KIND: kind}, self._hosts.up_s, self._hosts.down_s)
        self._every_s["scale"] = self._due_s["scale"] = SCALE_S
        self._targets: Mapping[str, Targets] = {one.name: one.targets for one in view.fleet.stated_classes}
        self._rank = {one.name: one.rank for one in view.fleet.stated_classes}
        return switches

    def arrived(self, request: WaitingRequest, view: SimulatedView) -> None:
        if request.request_id not in self._logged:
            self._logged[request.request_id] = self._traffic.arrived(
                request.model,
                request.slo_class,
                self._targets[request.slo_class],
                request.prompt_tokens,
                request.most_tokens,
                view.now_s,
            )
        if not request.generated_tokens and self._targets[request.slo_class].ttft_s is not None:
            self._unstarted[request.request_id] = request
        super().arrived(request, view)

    def ended(self, request_id: str, tokens: int, view: SimulatedView) -> None:
        self._unstarted.pop(request_id, None)
        self._logged[request_id].over(tokens, complete=True)
        request = self._where[request_id].sent[request_id].request
        self._measure(request, self._targets[request.slo_class].e2e_s, view.now_s)
        super().ended(request_id, tokens, view)

    def tick(self, view: SimulatedView) -> Sequence[Operation]:
        now_s = view.now_s
        for request_id in [one for one in self._unstarted if one in self._where]:
            if self._where[request_id].view.generated(request_id):
                request = self._unstarted.pop(request_id)
                self._measure(request, self._targets[request.slo_class].ttft_s, now_s)
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
        needed = self._needed(self._observed(plan, now_s))
        wanted = self._scaling.want(now_s, needed, len(self._agents) * self._per_host)[_KIND]
        for _ in range(wanted - len(self._agents) - len(self._starting)):
            if self._idle:
                agent = self._idle.pop(0)
                self._starting.append((now_s + self._hosts.start_s, agent))
                self._since_s[agent.host] = now_s
        self.most_hosts = max(self.most_hosts, len(self._agents) + len(self._starting))
        if len(self._agents) > wanted:
            self._drain(min(self._agents, key=lambda agent: (_requests(agent), agent.host)))

    def _observed(self, plan: PlanInForce, now_s: float) -> Observed:
        while self._latencies and self._latencies[0][0] < now_s - MEASURED_S:
            self._latencies.popleft()
        ratios: dict[str, list[float]] = {}
        for _, slo_class, ratio in self._latencies:
            ratios.setdefault(slo_class, []).append(ratio)
        for request in self._unstarted.values():  # one that waits for its first token has waited so long already
            target_s = self._targets[request.slo_class].ttft_s or math.inf
            if now_s - request.arrival_s > target_s:
                ratios.setdefault(request.slo_class, []).append((now_s - request.arrival_s) / target_s)
        held = sum(one.held for report in self._demand[0] for one in report.demand)
        reports = [report for report, _ in self._reports.values()]
        return Observed(
            now_s,
            plan,
            reports,
            len(self._agents) + len(self._starting),
            held + len(self._store),
            max((float(np.percentile(of_class, 90)) for of_class in ratios.values()), default=0.0),
            held + sum(one.streams for report in reports for one in report.instances),
            lambda: self._reported(now_s),
        )

    def _reported(self, now_s: float) -> RecentTraffic:
        """Return the traffic; requests that are no streams are lines."""
        traffic, urgent = self._traffic.report(now_s), min(self._rank, key=self._rank.__getitem__)
        return replace(
            traffic, requests=tuple(replace(one, is_line=one.slo_class != urgent) for one in traffic.requests)
        )

    def _measure(self, request: WaitingRequest, target_s: float | None, now_s: float) -> None:
        if target_s is not None:
            self._latencies.append((now_s, request.slo_class, (now_s - request.arrival_s) / target_s))

    def _drain(self, agent: SimulatedAgent) -> None:
        self._agents.remove(agent)
        self._reports.pop(agent.host, None)
        self._draining.append(agent)
        for one in agent.instances.values():
            one.is_switching = True  # so it refuses streams, and its lines go back


def _requests(agent: SimulatedAgent) -> int:
    return sum(len(one.in_flight) for one in agent.instances.values())
