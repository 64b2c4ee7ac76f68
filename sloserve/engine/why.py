"""Reasons why a request waits, was preempted or is paused: codes and figures, for people who watch.

Each follows from the facts by which the engine itself decides: the plan, the columns of the request, and what of the
engine is taken. So with another value of the figure that is shown here the request would have been served: more free
blocks, more places, a larger step, an earlier deadline. ``tests/vllm_plugin/engine/test_watched.py`` tries each.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

from sloserve.core.arrays import BoolArray, FloatArray, IntArray
from sloserve.core.in_words import figure
from sloserve.scheduler.policy import EngineFacts

_NAN = float("nan")
_SHOWN_S: Final = 0.05
"""Seconds; less is shown as 0.0."""

PHASE_IN_WORDS: Final = ("waiting", "in prefill", "decoding", "paused", "preempted", "swapped out")
"""Phases in words, by :class:`RequestPhase`, as a sentence says them after "of them"."""


class RequestPhase(IntEnum):
    """Phase of a live request, as watchers see it."""

    WAITING = 0
    PREFILL = 1
    DECODE = 2
    PAUSED = 3
    PREEMPTED = 4
    SWAPPED = 5
    """The request is preempted, and the host keeps its KV."""


class Why(IntEnum):
    """Cause that holds a request up, which fixes the meaning of the two figures beside it; nan for an unknown one."""

    NOTHING = 0
    """The request is served, or nothing holds it: it is admitted with the next step."""
    TOKENS = 1
    """All tokens of the step went to other requests: how many, of how many."""
    PLACES = 2
    """The engine runs as many requests as its limit allows: how many run, of how many."""
    LIMIT = 3
    """The engine runs as many requests as the plan allows: how many run, of how many."""
    BLOCKS = 4
    """The request needs more KV blocks than are available: how many it needs, of how many."""
    BLOCKED = 5
    """The request waits for what the scheduler cannot give: a grammar, KV from elsewhere, a session's next input."""
    ENGINE = 6
    """The engine is paused or parked, and admits no request."""
    PAUSE = 7
    """The plan passes over the request, which keeps its KV: how many tokens it is ahead of its promised pace."""
    PLAN = 8
    """The plan took its KV for another request with an earlier deadline: that request's number, and by how many seconds
    its deadline comes first.
    """
    KV_SHORT = 9
    """vLLM took its KV, since running requests needed the blocks."""
    UNSEEN = 10
    """The request was preempted before there was a watcher."""
    PLAN_LATER = 11
    """The same as PLAN, but the other request's deadline comes later: its number, and by how many seconds."""
    PLAN_OTHER = 12
    """The same as PLAN, but the deadlines are equal, or one of the two requests has none: the other one's number."""
    PLAN_ALONE = 13
    """The plan took its KV, and no request waits for it."""
    QUEUE = 14
    """Other requests are admitted before it: how many."""
    CLASS = 15
    """The same, and some of them are of more urgent classes: how many of these, of how many."""
    GIVEN_UP = 16
    """The plan admits other requests before it, which has missed a deadline, and preempts none for it: how many go
    first, and how many run.
    """
    SHARE = 17
    """The tenant has had more than its share of the engine: how many requests of other tenants go first, of how many.
    """
    PASSED = 18
    """The prompt of the request has begun, and lets others pass that would otherwise be late; it keeps its KV."""


SAYS: Final[Mapping[Why, str]] = {
    Why.NOTHING: "nothing holds it up",
    Why.TOKENS: "the step has no tokens left: {figure} of {of} go to other requests",
    Why.PLACES: "all places are taken: {figure} of {of} requests run",
    Why.LIMIT: "the plan lets no more run: {figure} of {of}",
    Why.BLOCKS: "it needs {figure} KV blocks, and {of} are free",
    Why.BLOCKED: "it waits for a grammar, for KV from elsewhere or for a session's next input",
    Why.ENGINE: "the engine is paused or parked",
    Why.PAUSE: "its reader has {figure} tokens in hand, so others go first",
    Why.PLAN: "preempted for request {number}, which is due {of} s earlier",
    Why.KV_SHORT: "preempted, since running requests needed its KV blocks",
    Why.UNSEEN: "preempted before anyone watched",
    Why.PLAN_LATER: "preempted for request {number}, although that is due {of} s later",
    Why.PLAN_OTHER: "preempted for request {number}",
    Why.PLAN_ALONE: "preempted by the plan",
    Why.QUEUE: "requests ahead of it: {figure}",
    Why.CLASS: "requests ahead of it: {of}, of more urgent classes: {figure}",
    Why.GIVEN_UP: "it has missed a deadline; {figure} waiting and {of} running go first",
    Why.SHARE: "its tenant has had more than its share, so requests of others go first: {figure}",
    Why.PASSED: "prompts that would otherwise be late are computed before the rest of its own",
}
"""The sentence for each reason, with the two figures in their places."""

_REFUSE = "refuse requests early with --admission predict"
_MORE_KV = f"Give the KV cache more memory or swap space (--swap-space-gib), add a replica, or {_REFUSE}."
NEXT_STEP: Final[Mapping[Why, str]] = {
    Why.TOKENS: f"The engine computes as much as it can: add a replica, or {_REFUSE}.",
    Why.PLACES: f"Raise --max-num-seqs if the KV cache has room; otherwise add a replica, or {_REFUSE}.",
    Why.LIMIT: _MORE_KV,
    Why.BLOCKS: _MORE_KV,
    Why.KV_SHORT: _MORE_KV,
    Why.BLOCKED: "Look in the server's log for slow grammars, KV transfers or sessions without input.",
    Why.ENGINE: "POST /sloserve/unpark wakes a parked engine.",
    Why.GIVEN_UP: f"More work arrives than the engine can do in time: add a replica, or {_REFUSE}.",
    Why.SHARE: "Raise the weight of the tenant under tenant_shares if it should have more.",
}
"""What an operator can do about each reason; a reason that is left out needs nothing."""

_OF_RUNNING: Final = frozenset({Why.PLACES, Why.LIMIT, Why.BLOCKS})
"""Reasons of the first of the queue that a preemption could end."""
_OF_QUEUE: Final = frozenset({Why.NOTHING, Why.QUEUE, Why.CLASS})
"""Reasons of a waiting request that wait for what holds up the first request of the queue."""


def sentence(says: str, first: float | None, of: float | None) -> str:
    """Return one of :data:`SAYS` with its two figures filled in; the number of a request stands as in its key."""
    number = "some" if first is None else f"{first // 1:.0f}"
    return says.replace("{number}", number).replace("{figure}", figure(first)).replace("{of}", figure(of))


@dataclass(frozen=True, slots=True)
class Cause:
    """The cause, with the two figures that belong to it."""

    why: Why = Why.NOTHING
    figure: float = _NAN
    of: float = _NAN


def told_with_head(own: Cause, head: Cause) -> tuple[str, str | None]:
    """Return why a waiting request waits, as a sentence, and what an operator can do about it.

    A request behind others waits for what holds up the first of the queue, also if others go first because it has
    missed a deadline.

    Args:
        own: Cause of the request itself.
        head: Cause of the first request of the queue.
    """
    said = sentence(SAYS[own.why], own.figure, own.of) if own.why else ""
    if own.why not in (*_OF_QUEUE, Why.GIVEN_UP) or not head.why:
        return said, NEXT_STEP.get(own.why)
    of_head = sentence(SAYS[head.why], head.figure, head.of)
    if own.why is Why.GIVEN_UP:
        return f"{of_head}, and requests that can still be in time go first", NEXT_STEP.get(head.why)
    return (f"{said}; the first of the queue waits: {of_head}" if said else of_head), NEXT_STEP.get(head.why)


@dataclass(frozen=True, slots=True)
class QueueRows:
    """Requests of the queue, in the order of admission, ``[n]`` each.

    Args:
        class_rank: Rank of the class of each request; lower ranks are more urgent.
        level: Level of the tenant of each request within its share; lower levels go first.
        missed: Whether each request has missed a deadline, if its plan serves such requests last.
    """

    class_rank: IntArray
    level: IntArray
    missed: BoolArray


def queue_causes(queue: QueueRows, places: IntArray, head: Cause, running: int) -> FloatArray:
    """Return the cause of each request of a queue, by the first rule that holds, ``[m, 3]``.

    - It has missed a deadline: the plan serves the requests first that can still meet theirs. This does not hold while
      the engine is paused, nor for the first of the queue if no running request could make room for it.
    - It is the first: what holds up the first.
    - Requests of lower levels go before it: its tenant has had more than its share.
    - Requests of more urgent classes go before it.
    - Other requests go before it.

    Args:
        queue: The queue.
        places: Places of the requests in the queue, ``[m]``.
        head: Cause of the first request.
        running: Number of running requests.
    """
    found = np.full((places.size, 3), _NAN)
    found[:, 0], found[:, 1] = Why.QUEUE, places
    for why, key in ((Why.CLASS, queue.class_rank), (Why.SHARE, queue.level)):
        lower = _lower_before(key)[places]
        found[lower > 0] = np.stack((np.full(places.size, int(why)), lower, places), axis=1)[lower > 0]
    found[places == 0] = head.why, head.figure, head.of
    # A paused engine admits none, and the first of the queue is given up only if one that runs could give way.
    missed = queue.missed[places] & (head.why is not Why.ENGINE)
    if head.why not in _OF_RUNNING or not running:
        missed &= places > 0
    found[missed] = np.stack((np.full(places.size, int(Why.GIVEN_UP)), places, np.full(places.size, running)), axis=1)[
        missed
    ]
    return found


def _lower_before(key: IntArray) -> IntArray:
    """Return for each place the number of places before it that have a lower key, ``[n]``."""
    found = np.zeros(key.size, np.int64)
    for value in np.unique(key)[1:].tolist():
        here = key == value
        found[here] = np.cumsum(key < value)[here]
    return found


def preempted_for(number: float, due_later_s: float) -> Cause:
    """Return the cause of a preemption by the plan, so that its sentence says which request is due first.

    Args:
        number: Number of the request that gets the KV.
        due_later_s: Seconds by which the next deadline of the preempted request comes after that request's; negative if
            it comes before, nan if one of them has none.
    """
    if not abs(due_later_s) >= _SHOWN_S:
        return Cause(Why.PLAN_OTHER, number)
    return Cause(Why.PLAN if due_later_s > 0.0 else Why.PLAN_LATER, number, abs(due_later_s))


@dataclass(frozen=True, slots=True)
class StepDone:
    """What a scheduled step leaves for requests that still wait.

    Args:
        given_tokens: Tokens that the step computes, of ``budget_tokens``.
        running: Requests that hold a place now, of ``max_running`` by the engine's limit and ``plan_limit`` by the
            plan's.
        plan_limit: Requests that the plan lets run; ``None`` if it sets no limit.
        admits: Whether the engine admits requests at all.
    """

    given_tokens: int
    budget_tokens: int
    running: int
    max_running: int
    plan_limit: int | None
    admits: bool


def held_up(step: StepDone, needed_blocks: int, engine: EngineFacts) -> Cause:
    """Return what kept the first of the waiting requests from being admitted with this step, by vLLM's order of checks.

    The requests behind it wait for it as well: vLLM admits in order.

    Args:
        step: The step after which it waits.
        needed_blocks: KV blocks that must be free to admit it.
        engine: What the engine can do after the step.
    """
    if not step.admits:
        return Cause(Why.ENGINE)
    if step.given_tokens >= step.budget_tokens:
        return Cause(Why.TOKENS, step.given_tokens, step.budget_tokens)
    if step.running >= step.max_running:
        return Cause(Why.PLACES, step.running, step.max_running)
    if step.plan_limit is not None and step.running >= step.plan_limit:
        return Cause(Why.LIMIT, step.running, step.plan_limit)
    if needed_blocks > engine.admission_blocks:
        return Cause(Why.BLOCKS, needed_blocks, max(engine.admission_blocks, 0))
    return Cause()
