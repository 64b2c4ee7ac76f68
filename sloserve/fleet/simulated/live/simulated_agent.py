"""An agent in virtual time: follows the plan on the instances of one host, and pulls lines for them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from sloserve.core.clock import ManualClock
from sloserve.fleet.agent.claims import lines_to_claim, may_leave
from sloserve.fleet.agent.giving_way import LineInEngine, lines_to_preempt, running_groups
from sloserve.fleet.agent.orders import agendas, planned
from sloserve.fleet.agent.recently_sent import RecentlySent
from sloserve.fleet.agent.tenant_service import TenantService
from sloserve.fleet.contract.endpoint import Refusal
from sloserve.fleet.contract.reports import AgentReport
from sloserve.fleet.fleet import Fleet
from sloserve.fleet.gateway.prefixes import names_of
from sloserve.fleet.planner_rule import preempts_lines
from sloserve.fleet.simulated.dispatcher import (
    Drop,
    Give,
    InstanceView,
    Operation,
    Preempt,
    SetElsewhere,
    Switch,
    WaitingRequest,
    Warm,
)
from sloserve.fleet.simulated.live.agent_instance import NO_SERVICE, AgentInstance
from sloserve.fleet.simulated.live.live_options import Options
from sloserve.fleet.simulated.live.simulated_gateway import beginnings_of
from sloserve.fleet.simulated.live.simulated_store import SimulatedStore
from sloserve.scheduler.virtual_queues.contract import ModelState
from sloserve.scheduler.virtual_queues.fleet_operations import Queued


class SimulatedAgent:
    """Decides for the instances of one host, and appends orders for them to ``operations``."""

    def __init__(
        self,
        host: str,
        fleet: Fleet,
        views: Iterable[InstanceView],
        *,
        store: SimulatedStore,
        options: Options,
        operations: list[Operation],
        where: dict[str, AgentInstance],
    ) -> None:
        self.host, self._store, self._options, self._operations = host, store, options, operations
        self._switching, self._where = fleet.switching, where
        self.instances = {
            view.name: AgentInstance(view, options.places, recent=RecentlySent() if options.reported_prefixes else None)
            for view in views
        }
        self._agendas = agendas(fleet, self.instances)
        if not options.warm:
            self._agendas = {name: replace(one, host_bytes=0) for name, one in self._agendas.items()}
        self._preempted: dict[str, int] = {}
        shares = fleet.settings.tenant_shares if options.share else None
        self._clock = ManualClock(0.0)
        self._service = None if shares is None else TenantService(shares.half_life_s, self._clock)

    def report(self, now_s: float) -> AgentReport:
        """Return the same report as a live agent."""
        drain_max_s, service = self._switching.drain_max_s, self._service
        self._clock.advance_to(now_s)
        found = tuple(
            one.report(now_s, drain_max_s, NO_SERVICE if service is None else service.of_instance(name))
            for name, one in self.instances.items()
        )
        return AgentReport(self.host, self.host, found)

    def read_others(self, reports: Iterable[tuple[AgentReport, float]], now_s: float) -> None:
        """Read what tenants have had on the other hosts, from their reports with their ages in seconds."""
        if self._service is not None:
            self._clock.advance_to(now_s)
            self._service.read_others(reports)

    def share(self, now_s: float) -> None:
        """Take in what tenants have had in the engines that serve, and give each engine what they had elsewhere."""
        service = self._service
        if service is None:
            return
        self._clock.advance_to(now_s)
        for name, one in self.instances.items():
            service_s, model = one.view.service_s(), str(one.view.active)
            if service_s is not None:
                service.reported(name, model, service_s)
                self._operations.append(SetElsewhere(name, service.elsewhere(name, model)))

    def send(self, request: WaitingRequest, instance: str, now_s: float) -> Refusal | None:
        """Send a stream to an instance; return the reason if the instance refuses it."""
        one = self.instances[instance]
        refusal = one.refusal(request)
        if refusal is None:
            self._give(one, request, None, now_s)
            if one.recent is not None:
                one.recent.sent(names_of(beginnings_of(request)), now_s)
        return refusal

    def note(self) -> None:
        """Note the models that have come."""
        for one in self.instances.values():
            one.look()

    def look(self, now_s: float) -> None:
        """Look at the plan once, and follow it."""
        plan = self._store.plan
        queues = {} if plan is None else {name: planned(plan, name) for name in plan.queues}
        # As published an instance serves its own queue alone.
        others = [] if self._options.one_queue else [group for queue in queues.values() for group in queue]
        preempts = self._options.preempt and plan is not None and preempts_lines(plan.solver)
        for name, one in self.instances.items():
            if not one.is_switching:
                self._order(one, queues.get(name, []), others, now_s, preempts=preempts)

    def pull(self, now_s: float) -> None:
        """Continue parked streams, send lines where there is room, and abort lines of models that leave."""
        for one in self.instances.values():
            if one.is_switching:
                self._leave(one, now_s)
                continue
            for sent in one.resume():
                self._operations.append(Give(sent.request.request_id, one.view.name, sent.request.promised))
            if one.is_woken:
                one.is_woken = False
                self._pull(one, now_s)

    def expire(self, now_s: float) -> Iterator[str]:
        """Abort the lines that are due by now; yield the ids of the ones that no engine has."""
        for one in self.instances.values():
            late = [id for id, sent in one.sent.items() if sent.in_flight.durable and sent.request.due_s <= now_s]
            for request_id in late:
                self._preempt(one, request_id, now_s)
            yield from (held.request_id for _, held in one.at_hand if held.due_s <= now_s)
            one.at_hand = [(ref, held) for ref, held in one.at_hand if held.due_s > now_s]

    def _order(
        self,
        one: AgentInstance,
        queue: Sequence[Queued],
        others: Sequence[Queued],
        now_s: float,
        *,
        preempts: bool,
    ) -> None:
        options, view = self._options, one.view
        orders = self._agendas[view.name].orders(
            one.report(now_s, self._switching.drain_max_s, brief=True),
            queue,
            others,
            last_head=one.giving_way.head,
            running=running_groups(self._running(one, now_s), str(one.serves)) if preempts else (),
        )
        warm = orders.warm or ()
        one.giving_way = one.giving_way.after(orders, {ref for ref, _ in one.at_hand}, preempts=preempts)
        one.order = orders.pull
        one.empty.clear()
        one.is_woken = True
        sleeping = [model for model, state in view.models.items() if state is ModelState.WARM]
        self._operations += [Drop(view.name, model) for model in sleeping if model not in warm]
        cold = [model for model in warm if view.models[model] is ModelState.COLD and model != orders.switch_to]
        self._operations += [Warm(view.name, model) for model in cold[:1]]
        if orders.switch_to is not None:
            drain_s = min(one.in_flight.drain_s, self._switching.drain_max_s)
            one.ready_s = now_s + drain_s + view.swap_s(orders.switch_to)
            one.is_switching = True
            self._operations.append(Switch(view.name, orders.switch_to, keep_kv=options.swap))
            self._leave(one, now_s)

    def _running(self, one: AgentInstance, now_s: float) -> list[LineInEngine]:
        """Return the lines that the engine of the instance has."""
        return [
            LineInEngine(
                id,
                sent.ref,
                sent.request.due_s,
                sent.request.arrival_s,
                self._preempted.get(id, 0),
                sent.in_flight.begun_s < now_s,
            )
            for id, sent in one.sent.items()
        ]

    def _pull(self, one: AgentInstance, now_s: float) -> None:
        while True:
            room = one.room(durable=not self._options.one_queue)
            while room > 0 and one.at_hand:
                ref, held = one.at_hand.pop(0)
                self._give(one, held, ref, now_s)
                room -= 1
            if not room and self._make_room(one, now_s):
                if one.at_hand:
                    continue
                room = 1
            most = room if self._options.one_queue else lines_to_claim(room, len(one.at_hand))
            if not most or not self._claim(one, most):
                return

    def _claim(self, one: AgentInstance, most: int) -> bool:
        for group in one.order:
            if group.model == one.serves and group.ref not in one.empty:
                found = self._store.claim(group.ref, most)
                if found:
                    one.at_hand += [(group.ref, held) for held in found]
                    return True
                one.empty.add(group.ref)
        return False

    def _make_room(self, one: AgentInstance, now_s: float) -> bool:
        """Preempt running lines for one line of the first group; return whether a place is free for it."""
        giving_way, over = one.giving_way, 0 if self._options.one_queue else one.over
        if not giving_way.groups:
            return False
        at_hand = [(ref, held) for ref, held in one.at_hand if ref == giving_way.head]
        is_first = bool(one.order) and one.order[0].ref == giving_way.head
        if not at_hand and not (is_first and self._store.waiting(one.order[0].ref)):
            return False
        leaving = lines_to_preempt(giving_way, self._running(one, now_s), 1, over=over)
        if not leaving:
            return False
        # Lines of other groups at hand would take the place.
        one.at_hand = [(ref, held) for ref, held in one.at_hand if ref != giving_way.head]
        self._give_back(one)
        one.at_hand = at_hand
        for request_id in leaving:
            self._preempted[request_id] = self._preempted.get(request_id, 0) + 1
            self._preempt(one, request_id, now_s)
        return True

    def _leave(self, one: AgentInstance, now_s: float) -> None:
        """Let lines of a model that leaves continue while streams do, and then put them back."""
        lines = [id for id, sent in one.sent.items() if sent.in_flight.durable]
        if may_leave(True, bool(lines), one.in_flight.streams):
            for request_id in lines:
                self._preempt(one, request_id, now_s)
            self._give_back(one)

    def _give_back(self, one: AgentInstance) -> None:
        for _, held in reversed(one.at_hand):
            self._store.put_back(held)
        one.at_hand = []

    def _give(self, one: AgentInstance, request: WaitingRequest, ref: int | None, now_s: float) -> None:
        durable = ref is not None and (not self._options.one_queue or self._options.park)
        one.begin(request, ref, now_s, durable=durable)
        self._where[request.request_id] = one
        self._operations.append(Give(request.request_id, one.view.name, request.promised))

    def _preempt(self, one: AgentInstance, request_id: str, now_s: float) -> None:
        tokens = one.view.generated(request_id)
        one.ended(request_id, tokens, now_s, complete=False)
        del self._where[request_id]
        self._operations.append(Preempt(request_id, one.view.name, self._options.swap and self._options.one_queue))
