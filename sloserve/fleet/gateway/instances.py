"""The instances of a fleet as one gateway knows them: what their agents last said, and what it has sent since."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sloserve.core.spans import Phase
from sloserve.estimator.step_time.running_fit import RunningMean
from sloserve.fleet.contract.plan_in_force import Plan
from sloserve.fleet.contract.reports import AgentReport, InstanceReport
from sloserve.fleet.gateway.prediction import NOTHING, Pace, Work, total
from sloserve.fleet.gateway.prefixes import Beginning, PrefixTable
from sloserve.scheduler.virtual_queues.contract import ModelState

FRESH_S: Final = 3.0
"""An instance whose agent has said nothing for so long gets no requests."""

UNAVAILABLE: Final = "unavailable"
STATES: Final = ("active", "coming", "warm", "cold", UNAVAILABLE)
"""States of a model, the readiest first."""

UNKNOWN: Final = Pace(None)
_ORDER: Final = {ModelState.ACTIVE: 0, ModelState.WARM: 1, ModelState.COLD: 2}


class GatewayInstance:
    """One instance. Its room is what its agent said, less what was sent to it since, plus what has ended since."""

    def __init__(self, report: InstanceReport, door: str) -> None:
        self.report, self.door = report, door
        self.prefixes = PrefixTable()
        self._computed, self._output = RunningMean(), RunningMean()
        self.seen_s = float("-inf")
        self.in_flight = 0
        """Requests sent there that have not ended."""
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
        """How many requests went there so far; given back with the report that counts them."""
        return self._sent

    @property
    def room(self) -> int:
        """How many more requests it should take now."""
        if self._refused_at is not None:
            return 0
        return self.report.room - len(self._since) + self._ended

    def reported(self, report: InstanceReport, door: str, told: int, now_s: float) -> None:
        """What its agent says of it. told: :attr:`sent` when it was asked."""
        if report.active != self.report.active or report.phase is not Phase.SERVING:
            self.prefixes.clear()
            self._computed, self._output = RunningMean(), RunningMean()
        self.report, self.door, self.seen_s = report, door, now_s
        self._ended = 0
        if self._refused_at is not None and told >= self._refused_at:
            self._refused_at, self._is_gone = None, False
        self._since = {number: work for number, work in self._since.items() if number >= told}

    def serves(self, model: str, now_s: float) -> bool:
        """Whether the model is active there, and its agent alive."""
        return self.report.phase is Phase.SERVING and self.is_for(model) and now_s - self.seen_s < FRESH_S

    def is_for(self, model: str) -> bool:
        """Whether it has the model or is on its way to it, and no request has found it gone since."""
        return self.report.active == model and not self._is_gone

    def send(self, work: Work, prompt: Sequence[Beginning]) -> "SentRequest":
        """A request goes there."""
        flight = SentRequest(self, self._sent)
        self._computed.add(max(work.prompt_tokens - self.prefixes.cached_tokens(prompt), 0.0))
        self._output.add(work.output_tokens)
        self._since[self._sent] = work
        self._sent += 1
        self.in_flight += 1
        self.prefixes.sent(prompt)
        return flight

    def times_s(self, pace: Pace, new: Work, prompt: Sequence[Beginning], held: Work = NOTHING) -> tuple[float, float]:
        """First and last token of a new request, in seconds from now. held: what waits for it in the gateway."""
        sent, cached = total((*self._since.values(), held)), self.prefixes.cached_tokens(prompt)
        usual = Work(1, self._computed.value or 0.0, self._output.value or 0.0)
        return pace.times_s(self.report.running, sent, new, cached, usual)

    @property
    def requests(self) -> int:
        """How many requests it has, as far as is known here."""
        return self.report.running.requests + len(self._since)

    def ended(self, number: int) -> None:
        self.in_flight -= 1
        if self._since.pop(number, None) is None:
            self._ended += 1

    def refused(self, *, gone: bool = False) -> None:
        """It takes no more before its agent says so, in a report that is asked for after the last request was sent.
        gone: nor is its model there before that.
        """
        self._refused_at, self._is_gone = self._sent, self._is_gone or gone


@dataclass(slots=True)
class SentRequest:
    """A request that was sent to an instance. To be ended once, however it ends."""

    instance: GatewayInstance
    number: int
    over: bool = False

    def end(self, *, refused: bool = False, gone: bool = False) -> None:
        """refused, gone: see :meth:`GatewayInstance.refused`."""
        if not self.over:
            self.over = True
            self.instance.ended(self.number)
            if refused:
                self.instance.refused(gone=gone)


@dataclass(slots=True)
class Instances:
    """All instances that agents have told of, and the plan in force.

    Args:
        paces: by model and device.
        affinity: whether expected hits in prefix caches count.
    """

    paces: Mapping[tuple[str, str], Pace] = field(default_factory=dict)
    affinity: bool = True
    plan: Plan | None = None
    by_name: dict[str, GatewayInstance] = field(default_factory=dict)

    def reported(self, report: AgentReport, door: str, told: Mapping[str, int], now_s: float) -> None:
        """What an agent says behind its door. told: :attr:`GatewayInstance.sent` of each instance when it was asked."""
        for one in report.instances:
            if one.name not in self.by_name:
                self.by_name[one.name] = GatewayInstance(one, door)
            self.by_name[one.name].reported(one, door, told.get(one.name, 0), now_s)

    def lost(self, door: str) -> None:
        """An agent cannot be reached: nothing goes to its instances until it says something again."""
        for instance in self.by_name.values():
            if instance.door == door:
                instance.seen_s = float("-inf")

    def keep_only(self, doors: Collection[str]) -> Collection[str]:
        """Forgets the instances behind all other doors, since hosts may come under ever new names; not those that still
        answer a request. Returns: the doors of all that are left.
        """
        self.by_name = {name: one for name, one in self.by_name.items() if one.door in doors or one.in_flight}
        return {*doors, *(one.door for one in self.by_name.values())}

    def sent(self) -> dict[str, int]:
        """How many requests went to each instance so far, by its name."""
        return {name: instance.sent for name, instance in self.by_name.items()}

    def choose(
        self, model: str, slo_class: str, work: Work, prompt: Sequence[Beginning], now_s: float
    ) -> GatewayInstance | None:
        """Where a request should go now: of the instances that the plan names for it, else of all that serve its model,
        that with room which should complete it first. ``None`` where none has room.
        """
        able = [i for i in self.by_name.values() if i.serves(model, now_s) and i.room > 0]
        if len(able) > 1 and self.plan is not None:
            planned = self.plan.instances_of(model, slo_class)
            able = sorted((i for i in able if i.name in planned), key=lambda i: planned.index(i.name)) or able
        if len(able) < 2:
            return able[0] if able else None
        known = prompt if self.affinity else ()

        def completion_s(one: GatewayInstance) -> float:
            return one.times_s(self.paces.get((model, one.report.device), UNKNOWN), work, known)[1]

        return min(able, key=completion_s)

    def state_of(self, model: str, now_s: float) -> str:
        """Where the best copy of a model is: ``active``, ``coming``, ``warm``, ``cold``; ``unavailable``: nowhere."""
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
        """Those that serve the model now."""
        return [instance for instance in self.by_name.values() if instance.serves(model, now_s)]

    def ready_in_s(self, model: str, now_s: float) -> float | None:
        """When an instance should serve the model, as far as one is on its way to it."""
        coming = (i for i in self._alive(now_s) if i.is_for(model))
        return min((max(i.report.ready_in_s - (now_s - i.seen_s), 0.0) for i in coming), default=None)

    def _alive(self, now_s: float) -> Iterable[GatewayInstance]:
        return [i for i in self.by_name.values() if now_s - i.seen_s < FRESH_S]
