"""The contract between a fleet and its planner: a snapshot of groups and instances becomes virtual queues.

Purity: a plan is a function of the FleetState and of what the planner was built with (settings, seed, what each model
takes on each device). Nothing is kept between calls: the last plan is in the state, so that a planner that takes over
makes the same next plan. Requests stay where they are stored; a plan holds references to groups, and can be lost.

Source: QLM, Sec. 4 (groups, virtual queues) and Sec. 7 (plan generator).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


class ModelState(Enum):
    """Place of the weights of a model, as seen from one instance."""

    ACTIVE = "active"
    """The model is on the device; an instance has at most one such model."""
    WARM = "warm"
    """The weights are in host memory."""
    COLD = "cold"
    """The weights are on disk."""


@dataclass(frozen=True, slots=True)
class GroupSums:
    """What a planner knows of one request group: sums over its requests that no instance has taken yet.

    Args:
        ref: The reference by which plans name the group; never reused.
        model: The model that its requests ask for.
        requests: Number of its requests, at least 1.
        prompt_tokens: Prompt tokens, summed.
        output_tokens: Expected output tokens, summed.
        output_tokens2: Expected squares of each one's output tokens, summed.
        first_due_s: Deadline of the request that is served first, in epoch seconds; inf for none.
        last_due_s: Deadline of the request that is served last, in epoch seconds; inf for none.
        first_arrival_s: Arrival of its oldest request, in epoch seconds.
        until_first_token: Whether the deadlines are for first tokens, not for whole outputs.
        weight: Weight of a second of lateness of one request, above 0.
        cached_tokens: Prompt tokens that an instance's prefix cache is expected to hold, by the instance's name.
        comes_over_s: Seconds from now over which its requests arrive; an instance is not done with them sooner.
    """

    ref: int
    model: str
    requests: int
    prompt_tokens: float
    output_tokens: float
    output_tokens2: float
    first_due_s: float
    last_due_s: float
    first_arrival_s: float
    until_first_token: bool = False
    weight: float = 1.0
    cached_tokens: Mapping[str, float] = field(default_factory=dict)
    comes_over_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RunningSums:
    """What an instance has taken and not finished, all of its active model.

    Args:
        requests: Number of requests.
        prefill_tokens: Prompt tokens still to be computed, summed.
        context_tokens: Tokens in the KV cache, summed.
        output_tokens: Output tokens expected to come, summed.
        output_tokens2: Expected squares of the output tokens to come, summed.
        longest_output_tokens: Output tokens expected of the request that has most to come. The model cannot leave
            before, since streams are never aborted.
    """

    requests: int = 0
    prefill_tokens: float = 0.0
    context_tokens: float = 0.0
    output_tokens: float = 0.0
    output_tokens2: float = 0.0
    longest_output_tokens: float = 0.0


@dataclass(frozen=True, slots=True)
class InstanceState:
    """One serving instance: a device, or several that serve one model together.

    Args:
        name: Name that is unique in the fleet, and the same after a restart.
        device: Kind of device; with a model's name it fixes how long work takes and what a swap costs.
        models: Place of the weights of each model that it can serve. During a swap the model that comes is active.
        activated_s: Time at which the active model became active, in epoch seconds; -inf if no model is active, or if
            it is not known.
        ready_s: Time at which a swap in progress is expected to end, in epoch seconds; not after now if there is no
            swap.
        running: What it has taken.
        drained_s: Time at which all running requests are expected to have ended or been parked if the active model were
            to leave now, in epoch seconds; ``None`` if that follows from ``running`` alone.
    """

    name: str
    device: str
    models: Mapping[str, ModelState]
    activated_s: float = float("-inf")
    ready_s: float = float("-inf")
    running: RunningSums = RunningSums()
    drained_s: float | None = None

    @property
    def active(self) -> str | None:
        """The model that is active, or comes in; ``None`` where none is."""
        return next((model for model, state in self.models.items() if state is ModelState.ACTIVE), None)


class Swap(NamedTuple):
    """A swap in which one model takes another's place on a device of this kind.

    Args:
        device: Kind of device.
        leaving: The leaving model; ``None`` if the device is empty.
        coming: The coming model.
        state: Place of the coming model's weights, WARM or COLD.
    """

    device: str
    leaving: str | None
    coming: str
    state: ModelState


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """Virtual queues: the groups of each instance in the order in which it serves them.

    Args:
        queues: References of groups in order, by the instance's name; each group that an instance can serve is in one
            of them, once.
        unserved: References of groups with a model that no instance can serve.
        late_s: Lateness that this plan is expected to bring, summed over requests times weights, in seconds.
        instances_needed: Number of instances that would do, if no plan that was found keeps all deadlines; else
            ``None``.
        solver: Origin of the plan: ``kept`` (the last plan is continued), ``search``, or the name of a rule.
    """

    queues: Mapping[str, tuple[int, ...]]
    unserved: tuple[int, ...] = ()
    late_s: float = 0.0
    instances_needed: int | None = None
    solver: str = "search"


@dataclass(frozen=True, slots=True)
class FleetState:
    """All facts from which a plan follows.

    Args:
        now_s: The present time, in epoch seconds.
        groups: The groups with at least one waiting request.
        instances: The instances that are alive.
        swap_s: Seconds that a swap takes from the last token of the leaving model to the first step of the coming one.
            A missing pair is not planned where it can be avoided.
        last: The plan that is in force, as stored; ``None`` at the start. It may name groups and instances that are
            gone.
    """

    now_s: float
    groups: tuple[GroupSums, ...]
    instances: tuple[InstanceState, ...]
    swap_s: Mapping[Swap, float]
    last: FleetPlan | None = None
