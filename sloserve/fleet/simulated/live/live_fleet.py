"""``sloserve fleet`` in virtual time: gateway, planner, store and agents on one clock, as they are in real processes.

The most urgent class is streamed past the store, the others are lines of batches. The live fleet's own objects make all
decisions; this module says when their loops run, and passes each its inputs. Loops begin at different times, drawn from
the seed, as processes do. HTTP, the store's transactions and canary prompts take no time; a plan is in force once the
time that it takes is over.

Differs: lines of one model and class that arrive within a few seconds are taken for one file (``simulated_store.py``).
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from sloserve.estimator.planning_cost import GroupLine, planning_costs
from sloserve.fleet.contract.endpoint import Refusal
from sloserve.fleet.contract.plan_in_force import PlanInForce
from sloserve.fleet.contract.reports import AgentReport, GatewayReport
from sloserve.fleet.planner_rule import QLM, expects_streams
from sloserve.fleet.planning.plan_maker import PlanMaker
from sloserve.fleet.planning.planning_task import REPLAN_S
from sloserve.fleet.planning.snapshot import LiveMembers, plan_settings, serving_of
from sloserve.fleet.planning.waiting_groups import Group
from sloserve.fleet.simulated.dispatcher import Dispatcher, Operation, Refuse, SimulatedView, Switch, WaitingRequest
from sloserve.fleet.simulated.live.agent_instance import AgentInstance
from sloserve.fleet.simulated.live.live_options import Balance, Options
from sloserve.fleet.simulated.live.simulated_agent import SimulatedAgent
from sloserve.fleet.simulated.live.simulated_gateway import SimulatedGateway
from sloserve.fleet.simulated.live.simulated_store import SimulatedStore
from sloserve.fleet.simulated.live.spread import Spread
from sloserve.fleet.sizes import line_output_tokens
from sloserve.sim.workloads.seeding import stream


class LiveFleet(Dispatcher):
    """A live fleet as a dispatcher in virtual time.

    Args:
        planner: Name of the planner as in a fleet's file, see ``fleet/planner_rule.py``.
        options: Parts that are left out or changed; ``None`` for a fleet like the live one.
        seed: Seed of the planner's search, and of the times when loops begin.
        delta: Largest size of a group in mean batches, if there is one queue for all.
        cost: Time that a plan takes; ``None`` for the shipped table's.
    """

    def __init__(
        self,
        planner: str = QLM,
        options: Options | None = None,
        seed: int = 0,
        *,
        delta: float = 4.0,
        cost: GroupLine | None = None,
    ) -> None:
        self._planner, self._options, self._seed = planner, options or Options(), seed
        self._cost = planning_costs().fleet if cost is None else cost
        self._store = SimulatedStore(delta if self._options.one_queue else None)
        self._operations: list[Operation] = []
        self._streams: list[WaitingRequest] = []
        self._where: dict[str, AgentInstance] = {}
        self._next: tuple[float, PlanInForce] | None = None
        self._planned_for: tuple[object, float] = None, -math.inf
        self._reports: dict[str, tuple[AgentReport, float]] = {}
        self._demand: tuple[tuple[GatewayReport, ...], float] = (), 0.0
        self._gateway_of: dict[str, SimulatedGateway] = {}
        self._draws = stream(seed, "fleet/gateways")
        self._every_s: dict[str, float] = {}
        self._due_s: dict[str, float] = {}

    @property
    def has_swap_space(self) -> bool:
        return self._options.swap

    def begin(self, view: SimulatedView) -> Sequence[Switch]:
        fleet = replace(view.fleet, planner=self._planner)
        options, periods = self._options, self._options.periods
        self._urgent = min(one.rank for one in fleet.stated_classes)
        self._view = view
        self._gateways = [
            SimulatedGateway(
                fleet,
                self._send,
                prefixes=options.prefixes and fleet.gateway.affinity,
                shares=options.share,
                compared=options.compared,
                promises=view.promises,
            )
            for _ in range(options.gateways)
        ]
        self._agents = [
            SimulatedAgent(
                host.name,
                fleet,
                [one for one in view.instances if one.name in host.instances],
                store=self._store,
                options=options,
                operations=self._operations,
                where=self._where,
            )
            for host in fleet.hosts.values()
        ]
        self._of = {name: agent for agent in self._agents for name in agent.instances}
        planner = None
        if options.balance is not Balance.PLANNED and expects_streams(self._planner):
            at_random = options.balance is Balance.RANDOM
            planner = Spread(serving_of(fleet), plan_settings(fleet), seed=self._seed, at_random=at_random)
        self._maker = PlanMaker(fleet, planner=planner, seed=self._seed)
        self._every_s = {
            "beat": periods.beat_s,
            "report": periods.report_s,
            "plan": periods.plan_s,
            "look": periods.look_s,
        }
        if options.share and fleet.settings.tenant_shares is not None:
            self._every_s["share"] = periods.share_s
        begins = stream(self._seed, "fleet/loops").random(len(self._every_s)).tolist()
        self._due_s = {name: part * self._every_s[name] for name, part in zip(self._every_s, begins, strict=True)}
        self._due_s["ask"] = 0.0
        return ()

    @property
    def wakes_s(self) -> float:
        return min(*self._due_s.values(), math.inf if self._next is None else self._next[0])

    def arrived(self, request: WaitingRequest, view: SimulatedView) -> None:
        now_s, one = view.now_s, self._where.get(request.request_id)
        is_line = self._options.one_queue or request.rank != self._urgent
        if one is not None:  # the time to drain is over
            if not is_line and request.generated_tokens:
                one.park(request.request_id, request.generated_tokens)
                return
            del self._where[request.request_id]
            one.ended(request.request_id, request.generated_tokens, now_s, complete=False)
        if not is_line:
            self._streams.append(request)
        elif request.due_s <= now_s and not self._options.one_queue:
            self._operations.append(Refuse(request.request_id))
        elif self._options.one_queue:
            self._store.accept(request, *view.expected_output(request))
        else:
            self._store.accept(request, line_output_tokens(request.most_tokens), 0.0)

    def began(self, request_id: str, view: SimulatedView) -> None:
        gateway = self._gateway_of.get(request_id)
        if gateway is not None:
            gateway.began(request_id, view.now_s)

    def ended(self, request_id: str, tokens: int, view: SimulatedView) -> None:
        sent = self._where.pop(request_id).ended(request_id, tokens, view.now_s, complete=True)
        if sent.ref is None:
            self._gateway_of.pop(request_id).ended(request_id, tokens, view.now_s)

    def tick(self, view: SimulatedView) -> Sequence[Operation]:
        now_s = view.now_s
        for agent in self._agents:
            agent.note()
        if self._next is not None and now_s >= self._next[0]:
            self._store.plan, self._next = self._next[1], None
        self._run_loops(now_s)
        refused = [request_id for gateway in self._gateways for request_id in gateway.let_go(now_s)]
        refused += [one.request_id for one in self._streams if not self._gateway_for(one).arrived(one, now_s)]
        for request_id in refused:
            del self._gateway_of[request_id]
        self._streams.clear()
        self._operations += [Refuse(request_id) for request_id in refused]
        for agent in self._agents:
            agent.pull(now_s)
        done = list(self._operations)
        self._operations.clear()
        return done

    def _gateway_for(self, request: WaitingRequest) -> SimulatedGateway:
        """Return the gateway through which a request comes."""
        if request.request_id not in self._gateway_of:
            self._gateway_of[request.request_id] = self._gateways[int(self._draws.integers(len(self._gateways)))]
        return self._gateway_of[request.request_id]

    def _run_loops(self, now_s: float) -> None:
        if "share" in self._every_s and self._is_due("share", now_s):
            for agent in self._agents:
                agent.share(now_s)
        if self._is_due("beat", now_s):
            for agent in self._agents:  # each reads what the others wrote a round ago, the oldest that it may be
                others = [(one, now_s - at_s) for one, at_s in self._reports.values() if one.host != agent.host]
                agent.read_others(others, now_s)
            self._reports = {agent.host: (agent.report(now_s), now_s) for agent in self._agents}
        if self._is_due("report", now_s):
            self._demand = tuple(one.report(now_s, self._store.plan) for one in self._gateways), now_s
        if self._is_due("plan", now_s):
            self._plan(now_s)
        if now_s >= self._due_s["ask"] and not self._options.one_queue:
            for agent in self._agents:
                report = agent.report(now_s)
                for gateway in self._gateways:
                    gateway.asked(report, now_s)
        if self._is_due("look", now_s):
            self._look(now_s)
        periods = self._options.periods
        if now_s >= self._due_s["ask"]:
            self._due_s["ask"] = now_s + (periods.ask_soon_s if self._waits else periods.ask_s)
        elif self._waits:
            self._due_s["ask"] = min(self._due_s["ask"], now_s + periods.ask_soon_s)

    @property
    def _waits(self) -> bool:
        return any(gateway.waits for gateway in self._gateways)

    def _plan(self, now_s: float) -> None:
        instances = [one for agent in self._agents for one in agent.instances.values()]
        self._store.note_batches((str(one.serves), len(one.in_flight)) for one in instances if len(one.in_flight))
        durable = self._store.groups()
        reported = [one for report, _ in self._reports.values() for one in report.instances]
        there = [group.sums.ref for group in durable], [(one.active, one.phase) for one in reported]
        if there == self._planned_for[0] and now_s < self._planned_for[1] + REPLAN_S:
            return
        self._planned_for = there, now_s
        demand, reported_s = self._demand
        members = LiveMembers(
            tuple((report, now_s - at_s) for report, at_s in self._reports.values()),
            tuple((one, now_s - reported_s) for report in demand for one in report.demand),
        )
        plan = self._planned(now_s, durable, members)
        took_s = self._cost.seconds(sum(map(len, plan.queues.values())))
        self._next = now_s + took_s, plan
        self._due_s["plan"] += took_s

    def _planned(self, now_s: float, durable: Sequence[Group], members: LiveMembers) -> PlanInForce:
        return self._maker.plan(now_s, durable, members, self._store.plan)

    def _look(self, now_s: float) -> None:
        if not self._options.one_queue:
            late = [held.request_id for held in self._store.expired(now_s)]
            late += [request_id for agent in self._agents for request_id in agent.expire(now_s)]
            self._operations += [Refuse(request_id) for request_id in late]
        for agent in self._agents:
            agent.look(now_s)

    def _send(self, request: WaitingRequest, instance: str) -> Refusal | None:
        return self._of[instance].send(request, instance, self._view.now_s)

    def _is_due(self, what: str, now_s: float) -> bool:
        is_due = now_s >= self._due_s[what]
        if is_due:
            self._due_s[what] = max(self._due_s[what] + self._every_s[what], now_s)
        return is_due
