"""What a policy is shown and what it may ask for: a snapshot of the engine, and a plan of operations on its requests.

Plain values, which nothing but the engine port carries out. A plan orders the queues, preempts, pauses, and limits
admission and the size of a step.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from sloserve.core.arrays import IntArray
from sloserve.core.rows import Rows, State
from sloserve.estimator.step_time.latency import StepLatency
from sloserve.lso.preemption import Holding
from sloserve.lso.turns import NOBODYS_TURN, Turns

NO_SLOTS: IntArray = np.empty(0, np.int64)

# Plain numbers: an enum member is looked up anew at each use, and these are used at each step.
_WAITING, _PREEMPTED, _RUNNING = int(State.WAITING), int(State.PREEMPTED), int(State.RUNNING)


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What the engine can do for the requests of the snapshot, as of now.

    What others hold is left out of every figure: sessions with streaming input keep a place and KV between two inputs.
    free_blocks, total_blocks, block_size: KV cache, in blocks and tokens a block. max_num_seqs: requests that may run
    at once, 1 at least. token_budget: tokens one step may compute. free_slots: how many more requests could be admitted
    now.
    step_latency: how long its steps take, as far as observed; ``None`` where the deployment names no profile.
    """

    free_blocks: int
    total_blocks: int
    block_size: int
    max_num_seqs: int
    token_budget: int
    free_slots: int
    step_latency: StepLatency | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The engine as a policy sees it. Slots index the columns of ``rows``; the two arrays are sets, ascending, not
    orders.

    waiting: requests that could be admitted (never admitted, or evicted); blocked ones are left out. running: admitted
    ones. holding_of: KV blocks of the running request in a slot, and who shares them; costs time, so that only who
    chooses victims asks. ``None`` stands for ``kv_blocks``, none of them shared. turns: of waiting requests that have
    aged, which an order of admission should heed (:meth:`woven`); the adapter sees to it where one does not.
    """

    rows: Rows
    waiting: IntArray
    running: IntArray
    engine: EngineFacts
    holding_of: Callable[[int], Holding] | None = None
    turns: Turns = NOBODYS_TURN

    def woven(self, order: IntArray) -> IntArray:
        """``order``, waiting slots in the order of admission, with aged requests in the places that are their turn.

        As many as before: who is pushed off the end is left out. An aged request stands in for whom it displaces.
        """
        return self.turns.weave(order)[: order.size]

    def holding(self, slot: int) -> Holding:
        """KV blocks of the running request in ``slot``: its own, and those that it shares."""
        return Holding(int(self.rows.kv_blocks[slot])) if self.holding_of is None else self.holding_of(slot)


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What the engine shall do in the next steps. Arrays hold slots; ``None`` leaves the engine's own choice untouched.

    running: service order of admitted requests, first served first; KV shortage takes victims from its end. Those not
    named
        keep their present order behind the named ones.
    waiting: admission order, may name requests that ``preempt`` sends there. Those not named keep their present order
    behind.
    preempt: admitted requests to preempt now; their KV is dropped and recomputed when they are admitted again.
    pause: admitted requests that get no tokens in the next step; they keep KV and slot.
    max_running: no admission while this many requests of the snapshot run; others that hold a place are not counted.
    token_budget: tokens a step may compute.
    prefill_chunk_tokens: most prompt tokens one request may get in a step while others wait or run.
    A plan holds until the next one; ``preempt`` is carried out once, ``pause`` in each step until then.
    """

    running: IntArray | None = None
    waiting: IntArray | None = None
    preempt: IntArray = field(default_factory=lambda: NO_SLOTS)
    pause: IntArray = field(default_factory=lambda: NO_SLOTS)
    max_running: int | None = None
    token_budget: int | None = None
    prefill_chunk_tokens: int | None = None

    IDENTITY: ClassVar["Plan"]
    """The engine's own behaviour, untouched."""


Plan.IDENTITY = Plan()


class PlanError(Exception):
    """A fresh plan that cannot be carried out; the adapter answers with the identity plan for the step."""


def check_plan(plan: Plan, snapshot: Snapshot) -> None:
    """Raises PlanError unless every slot is known, in the right state and named once, and every limit is possible."""
    state = snapshot.rows.state

    def states(name: str, slots: IntArray) -> NDArray[np.int8]:
        if slots.ndim != 1 or slots.dtype.kind != "i":
            raise PlanError(
                f"{name}: an array of slots is one-dimensional and integer, not {slots.dtype}{list(slots.shape)}"
            )
        if slots.size and (slots.min() < 0 or slots.max() >= state.size):
            raise PlanError(f"{name}: names a slot outside 0..{state.size - 1}")
        if slots.size > 1 and np.bincount(slots).max() > 1:
            raise PlanError(f"{name}: names a request twice")
        return state[slots]

    for name, slots in (("running", plan.running), ("preempt", plan.preempt), ("pause", plan.pause)):
        if slots is not None and slots is not NO_SLOTS and not (states(name, slots) == _RUNNING).all():
            raise PlanError(f"{name}: names a request that is not running")
    if plan.waiting is not None:
        found = states("waiting", plan.waiting)
        idle = (found == _WAITING) | (found == _PREEMPTED)
        if not idle.all() and not (idle | np.isin(plan.waiting, plan.preempt)).all():
            raise PlanError("waiting: names a request that is neither waiting nor evicted by this plan")
    for name in ("max_running", "token_budget", "prefill_chunk_tokens"):
        limit = getattr(plan, name)
        if limit is None:
            continue
        if not isinstance(limit, int | np.integer):
            raise PlanError(f"{name}: {limit!r} is not a whole number")
        if limit < 1:
            raise PlanError(f"{name}: {limit} leaves the engine nothing to do; the least is 1")
