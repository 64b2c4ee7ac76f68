"""Reports of agents and gateways on themselves, as values that become JSON and back.

All times are durations, counted from when the report was made: no two clocks are ever compared. A reader adds the age
that the store, or its own clock, gives the report.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

import msgspec

from sloserve.core.spans import Phase
from sloserve.scheduler.virtual_queues.contract import ModelState, RunningSums

AGENT: Final = "agent"
GATEWAY: Final = "gateway"

T = TypeVar("T", "AgentReport", "GatewayReport")


@dataclass(frozen=True, slots=True)
class InstanceReport:
    """Report on one instance of an agent.

    Args:
        name: Name as in the fleet's file, for example ``node-a/0``.
        device: Kind of its device.
        phase: See :class:`~sloserve.core.spans.Phase`.
        models: Place of the weights of each model that it can serve, by model. From the moment that it drains for
            another model, the coming model is the active one.
        active_for_s: Seconds for which the active model has been active; ``None`` if no model is.
        ready_in_s: Seconds until the coming model is expected to serve; 0 if none comes.
        running: Load of its engine, streams and durable requests together; while it drains, the load of the leaving
            model.
        streams: Number of these requests that are streamed to clients.
        room: Number of further requests that it takes now.
        room_for_streams: Number of these places that are reserved for streams; lines of batches may not use them.
        cached: Tokens of each prompt that streams brought in the last seconds, and that its prefix cache should have by
            now, by digest; bounded, newest last. Only the endpoint reports it, for gateways.
        tasks: Tasks with calls that streams brought in the last seconds, by key, each as its gateway stated it (see
            :mod:`~sloserve.fleet.contract.reported_tasks`); bounded, newest last. Only the endpoint reports it.
        drain_s: Expected seconds until all that it runs has ended, or is parked, if its model were to leave now;
            planners count it as part of the swap.
        parked: Number of streams that wait in sleeping engines, by model; they continue once it is active again.
        service_s: Recent service of the tenants in its engines, decayed, in seconds by name, of the ``MOST_REPORTED``
            with most; empty where tenants have no shares.
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
    tasks: Mapping[str, str] = field(default_factory=dict)
    drain_s: float = 0.0
    parked: Mapping[str, int] = field(default_factory=dict)
    service_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def active(self) -> str | None:
        """The model that is active, or is coming in."""
        return next((model for model, state in self.models.items() if state is ModelState.ACTIVE), None)

    def for_store(self) -> "InstanceReport":
        """Return the report without what changes with each request, and only gateways read."""
        return replace(self, cached={}, tasks={})


def standing_of(one: InstanceReport) -> tuple[Phase, str | None, int]:
    """Return the phase, the model and the size of the room, as the number of its binary digits.

    Gateways should know of a change at once; of the load they should know soon.
    """
    return one.phase, one.active, one.room.bit_length()


@dataclass(frozen=True, slots=True)
class MeasuredSwap:
    """A swap of models that an agent has seen: see :class:`sloserve.scheduler.virtual_queues.contract.Swap`.

    Args:
        device: Kind of the device.
        leaving: Model that left; ``None`` if the instance had none.
        coming: Model that came.
        state: Place of the coming model's weights before the swap.
        seconds: Time from the last token of the model that left to the first step of the one that came; a mean if it
            was seen more than once.
    """

    device: str
    leaving: str | None
    coming: str
    state: ModelState
    seconds: float


@dataclass(frozen=True, slots=True)
class AgentReport:
    """Report of an agent on its host and its instances.

    Args:
        host: Name of the host as in the fleet's file.
        door: Address of its endpoint, ``unix:PATH``, ``http://HOST:PORT`` or ``https://HOST:PORT#HOST``.
        instances: Reports on its instances.
        plan: Term and version of the plan that it follows; ``None`` for none.
        swaps: Swaps that it has measured.
        held_bytes: Bytes of host memory that sleeping models hold, by model.
        kind: Kind of the member, which distinguishes its state in the store.
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
        model: Model of the requests.
        slo_class: Name of their class.
        held: Number of requests that wait in the gateway.
        prompt_tokens, output_tokens, output_tokens2: Sum of the held requests' prompt tokens, of their expected output
            tokens, and of the squares of the latter.
        first_due_in_s, last_due_in_s: Seconds until the first and the last held request is wanted, by its deadline or
            the end of its allowed wait; ``None`` for none.
        oldest_s: Seconds for which the oldest has waited.
        until_first_token: Whether the deadlines are for first tokens.
        rate_per_s: Recent arrivals per second.
        mean_prompt_tokens, mean_output_tokens: Means over recent requests.
        target_s: Seconds that their class has for a first token or the whole output, whichever is shorter; ``None`` for
            no target.
        weight: Cost of a second of lateness.
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
    """Report of one gateway on the requests that come through it."""

    demand: tuple[Demand, ...] = ()
    kind: str = GATEWAY


def to_json(report: AgentReport | GatewayReport) -> dict[str, Any]:
    """Return plain values for :meth:`sloserve.fleet.store.members.Members.beat`, or for an agent's endpoint."""
    made: dict[str, Any] = msgspec.to_builtins(report)
    return made


def agent_report(state: Mapping[str, Any]) -> AgentReport | None:
    """Read an agent's report; ``None`` if another kind of member or an unreadable version wrote the state."""
    return _report(state, AGENT, AgentReport)


def gateway_report(state: Mapping[str, Any]) -> GatewayReport | None:
    """Read a gateway's report, as :func:`agent_report` does for an agent."""
    return _report(state, GATEWAY, GatewayReport)


def _report(state: Mapping[str, Any], kind: str, made: type[T]) -> T | None:
    if state.get("kind") != kind:
        return None
    try:
        return msgspec.convert(dict(state), made)
    except msgspec.ValidationError:
        return None
