"""The instances of a fleet as one gateway knows them, and the choice of one for a request.

A choice takes the same time in a fleet of any size: in a small one all instances that take the request are compared,
in a large one the ones that may have its prefix and a few that are drawn (the power of d choices).
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from sloserve.core.spans import Phase
from sloserve.fleet.contract.plan_in_force import PlanInForce
from sloserve.fleet.contract.reports import AgentReport
from sloserve.fleet.gateway.gateway_instance import GatewayInstance, SendCounter, SentRequest
from sloserve.fleet.gateway.open_instances import Drawable, OpenInstances
from sloserve.fleet.gateway.prediction import Pace, Work
from sloserve.fleet.gateway.prefix_holders import MOST_HOLDERS, PrefixHolders
from sloserve.fleet.gateway.prefixes import Beginning
from sloserve.scheduler.virtual_queues.contract import ModelState

UNAVAILABLE: Final = "unavailable"
STATES: Final = ("active", "coming", "warm", "cold", UNAVAILABLE)
"""States of a model, from the readiest to the least ready."""

UNKNOWN: Final = Pace(None)
_ORDER: Final = {ModelState.ACTIVE: 0, ModelState.WARM: 1, ModelState.COLD: 2}
COMPARED: Final = 16
"""Most instances of a request's model, or of its group in the plan, that are all compared."""


class Instances:
    """All instances that agents have reported, and the plan in force."""

    def __init__(
        self, paces: Mapping[tuple[str, str], Pace] | None = None, affinity: bool = True, compared: float = COMPARED
    ) -> None:
        """Begin without instances.

        Args:
            paces: Speeds by model and device.
            affinity: Whether expected hits in prefix caches count.
            compared: Most instances that are all compared for one request.
        """
        self.paces, self.affinity, self._compared = paces or {}, affinity, compared
        self.by_name: dict[str, GatewayInstance] = {}
        """Instances by name."""
        self._behind: dict[str, dict[str, GatewayInstance]] = {}
        """Instances by the endpoint of their agent, and name."""
        self._active: dict[str, dict[str, GatewayInstance]] = {}
        """Instances by the model that is active or coming, and name."""
        self._open, self._holders, self._sends = OpenInstances(), PrefixHolders(), SendCounter()
        self._known = 0
        """Number of instances that were ever known."""
        self._plan: PlanInForce | None = None

    @property
    def plan(self) -> PlanInForce | None:
        """Plan in force; ``None`` for none."""
        return self._plan

    @plan.setter
    def plan(self, plan: PlanInForce | None) -> None:
        if plan is not self._plan:
            self._plan = plan
            self._open.follow(plan)

    def planned(self, model: str, slo_class: str) -> list[str]:
        """Return the names of the instances that the plan names for a group, the earliest place first."""
        return self._open.planned(model, slo_class)

    def reported(
        self,
        report: AgentReport,
        endpoint: str,
        sent_before: int,
        now_s: float,
        made_s: float = float("-inf"),
    ) -> None:
        """Take in an agent's report.

        Args:
            report: Report of the agent.
            endpoint: Endpoint of the agent.
            sent_before: Value of :meth:`sent` when the report was asked for.
            now_s: Monotonic time in seconds.
            made_s: Time after which the report was made, if the agent made it later than it was asked for it.
        """
        for one in report.instances:
            instance = self.by_name.get(one.name)
            if instance is None:
                instance = self.by_name[one.name] = GatewayInstance(
                    one, endpoint, self._sends, self._open.changed, self._known
                )
                self._known += 1
                self._index(instance)
            before = instance.endpoint, instance.active
            new = instance.reported(one, endpoint, sent_before, now_s, made_s)
            instance.prefixes.capacity_tokens = self._pace(instance.active, one.device).kv_tokens
            if (instance.endpoint, instance.active) != before:
                self._unindex(instance, *before)
                self._index(instance)
            if new and self._has_many:
                self._holders.sent(instance, new, self._sends.count)

    def unchanged(self, endpoint: str, sent_before: int, now_s: float, made_s: float) -> int:
        """Note that an agent's last report still holds; return the number of its instances that are known.

        Args:
            endpoint: Endpoint of the agent.
            sent_before: Value of :meth:`sent` when the agent was asked.
            now_s: Monotonic time in seconds.
            made_s: Time after which the agent looked.
        """
        behind = self._behind.get(endpoint, {})
        for instance in behind.values():
            instance.reported(instance.report, endpoint, sent_before, now_s, made_s)
        return len(behind)

    def lost(self, endpoint: str) -> None:
        """Note that an agent cannot be reached: nothing goes to its instances until it reports again."""
        for instance in self._behind.get(endpoint, {}).values():
            instance.lost()

    def keep_only(self, endpoints: Collection[str]) -> Collection[str]:
        """Forget the instances behind all other endpoints, since hosts may come under ever new names.

        Instances that still serve a request are kept. Returns: the endpoints of all that are left.
        """
        gone = [
            one
            for endpoint, behind in self._behind.items()
            if endpoint not in endpoints
            for one in behind.values()
            if not one.in_flight
        ]
        for one in gone:
            del self.by_name[one.name]
            self._unindex(one, one.endpoint, one.active)
            self._open.forget(one)
        return {*endpoints, *self._behind}

    def sent(self) -> int:
        """Return the number of requests sent until now, by which a report says which of them it contains."""
        return self._sends.count

    def send(self, instance: GatewayInstance, work: Work, prompt: Sequence[Beginning], now_s: float) -> SentRequest:
        """Record that a request goes to an instance.

        Args:
            instance: The instance.
            work: Size of the request.
            prompt: Beginnings of its prompt.
            now_s: Monotonic time in seconds.
        """
        if self._has_many:
            self._holders.sent(instance, prompt, self._sends.count)
        return instance.send(work, prompt, now_s)

    def choose(
        self,
        model: str,
        slo_class: str,
        work: Work,
        prompt: Sequence[Beginning],
        now_s: float,
        among: Collection[str] | None = None,
    ) -> GatewayInstance | None:
        """Choose the instance that a request should go to now; return ``None`` if no instance has room.

        The candidates are the instances with room that the plan names for it, or else all with room that serve its
        model. Of more than :data:`COMPARED`, the ones that may have its prefix are compared and some that are drawn.
        The one is chosen where the request costs the least time: its own time and the delay of the requests that are
        there. A prompt goes where its prefix is, unless the queue there costs more than to compute the prefix again.

        Args:
            model: Model that the request asks for.
            slo_class: Name of its class.
            work: Size of the request.
            prompt: Beginnings of its prompt.
            now_s: Monotonic time in seconds.
            among: Names of the instances that it may go to; ``None`` for all.
        """
        candidates = self._candidates(model, slo_class, prompt if self.affinity else (), now_s, among)
        return self._cheapest(candidates, model, work, prompt)

    def choose_full(
        self, model: str, work: Work, prompt: Sequence[Beginning], now_s: float, among: Collection[str] | None = None
    ) -> GatewayInstance | None:
        """Choose the instance for a request that has to go to one now, whether or not an instance has room.

        The time grows with the number of instances that serve the model. Returns: ``None`` if none serves it.
        """
        serving = [one for one in self.serving(model, now_s) if among is None or one.name in among]
        return self._cheapest(serving, model, work, prompt)

    def _cheapest(
        self, candidates: Sequence[GatewayInstance], model: str, work: Work, prompt: Sequence[Beginning]
    ) -> GatewayInstance | None:
        """Return the instance where a request costs the least time, the first of equal ones; ``None`` of none."""
        if len(candidates) < 2:
            return candidates[0] if candidates else None
        known = prompt if self.affinity else ()

        def cost_s(one: GatewayInstance) -> float:
            return one.times_s(self._pace(model, one.report.device), work, known).cost_s

        return min(candidates, key=cost_s)

    def _pace(self, model: str | None, device: str) -> Pace:
        return UNKNOWN if model is None else self.paces.get((model, device), UNKNOWN)

    def _candidates(
        self, model: str, slo_class: str, prompt: Sequence[Beginning], now_s: float, among: Collection[str] | None
    ) -> list[GatewayInstance]:
        """Return the instances to compare, in an order by which the first of equal ones is taken."""
        planned, every = self._open.of(model, slo_class), self._open.of(model)
        if among is not None:
            planned, every = planned.within(among), every.within(among)
        if len(planned):
            found = self._of(planned, prompt, now_s)
            if found:
                return sorted(found, key=lambda one: self._open.place(model, slo_class, one.name))
        return sorted(self._of(every, prompt, now_s), key=_by_number)

    def _of(self, takes: Drawable, prompt: Sequence[Beginning], now_s: float) -> list[GatewayInstance]:
        """Return the instances of ``takes`` to compare; none only if no agent of them has reported lately."""
        if len(takes) > self._compared:
            found: dict[GatewayInstance, None] = {}
            for one in self._holders.of(prompt):
                if one in takes and one.is_fresh(now_s):
                    found[one] = None
                    if len(found) == MOST_HOLDERS:
                        break
            seed = self._sends.count ^ (int.from_bytes(prompt[-1].digest[:8]) if prompt else 0)
            found |= dict.fromkeys(takes.draw(seed, now_s))
            if found:
                return list(found)
        return [one for one in takes if one.is_fresh(now_s)]

    def state_of(self, model: str, now_s: float) -> str:
        """Return the best state of a model on any instance: one of :data:`STATES`.

        ``unavailable`` means that no live instance has the model.
        """
        alive = [i for i in self._active.get(model, {}).values() if i.is_fresh(now_s)]
        if any(i.serves(model, now_s) for i in alive):
            return "active"
        if any(i.report.phase in (Phase.DRAINING, Phase.SWITCHING) for i in alive):
            return "coming"
        states = [i.report.models[model] for i in self._alive(now_s) if model in i.report.models]
        if not states:
            return UNAVAILABLE
        best = min(states, key=_ORDER.__getitem__)
        return "warm" if best is ModelState.ACTIVE else best.value

    def serving(self, model: str, now_s: float) -> list[GatewayInstance]:
        """Return the instances that serve the model now, in the order in which they became known."""
        of_model = self._active.get(model, {}).values()
        return sorted((instance for instance in of_model if instance.serves(model, now_s)), key=_by_number)

    def service_s(self, now_s: float) -> Mapping[str, float]:
        """Return the recent service of the tenants in all live instances, in seconds by name."""
        found = Counter[str]()
        for instance in self._alive(now_s):
            found.update(instance.report.service_s)
        return found

    def ready_in_s(self, model: str, now_s: float) -> float | None:
        """Return the seconds until an instance should serve the model; ``None`` if none is on its way to it."""
        of_model = self._active.get(model, {}).values()
        coming = (i for i in of_model if i.is_fresh(now_s) and i.is_for(model))
        return min((max(i.report.ready_in_s - (now_s - i.seen_s), 0.0) for i in coming), default=None)

    @property
    def _has_many(self) -> bool:
        """Whether choices may soon leave instances out, so that holders of prefixes must be known."""
        return self.affinity and 2 * len(self.by_name) > self._compared

    def _alive(self, now_s: float) -> Iterable[GatewayInstance]:
        return (one for one in self.by_name.values() if one.is_fresh(now_s))

    def _index(self, one: GatewayInstance) -> None:
        self._behind.setdefault(one.endpoint, {})[one.name] = one
        if one.active is not None:
            self._active.setdefault(one.active, {})[one.name] = one

    def _unindex(self, one: GatewayInstance, endpoint: str, active: str | None) -> None:
        for index, key in ((self._behind, endpoint), (self._active, active)):
            if key is not None and key in index:
                index[key].pop(one.name, None)
                if not index[key]:
                    del index[key]


def _by_number(one: GatewayInstance) -> int:
    return one.number
