"""What agents and gateways tell the others of themselves, as values that become JSON and back.

All times are durations, counted from when the report was made: no two clocks are ever compared. A reader adds the age
that the store, or its own clock, gives the report.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec

from sloserve.core.spans import Phase
from sloserve.scheduler.virtual_queues.contract import ModelState, RunningSums

AGENT: Final = "agent"
GATEWAY: Final = "gateway"

T = TypeVar("T", "AgentReport", "GatewayReport")


@dataclass(frozen=True, slots=True)
class InstanceReport:
    """One instance of an agent's.

    Args:
        name: as the fleet's file has it, ``node-a/0``.
        device: its kind.
        phase: see :class:`~sloserve.core.spans.Phase`.
        models: of each model that it can serve, where the weights are. From the moment that it drains for another, the
            model that comes is active.
        active_for_s: for how long the active model has been that; ``None`` where none is.
        ready_in_s: when the model that comes is expected to serve; 0 where none does.
        running: what its engine has, streams and durable requests together; while it drains, of the model that leaves.
        streams: how many of these are streamed to clients.
        room: how many more requests it takes now.
        room_for_streams: so many of these places lines of batches leave to streams.
        cached: of each prefix that it is known to have in its cache, by digest, the tokens; bounded, newest last.
        drain_s: how long what it runs is expected to take until it has ended, or is parked, if its model were to leave
            now; planners count it as part of the swap.
        parked: streams that wait in engines which sleep, by model; they go on once it is active again.
    """

    name: str
    device: str
    phase: Phase
    models: Mapping[str, ModelState]
    active_for_s: float | None = None
    ready_in_s: float = 0.0
    running: RunningSums = RunningSums()
    streams: int = 0
    room: int = 0
    room_for_streams: int = 0
    cached: Mapping[str, int] = field(default_factory=dict)
    drain_s: float = 0.0
    parked: Mapping[str, int] = field(default_factory=dict)

    @property
    def active(self) -> str | None:
        """The model that is active, or comes in."""
        return next((model for model, state in self.models.items() if state is ModelState.ACTIVE), None)


@dataclass(frozen=True, slots=True)
class MeasuredSwap:
    """A swap of models that an agent has seen: see :class:`sloserve.scheduler.virtual_queues.contract.Swap`.

    seconds: from the last token of the model that left to the first step of the one that came; a mean where it was seen
    more than once.
    """

    device: str
    leaving: str | None
    coming: str
    state: ModelState
    seconds: float


@dataclass(frozen=True, slots=True)
class AgentReport:
    """Args:
    host: as the fleet's file has it.
    door: where its door is, ``unix:PATH``, ``http://HOST:PORT`` or ``https://HOST:PORT#HOST``.
    plan: term and version of the plan that it follows; ``None`` for none.
    swaps: those that it has measured.
    held_bytes: host memory that sleeping models hold, by model.
    """

    host: str
    door: str
    instances: tuple[InstanceReport, ...]
    plan: tuple[int, int] | None = None
    swaps: tuple[MeasuredSwap, ...] = ()
    held_bytes: Mapping[str, int] = field(default_factory=dict)
    kind: str = AGENT


@dataclass(frozen=True, slots=True)
class Demand:
    """Requests of one model and class that come through one gateway and are streamed to their clients.

    Args:
        held: how many wait in the gateway.
        prompt_tokens, output_tokens, output_tokens2: of those held: summed, expected and summed, expected squares.
        first_due_in_s, last_due_in_s: by when those held are wanted, their deadlines or what is left of their wait;
            ``None`` for none.
        oldest_s: for how long the oldest has waited.
        until_first_token: the deadlines are those of first tokens.
        rate_per_s: how many come a second, lately.
        mean_prompt_tokens, mean_output_tokens: of those that came lately.
        target_s: the time that their class has for a first token or the whole reply, the shorter; ``None`` for none.
        weight: what a second of lateness counts.
    """

    model: str
    slo_class: str
    held: int = 0
    prompt_tokens: float = 0.0
    output_tokens: float = 0.0
    output_tokens2: float = 0.0
    first_due_in_s: float | None = None
    last_due_in_s: float | None = None
    oldest_s: float = 0.0
    until_first_token: bool = False
    rate_per_s: float = 0.0
    mean_prompt_tokens: float = 0.0
    mean_output_tokens: float = 0.0
    target_s: float | None = None
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class GatewayReport:
    """What comes through one gateway."""

    demand: tuple[Demand, ...] = ()
    kind: str = GATEWAY


def to_json(report: AgentReport | GatewayReport) -> dict[str, Any]:
    """Plain values for :meth:`sloserve.fleet.store.members.Members.beat`, or for a door."""
    made: dict[str, Any] = msgspec.to_builtins(report)
    return made


def agent_report(state: Mapping[str, Any]) -> AgentReport | None:
    """``None`` where the state is that of another kind of member, or of a version that this one cannot read."""
    return _report(state, AGENT, AgentReport)


def gateway_report(state: Mapping[str, Any]) -> GatewayReport | None:
    """As :func:`agent_report`."""
    return _report(state, GATEWAY, GatewayReport)


def _report(state: Mapping[str, Any], kind: str, made: type[T]) -> T | None:
    if state.get("kind") != kind:
        return None
    try:
        return msgspec.convert(dict(state), made)
    except msgspec.ValidationError:
        return None
