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
    """Where the weights of a model are, as seen from one instance."""

    ACTIVE = "active"
    """On the device; at most one model of an instance."""
    WARM = "warm"
    """In host memory."""
    COLD = "cold"
    """On disk."""


@dataclass(frozen=True, slots=True)
class GroupSums:
    """What a planner knows of one request group: sums over its requests that no instance has taken yet.

    Args:
        ref: the reference by which plans name the group; never reused.
        model: the model that its requests ask for.
        requests: how many there are, at least 1.
        prompt_tokens: summed.
        output_tokens: expected, summed.
        output_tokens2: expected squares of each one's output tokens, summed.
        first_due_s, last_due_s: deadlines of the requests that are served first and last, epoch seconds; inf where
            there is none.
        first_arrival_s: of its oldest request, epoch seconds.
        until_first_token: the deadlines are those of first tokens, not of whole replies.
        weight: what a second of lateness of one request counts, above 0.
        cached_tokens: of the prompts, those that an instance's prefix cache is expected to hold, by its name.
        comes_over_s: its requests come over so many seconds from now; an instance is not done with them sooner.
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

    prefill_tokens: of prompts, still to be computed, summed. context_tokens: in the KV cache, summed. output_tokens:
    expected to come, summed; output_tokens2: their expected squares. longest_output_tokens: expected of the request
    that has most to come; the model cannot leave before, since what streams is never aborted.
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
        name: unique in the fleet, and the same after a restart.
        device: its kind; with a model's name it says how long work takes and what a swap costs.
        models: of each model that it can serve, where the weights are. During a swap the model that comes is active.
        activated_s: when the active model became active, epoch seconds; -inf where none is, or that is not known.
        ready_s: when a swap in progress is expected to end, epoch seconds; not after now where there is none.
        running: what it has taken.
        drained_s: when what runs is expected to have ended, or to have been parked, were the active model to leave now,
            epoch seconds; ``None`` where that follows from ``running`` alone.
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
    """One model takes another's place on a device of this kind; leaving is ``None`` where the device is empty.

    state: of the coming model, WARM or COLD.
    """

    device: str
    leaving: str | None
    coming: str
    state: ModelState


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """Virtual queues: of each instance, the groups in the order in which it serves them.

    Args:
        queues: by the instance's name; each group that an instance can serve is in one of them, once.
        unserved: groups whose model no instance can serve.
        late_s: lateness that this plan is expected to bring, summed over requests times weights, in seconds.
        instances_needed: where no plan that was found keeps all deadlines: how many instances would do; else ``None``.
        solver: what made it: ``kept`` (the last plan, gone on with), ``search``, or the name of a rule.
    """

    queues: Mapping[str, tuple[int, ...]]
    unserved: tuple[int, ...] = ()
    late_s: float = 0.0
    instances_needed: int | None = None
    solver: str = "search"


@dataclass(frozen=True, slots=True)
class FleetState:
    """All that a plan follows from.

    Args:
        now_s: epoch seconds.
        groups: those with at least one waiting request.
        instances: those that are alive.
        swap_s: seconds that a swap takes from the last token of the leaving model to the first step of the coming one.
            A pair that is missing is not planned where it can be helped.
        last: the plan that is in force, as stored; ``None`` at the start. It may name what is gone by now.
    """

    now_s: float
    groups: tuple[GroupSums, ...]
    instances: tuple[InstanceState, ...]
    swap_s: Mapping[Swap, float]
    last: FleetPlan | None = None
