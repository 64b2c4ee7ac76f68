"""The contract between a fleet and its dispatcher, which decides where each request is served and each model is.

A dispatcher sees what a live gateway and its agents could: its own requests and how many tokens of each have come back,
where the weights of each model are, what engines publish of themselves, and how long the outputs of a model were so
far. Times are seconds from the start of the run.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from sloserve.core.promises import Promised
from sloserve.core.request import PREFIX_BLOCK_TOKENS, WorkloadRequest
from sloserve.core.slo import SLO
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.estimator.step_time.profile import Profile
from sloserve.fleet.fleet import Fleet
from sloserve.scheduler.virtual_queues.contract import ModelState


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """A request that no engine has.

    Args:
        prompt_tokens: Prompt tokens, with the tokens that other engines generated.
        due_s: Time of the next deadline (:meth:`~sloserve.core.slo.Targets.next_s`), in seconds; inf without a promise.
        generated_tokens: Tokens that other engines generated.
        kept_on: The instance that keeps the KV of its first ``kept_tokens`` tokens in host memory, if one does.
        prefix_ids: Ids of prefix blocks, as in :class:`~sloserve.core.request.WorkloadRequest`.
        prefix_block_tokens: Tokens of such a block.
        slo_class: Name of its class.
        most_tokens: Limit of its output tokens that it states.
        tenant: Name of its tenant; empty for none.
        slo: Targets of the request, and the promise that it asks for.
        promised: The promise that it was given; ``None`` for none.
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
    tenant: str = ""
    slo: SLO | None = None
    promised: Promised | None = None


def waiting_request(
    request: WorkloadRequest,
    generated_tokens: int = 0,
    kept_on: str | None = None,
    kept_tokens: int = 0,
    *,
    oracle: bool = False,
) -> WaitingRequest:
    """Return what a dispatcher may know about ``request``; with ``oracle`` the output limit is the true length."""
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
        tenant=request.tenant or "",
        slo=request.slo,
    )


@dataclass(frozen=True, slots=True)
class Give:
    """An order that the instance serves the request; the request's model is active there.

    Args:
        promised: The promise that the fleet gave the request; ``None`` for none.
    """

    request_id: str
    instance: str
    promised: Promised | None = None


@dataclass(frozen=True, slots=True)
class Switch:
    """An order that the instance takes no more requests, lets its streams end, and then makes ``model`` active.

    What has not ended after the fleet's ``drain_max_s`` goes back to the queue with its tokens.

    Args:
        keep_kv: Whether its KV is kept in the host's swap space, where that is worth it; else it is lost.
    """

    instance: str
    model: str
    keep_kv: bool = True


@dataclass(frozen=True, slots=True)
class Preempt:
    """An order that the request leaves its engine and goes back to the queue with its tokens.

    Args:
        keep_kv: Whether its KV is kept, as for :class:`Switch`.
    """

    request_id: str
    instance: str
    keep_kv: bool = True


@dataclass(frozen=True, slots=True)
class Warm:
    """An order to read the model's weights from disk into host memory while the instance serves, if there is room."""

    instance: str
    model: str


@dataclass(frozen=True, slots=True)
class Drop:
    """An order to remove the model's weights from host memory."""

    instance: str
    model: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """An order to refuse the request."""

    request_id: str


@dataclass(frozen=True, slots=True)
class SetElsewhere:
    """An order to count what tenants have had in the other engines of the fleet, see ``agent/tenant_service.py``.

    Args:
        service_s: Recent service by tenant in seconds.
    """

    instance: str
    service_s: Mapping[str, float]


Operation = Give | Switch | Preempt | Warm | Drop | Refuse | SetElsewhere


class InstanceView(Protocol):
    """One instance, as its agent sees it."""

    @property
    def name(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def models(self) -> Mapping[str, ModelState]:
        """The place of the weights of each model that it can serve. During a switch the coming model is active."""
        ...

    @property
    def active(self) -> str | None:
        """The model that is active, or comes."""
        ...

    @property
    def serving(self) -> bool:
        """Whether it takes requests, which it does not while it drains or swaps."""
        ...

    @property
    def activated_s(self) -> float: ...
    @property
    def ready_s(self) -> float:
        """The expected end of a switch in progress, in seconds; the present time if there is none."""
        ...

    @property
    def num_in_flight(self) -> int: ...
    @property
    def in_flight(self) -> Sequence[WaitingRequest]:
        """The requests in its engine, oldest first."""
        ...

    def generated(self, request_id: str) -> int:
        """Return how many tokens of a request in flight have come back."""
        ...

    def service_s(self) -> Mapping[str, float] | None:
        """Return the recent service of tenants in the engine that serves, by name; ``None`` if none serves."""
        ...

    def can_switch(self) -> bool:
        """Return whether the instance serves, and has had its model for long enough."""
        ...

    def profile(self, model: str) -> Profile:
        """Return the step times of the model on the instance's devices."""
        ...

    def limits(self, model: str) -> EngineSettings:
        """Return the size and limits of the model's engine."""
        ...

    def swap_s(self, model: str) -> float:
        """Return the seconds that it takes to make ``model`` active once streams have ended."""
        ...


class SimulatedView(Protocol):
    """The fleet, as its gateway sees it."""

    @property
    def fleet(self) -> Fleet:
        """The fleet, as its file describes it."""
        ...

    @property
    def now_s(self) -> float: ...
    @property
    def promises(self) -> bool:
        """Whether requests ask for promises, and engines can keep them."""
        ...

    @property
    def instances(self) -> Sequence[InstanceView]: ...
    def expected_output(self, request: WaitingRequest, generated: int = 0) -> tuple[float, float]:
        """Return mean and standard deviation of the output tokens still to come, after ``generated`` in all."""
        ...


class Dispatcher(ABC):
    """Decides which instance serves which request, and which model each instance has.

    It is deterministic: its orders follow from its inputs and its seed. Each request is held from ``arrived`` until it
    is in a :class:`Give` or a :class:`Refuse`; one that goes back to the queue arrives again.
    """

    @property
    def has_swap_space(self) -> bool:
        """Whether engines have the swap space that the fleet's file gives them; read once, before the run."""
        return True

    @abstractmethod
    def begin(self, view: SimulatedView) -> Sequence[Switch]:
        """Return the models to begin with, if they differ from the ones in the fleet's file; they cost nothing."""

    @property
    def wakes_s(self) -> float:
        """The time, in seconds, when the dispatcher must be called whatever else happens; inf for never."""
        return math.inf

    @abstractmethod
    def arrived(self, request: WaitingRequest, view: SimulatedView) -> None:
        """Hold a request that has arrived."""

    def began(self, request_id: str, view: SimulatedView) -> None:
        """Report that the first token of a request that an instance serves has come."""
        return

    def ended(self, request_id: str, tokens: int, view: SimulatedView) -> None:
        """Report that a request that an instance served is over, after ``tokens`` output tokens in all."""
        return

    @abstractmethod
    def tick(self, view: SimulatedView) -> Sequence[Operation]:
        """Return what to do now: called after requests arrived or ended and models came, and once in a while."""


def model_shares(fleet: Fleet) -> dict[str, float]:
    """Return the share of the requests for each model, summing to 1; models without a stated share get the mean."""
    given = {name: model.share for name, model in fleet.models.items()}
    stated = [share for share in given.values() if share is not None]
    rest = sum(stated) / len(stated) if stated else 1.0
    total = sum(rest if share is None else share for share in given.values())
    return {name: (rest if share is None else share) / total for name, share in given.items()}
