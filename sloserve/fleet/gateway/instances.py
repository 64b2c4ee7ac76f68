"""The instances of a fleet as one gateway knows them: the last reports of their agents, and what it has sent since."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sloserve.core.spans import Phase
from sloserve.estimator.step_time.running_fit import RunningMean
from sloserve.fleet.contract.plan_in_force import Plan
from sloserve.fleet.contract.reports import AgentReport, InstanceReport
from sloserve.fleet.gateway.prediction import NOTHING, Forecast, Pace, Work, total
from sloserve.fleet.gateway.prefixes import Beginning, PrefixTable
from sloserve.scheduler.virtual_queues.contract import ModelState

FRESH_S: Final = 3.0
"""Seconds without a report from its agent after which an instance gets no requests."""

UNAVAILABLE: Final = "unavailable"
STATES: Final = ("active", "coming", "warm", "cold", UNAVAILABLE)
"""States of a model, from the readiest to the least ready."""

UNKNOWN: Final = Pace(None)
_ORDER: Final = {ModelState.ACTIVE: 0, ModelState.WARM: 1, ModelState.COLD: 2}


class GatewayInstance:
    """One instance. Its room is the room in its agent's report, less what was sent since, plus what has ended since."""

    def __init__(self, report: InstanceReport, endpoint: str) -> None:
        self.report, self.endpoint = report, endpoint
        self.prefixes = PrefixTable()
        self._computed, self._output = RunningMean(), RunningMean()
        self.seen_s = float("-inf")
        self.in_flight = 0
        """Number of requests sent there that have not ended."""
        self._sent = 0
        self._ended = 0
        self._refused_at: int | None = None
        self._is_gone = False
        self._since: dict[int, Work] = {}

    @property
    def name(self) -> str:
        return self.report.name

    @property
    def sent(self) -> int:
        """Number of requests sent there until now; returned with the report that counts them."""
        return self._sent

    @property
    def room(self) -> int:
        """Number of further requests that it should take now."""
        if self._refused_at is not None:
            return 0
        return self.report.room - len(self._since) + self._ended

    def reported(self, report: InstanceReport, endpoint: str, sent_before: int, now_s: float) -> None:
        """Take in a report of its agent.

        Args:
            report: Report on the instance.
            endpoint: Endpoint of its agent.
            sent_before: Value of :attr:`sent` when the report was asked for.
            now_s: Monotonic time in seconds.
        """
        if report.active != self.report.active or report.phase is not Phase.SERVING:
            self.prefixes.clear()
            self._computed, self._output = RunningMean(), RunningMean()
        else:
            self.prefixes.reported(report.cached)
        self.report, self.endpoint, self.seen_s = report, endpoint, now_s
        self._ended = 0
        if self._refused_at is not None and sent_before >= self._refused_at:
            self._refused_at, self._is_gone = None, False
        self._since = {number: work for number, work in self._since.items() if number >= sent_before}

    def serves(self, model: str, now_s: float) -> bool:
        """Return whether the model is active there, and its agent alive."""
        return self.report.phase is Phase.SERVING and self.is_for(model) and now_s - self.seen_s < FRESH_S

    def is_for(self, model: str) -> bool:
        """Return whether it has the model or is on its way to it, and no request has found it gone since."""
        return self.report.active == model and not self._is_gone

    def send(self, work: Work, prompt: Sequence[Beginning]) -> "SentRequest":
        """Record that a request goes there."""
        flight = SentRequest(self, self._sent)
        self._computed.add(max(work.prompt_tokens - self.prefixes.cached_tokens(prompt), 0.0))
        self._output.add(work.output_tokens)
        self._since[self._sent] = work
        self._sent += 1
        self.in_flight += 1
        self.prefixes.sent(prompt)
        return flight

    def times_s(self, pace: Pace, new: Work, prompt: Sequence[Beginning], held: Work = NOTHING) -> Forecast:
        """Return the expected times of a new request here.

        Args:
            pace: Speed of its model on the instance's device.
            new: Size of the new request.
            prompt: Beginnings of its prompt.
            held: Work that waits for the instance in the gateway.
        """
        sent, cached = total((*self._since.values(), held)), self.prefixes.cached_tokens(prompt)
        usual = Work(1, self._computed.value or 0.0, self._output.value or 0.0)
        return pace.times_s(self.report.running, sent, new, cached, usual)

    @property
    def requests(self) -> int:
        """Number of requests that it has, as far as is known here."""
        return self.report.running.requests + len(self._since)

    def ended(self, number: int) -> None:
        self.in_flight -= 1
        if self._since.pop(number, None) is None:
            self._ended += 1

    def refused(self, *, gone: bool = False) -> None:
        """Treat the instance as full until its agent reports room, in a report requested after the last request.

        Args:
            gone: Whether its model is taken to be gone until then, too.
        """
        self._refused_at, self._is_gone = self._sent, self._is_gone or gone


@dataclass(slots=True)
class SentRequest:
    """A request that was sent to an instance. The caller must end it once, however it ends."""

    instance: GatewayInstance
    number: int
    over: bool = False

    def end(self, *, refused: bool = False, gone: bool = False) -> None:
        """End the request at this instance.

        Args:
            refused: Whether the instance refused it, see :meth:`GatewayInstance.refused`.
            gone: Whether the model was gone, see the same method.
        """
        if not self.over:
            self.over = True
            self.instance.ended(self.number)
            if refused:
                self.instance.refused(gone=gone)


@dataclass(slots=True)
class Instances:
    """All instances that agents have reported, and the plan in force.

    Args:
        paces: Speeds by model and device.
        affinity: Whether expected hits in prefix caches count.
        plan: Plan in force; ``None`` for none.
        by_name: Instances by name.
    """

    paces: Mapping[tuple[str, str], Pace] = field(default_factory=dict)
    affinity: bool = True
    plan: Plan | None = None
    by_name: dict[str, GatewayInstance] = field(default_factory=dict)

    def reported(self, report: AgentReport, endpoint: str, sent_before: Mapping[str, int], now_s: float) -> None:
        """Take in an agent's report.

        Args:
            report: Report of the agent.
            endpoint: Endpoint of the agent.
            sent_before: Value of :attr:`GatewayInstance.sent` of each instance when the report was asked for, by name.
            now_s: Monotonic time in seconds.
        """
        for one in report.instances:
            if one.name not in self.by_name:
                self.by_name[one.name] = GatewayInstance(one, endpoint)
            self.by_name[one.name].reported(one, endpoint, sent_before.get(one.name, 0), now_s)

    def lost(self, endpoint: str) -> None:
        """Note that an agent cannot be reached: nothing goes to its instances until it reports again."""
        for instance in self.by_name.values():
            if instance.endpoint == endpoint:
                instance.seen_s = float("-inf")

    def keep_only(self, endpoints: Collection[str]) -> Collection[str]:
        """Forget the instances behind all other endpoints, since hosts may come under ever new names.

        Instances that still serve a request are kept. Returns: the endpoints of all that are left.
        """
        self.by_name = {name: one for name, one in self.by_name.items() if one.endpoint in endpoints or one.in_flight}
        return {*endpoints, *(one.endpoint for one in self.by_name.values())}

    def sent(self) -> dict[str, int]:
        """Return the number of requests sent to each instance until now, by its name."""
        return {name: instance.sent for name, instance in self.by_name.items()}

    def choose(
        self, model: str, slo_class: str, work: Work, prompt: Sequence[Beginning], now_s: float
    ) -> GatewayInstance | None:
        """Choose the instance that a request should go to now; return ``None`` if no instance has room.

        The candidates are the instances with room that the plan names for it, or else all with room that serve its
        model. The one is chosen where the request costs the least time: its own time and the delay of the requests
        that are there. A prompt goes where its prefix is, unless the queue there costs more than to compute the prefix
        again.
        """
        able = [i for i in self.by_name.values() if i.serves(model, now_s) and i.room > 0]
        if len(able) > 1 and self.plan is not None:
            planned = self.plan.instances_of(model, slo_class)
            able = sorted((i for i in able if i.name in planned), key=lambda i: planned.index(i.name)) or able
        if len(able) < 2:
            return able[0] if able else None
        known = prompt if self.affinity else ()

        def cost_s(one: GatewayInstance) -> float:
            return one.times_s(self.paces.get((model, one.report.device), UNKNOWN), work, known).cost_s

        return min(able, key=cost_s)

    def state_of(self, model: str, now_s: float) -> str:
        """Return the best state of a model on any instance: one of :data:`STATES`.

        ``unavailable`` means that no live instance has the model.
        """
        alive = [i for i in self._alive(now_s) if model in i.report.models]
        if any(i.serves(model, now_s) for i in alive):
            return "active"
        if any(i.report.active == model and i.report.phase in (Phase.DRAINING, Phase.SWITCHING) for i in alive):
            return "coming"
        states = [i.report.models[model] for i in alive]
        if not states:
            return UNAVAILABLE
        best = min(states, key=_ORDER.__getitem__)
        return "warm" if best is ModelState.ACTIVE else best.value

    def serving(self, model: str, now_s: float) -> list[GatewayInstance]:
        """Return the instances that serve the model now."""
        return [instance for instance in self.by_name.values() if instance.serves(model, now_s)]

    def service_s(self, now_s: float) -> Mapping[str, float]:
        """Return the recent service of the tenants in all live instances, in seconds by name."""
        found = Counter[str]()
        for instance in self._alive(now_s):
            found.update(instance.report.service_s)
        return found

    def ready_in_s(self, model: str, now_s: float) -> float | None:
        """Return the seconds until an instance should serve the model; ``None`` if none is on its way to it."""
        coming = (i for i in self._alive(now_s) if i.is_for(model))
        return min((max(i.report.ready_in_s - (now_s - i.seen_s), 0.0) for i in coming), default=None)

    def _alive(self, now_s: float) -> Iterable[GatewayInstance]:
        return [i for i in self.by_name.values() if now_s - i.seen_s < FRESH_S]
