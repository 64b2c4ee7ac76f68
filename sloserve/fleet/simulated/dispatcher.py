"""The contract between a fleet and its dispatcher: who serves which request, and which model is where.

A dispatcher sees what a live gateway and its agents could: its own requests and how many tokens of each have come back,
where the weights of each model are, what engines publish of themselves, and how long the replies of a model were so
far. Times are seconds from the start of the run.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from sloserve.core.request import PREFIX_BLOCK_TOKENS, WorkloadRequest
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.estimator.step_time.profile import Profile
from sloserve.fleet.fleet import Fleet
from sloserve.scheduler.virtual_queues.contract import ModelState


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """A request that no engine has.

    prompt_tokens: with what other engines generated. due_s: the deadline that comes next
    (:meth:`~sloserve.core.slo.Targets.next_s`), inf where nothing is promised. kept_on: the instance that keeps the KV
    of its first ``kept_tokens`` tokens in host memory, if one does. prefix_ids, prefix_block_tokens: as of
    :class:`~sloserve.core.request.WorkloadRequest`. slo_class: name of its class. most_tokens: limit of its reply that
    it states.
    """

    request_id: str
    model: str
    prompt_tokens: int
    arrival_s: float
    due_s: float
    rank: int
    until_first_token: bool = False
    generated_tokens: int = 0
    kept_on: str | None = None
    kept_tokens: int = 0
    prefix_ids: tuple[int, ...] = ()
    prefix_block_tokens: int = PREFIX_BLOCK_TOKENS
    slo_class: str = ""
    most_tokens: int | None = None


def waiting_request(
    request: WorkloadRequest,
    generated_tokens: int = 0,
    kept_on: str | None = None,
    kept_tokens: int = 0,
    *,
    oracle: bool = False,
) -> WaitingRequest:
    """What a dispatcher is told of ``request``. oracle: its limit is how long its reply will be."""
    targets = request.slo.targets
    limit_s = targets.next_s(begun=generated_tokens > 0)
    return WaitingRequest(
        request_id=request.request_id,
        model=request.model,
        prompt_tokens=request.prompt_tokens + generated_tokens,
        arrival_s=request.arrival_s,
        due_s=math.inf if limit_s is None else request.arrival_s + limit_s,
        rank=request.slo.slo_class.rank,
        until_first_token=not generated_tokens and limit_s is not None and limit_s == targets.ttft_s,
        generated_tokens=generated_tokens,
        kept_on=kept_on,
        kept_tokens=kept_tokens,
        prefix_ids=request.prefix_ids,
        prefix_block_tokens=request.prefix_block_tokens,
        slo_class=request.slo.slo_class.name,
        most_tokens=request.output_tokens if oracle else request.max_tokens,
    )


@dataclass(frozen=True, slots=True)
class Give:
    """The instance serves the request, whose model is active there."""

    request_id: str
    instance: str


@dataclass(frozen=True, slots=True)
class Switch:
    """The instance takes no more requests, lets its streams end, and then makes ``model`` active.

    What has not ended after the fleet's ``drain_max_s`` goes back to the queue with what it has. keep_kv: its KV is
    kept in the host's swap space, where that is worth it; else it is lost.
    """

    instance: str
    model: str
    keep_kv: bool = True


@dataclass(frozen=True, slots=True)
class Preempt:
    """The request leaves its engine and goes back to the queue with what it has. keep_kv: as of a switch."""

    request_id: str
    instance: str
    keep_kv: bool = True


@dataclass(frozen=True, slots=True)
class Warm:
    """The model's weights are read from disk into host memory, beside what the instance serves, if there is room."""

    instance: str
    model: str


@dataclass(frozen=True, slots=True)
class Drop:
    """The model's weights leave host memory."""

    instance: str
    model: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """The request is turned away."""

    request_id: str


Operation = Give | Switch | Preempt | Warm | Drop | Refuse


class InstanceView(Protocol):
    """One instance, as its agent sees it."""

    @property
    def name(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def models(self) -> Mapping[str, ModelState]:
        """Where the weights are, of each model that it can serve. During a switch the model that comes is active."""
        ...

    @property
    def active(self) -> str | None:
        """The model that is active, or comes in."""
        ...

    @property
    def serving(self) -> bool:
        """Whether it takes requests: not while it drains or swaps."""
        ...

    @property
    def activated_s(self) -> float: ...
    @property
    def ready_s(self) -> float:
        """When a switch in progress is expected to be over; the present where there is none."""
        ...

    @property
    def num_in_flight(self) -> int: ...
    @property
    def in_flight(self) -> Sequence[WaitingRequest]:
        """What its engine has, oldest first."""
        ...

    def generated(self, request_id: str) -> int:
        """Tokens that have come back of one in flight."""
        ...

    def can_switch(self) -> bool:
        """Whether it serves, and has its model for long enough."""
        ...

    def profile(self, model: str) -> Profile:
        """Step times of the model on its devices."""
        ...

    def limits(self, model: str) -> EngineSettings:
        """Size and limits of the model's engine."""
        ...

    def swap_s(self, model: str) -> float:
        """How long it takes to make ``model`` active once streams have ended."""
        ...


class FleetView(Protocol):
    """The fleet, as its gateway sees it."""

    @property
    def fleet(self) -> Fleet:
        """As its file says."""
        ...

    @property
    def now_s(self) -> float: ...
    @property
    def instances(self) -> Sequence[InstanceView]: ...
    def expected_output(self, request: WaitingRequest, generated: int = 0) -> tuple[float, float]:
        """Mean and standard deviation of the tokens that are still to come of its reply, after ``generated`` in all."""
        ...


class Dispatcher(ABC):
    """Which instance serves which request, and which model does each instance have?

    Deterministic: what it answers follows from what it was told, and its seed. Each request is held from ``arrived``
    until it is in a :class:`Give` or a :class:`Refuse`; one that goes back to the queue arrives again.
    """

    @property
    def has_swap_space(self) -> bool:
        """Whether engines have the swap space that the fleet's file gives them; asked once, before the run."""
        return True

    @abstractmethod
    def begin(self, view: FleetView) -> Sequence[Switch]:
        """The models to begin with, where they are not those of the fleet's file; they cost nothing."""

    @property
    def wakes_s(self) -> float:
        """When it has something to do of its own accord, and is asked whatever else happens; inf for never."""
        return math.inf

    @abstractmethod
    def arrived(self, request: WaitingRequest, view: FleetView) -> None:
        """A request is held from now on."""

    def ended(self, request_id: str, tokens: int, view: FleetView) -> None:
        """A request that an instance served is over, after ``tokens`` of its reply in all."""
        return

    @abstractmethod
    def tick(self, view: FleetView) -> Sequence[Operation]:
        """What to do now: asked after requests arrived or ended and models came, and once in a while."""


def model_shares(fleet: Fleet) -> dict[str, float]:
    """What part of the requests asks for each model: as the file says, those without a figure alike; sums to 1."""
    given = {name: model.share for name, model in fleet.models.items()}
    stated = [share for share in given.values() if share is not None]
    rest = sum(stated) / len(stated) if stated else 1.0
    total = sum(rest if share is None else share for share in given.values())
    return {name: (rest if share is None else share) / total for name, share in given.items()}
