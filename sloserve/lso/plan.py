"""What a policy is shown and what it may ask for: a snapshot of the engine, and a plan of operations on its requests.

Plain values; only the engine port applies them. A plan orders the queues, preempts, pauses, and limits
admission and the size of a step.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Final

import numpy as np

from sloserve.core.arrays import BoolArray, IntArray
from sloserve.core.kernels.kv_layout import KVLayout
from sloserve.core.kernels.requests import slots_misused
from sloserve.core.rows import Rows, State
from sloserve.estimator.drafting import DraftFacts
from sloserve.estimator.step_time.latency import StepLatency
from sloserve.estimator.step_time.online import OnlineLatency
from sloserve.lso.aged_turns import NO_TURNS, AgedTurns
from sloserve.lso.preemption import Holding
from sloserve.lso.standing import Standing, by_level

NO_SLOTS: IntArray = np.empty(0, np.int64)

# Plain numbers are used at each step: an enum member would be looked up again at each use.
_WAITING, _PREEMPTED, _RUNNING = int(State.WAITING), int(State.PREEMPTED), int(State.RUNNING)


STAGING_BYTES: Final = 128 * 2**20
"""Device memory beside the KV cache through which blocks go to the host."""


@dataclass(frozen=True, slots=True)
class SwapFacts:
    """The host memory into which the KV of preempted requests can be copied, and the link to it, as of now.

    The link is duplex: copies to the host do not wait for copies to the device.

    Args:
        block_bytes: Bytes of one KV block, over all layers and ranks.
        total_blocks: KV blocks that the pool holds.
        free_blocks: Blocks of the pool that keep nothing.
        yielding_blocks: Blocks of the pool that keep what any preempted request displaces: KV of ended requests.
        bytes_per_s: Rate of the link in one direction, above 0, as observed so far.
        out_s: Seconds until the copies to the host that are queued now have ended; 0 if there are none.
        in_s: Seconds until the copies to the device that are queued now have ended; 0 if there are none.
        wait_s: Mean seconds for which recently preempted requests waited for their turn.
        staging_bytes: Bytes that the device can take out of its KV cache at once, before the link has them.
    """

    block_bytes: int
    total_blocks: int
    free_blocks: int
    bytes_per_s: float
    out_s: float = 0.0
    in_s: float = 0.0
    wait_s: float = 0.0
    staging_bytes: int = STAGING_BYTES
    yielding_blocks: int = 0

    @property
    def available_blocks(self) -> int:
        """Blocks of the pool that a request which is preempted now can have."""
        return self.free_blocks + self.yielding_blocks


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What the engine can do for the requests of the snapshot, as of now.

    No figure counts what requests outside the snapshot hold: a session with streaming input keeps a slot and KV between
    two inputs.

    Args:
        free_blocks: KV blocks that are free.
        total_blocks: KV blocks in all.
        layout: How many blocks tokens take.
        max_num_seqs: Requests that may run at once, at least 1.
        token_budget: Tokens that one step may compute.
        free_slots: How many more requests could be admitted now.
        decode_tokens: Tokens that a decode takes of the step at most, its draft tokens included.
        chunked_prefill: Whether a prompt may be computed over several steps.
        chunk_tokens: Most prompt tokens of one request in a step, above 0; ``None``: as many as the step has.
        defers_prompts: Whether the next step computes no prompt, whatever is planned.
        step_latency: How long the engine's steps take, as observed so far.
        busy_s: Seconds until the steps in flight are predicted to end, and the next one can start; 0 where none is.
        watermark_blocks: Free blocks that no admission may take while others run.
        freeing_blocks: Blocks of requests that run no more, which are free once the steps in flight are over.
        encoder_tokens: Tokens of multimodal items that the encoder can compute in the next step, and its cache keep;
            ``None``: the model has no encoder.
        swap: Host pool and link for the KV of preempted requests; ``None``: what is preempted is computed again.
        drafts: What draft tokens bring; ``None`` where the engine drafts none, and a step brings a decode one token.
    """

    free_blocks: int
    total_blocks: int
    layout: KVLayout
    max_num_seqs: int
    token_budget: int
    free_slots: int
    decode_tokens: int = 1
    chunked_prefill: bool = True
    chunk_tokens: int | None = None
    defers_prompts: bool = False
    step_latency: StepLatency = field(default_factory=OnlineLatency)
    busy_s: float = 0.0
    watermark_blocks: int = 0
    freeing_blocks: int = 0
    encoder_tokens: int | None = None
    swap: SwapFacts | None = None
    drafts: DraftFacts | None = None

    @property
    def capacity_blocks(self) -> int:
        """KV blocks that requests can have together: vLLM keeps one for itself."""
        return max(self.total_blocks - 1, 1)

    @property
    def held_blocks(self) -> int:
        """KV blocks that the requests of the snapshot hold together, each counted once."""
        return self.total_blocks - 1 - self.free_blocks - self.freeing_blocks

    @property
    def admission_blocks(self) -> int:
        """KV blocks for requests that are admitted now or in the next steps; below 0 where running ones need more."""
        return self.free_blocks + self.freeing_blocks - self.watermark_blocks

    def begun(self, prompt_tokens: IntArray) -> int:
        """Return how many prompts, in order, one step begins at least.

        Args:
            prompt_tokens: Tokens to compute of each prompt, ``[n]``.
        """
        chunks = prompt_tokens if self.chunk_tokens is None else np.minimum(prompt_tokens, self.chunk_tokens)
        if not self.chunked_prefill:
            return int(chunks.cumsum().searchsorted(self.token_budget, side="right"))
        return 1 + int(chunks.cumsum().searchsorted(self.token_budget))

    def encoded(self, first_items: IntArray, all_items: IntArray) -> int:
        """Return how many prompts, in order, begin in the next step as far as the encoder has room.

        The engine begins no prompt behind the first prompt that has no room for its first item.

        Args:
            first_items: Tokens of the items that each prompt needs for its first token to compute, ``[n]``.
            all_items: Tokens of all items that the encoder has to compute for each, ``[n]``.
        """
        if self.encoder_tokens is None:
            return int(first_items.size)
        room = self.encoder_tokens - (all_items.cumsum() - all_items)
        has_no_room = first_items > np.maximum(room, 0)
        return int(has_no_room.argmax()) if has_no_room.any() else int(first_items.size)

    def has_room_for(self, decodes: int) -> bool:
        """Return whether ``decodes`` decodes have blocks for the next step, whatever each needs."""
        return self.free_blocks >= decodes * self.layout.most_growth(self.decode_tokens, 1)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The engine as a policy sees it.

    Slots index the columns of ``rows``; the two arrays of slots are sets, ascending, not orders.

    Args:
        rows: Columns of the request table.
        waiting: Slots of requests that could be admitted (never admitted, or preempted), blocked ones left out.
        running: Slots of admitted requests.
        engine: What the engine can do for these requests.
        holding_of: Function that returns the KV blocks of the running request in a slot, and how many requests share
            each.
            The call is slow: use it only to choose victims. ``None`` means that the column ``kv_blocks`` says it all,
                nothing is shared.
        turns: Turns of the waiting requests that have aged. An order of admission should respect them (:meth:`woven`);
            where it does not, the engine port corrects it.
        shared_blocks: Blocks by which the column ``kv_blocks``, summed over the running requests, exceeds the blocks
            that they hold together: a block of a shared prefix counts for every holder there.
        awaited_blocks: Expected number of blocks that no request holds and that later requests will find again in the
            prefix cache.
        awaited_on_host: The number of these blocks that swap space keeps as well; nothing is lost if they are used.
        standing: Standing of the tenants; ``None`` where shares decide nothing. Requests of lower levels come
            first (:meth:`by_level`), and some give way to the others even while they run (:meth:`gives_way`).
        promises_at_s: The present time in epoch seconds, if any request was promised its targets. From the time in
            ``first_from_s`` on such requests come before the other requests of their tenants' level.
    """

    rows: Rows
    waiting: IntArray
    running: IntArray
    engine: EngineFacts
    holding_of: Callable[[int], Holding] | None = None
    turns: AgedTurns = NO_TURNS
    shared_blocks: int = 0
    awaited_blocks: float = 0.0
    awaited_on_host: float = 0.0
    standing: Standing | None = None
    promises_at_s: float | None = None

    def levels(self, slots: IntArray) -> IntArray | None:
        """Return the levels of requests, ``[len(slots)]``; ``None`` if all have the same.

        A level follows from the service of the tenant, and within it from whether a promised request has to come first.
        """
        of_tenant = None if self.standing is None else self.standing.levels(self.rows.account[slots])
        if self.promises_at_s is None:
            return of_tenant
        others = ~self.comes_first(slots)
        if others.all() or not others.any():
            return of_tenant
        return others.astype(np.int64) if of_tenant is None else 2 * of_tenant + others

    def comes_first(self, slots: IntArray) -> BoolArray:
        """Return which requests come first because their targets were promised, ``[len(slots)]``."""
        if self.promises_at_s is None:
            return np.zeros(slots.size, np.bool_)
        found: BoolArray = self.rows.first_from_s[slots] <= self.promises_at_s  # nan for requests without a promise
        return found

    def must_stay(self, slots: IntArray) -> BoolArray:
        """Return which running requests no plan may stop: promised ones that come first, of tenants in their shares."""
        found, far_over = self.comes_first(slots), self.gives_way(slots)
        return found if far_over is None else found & ~far_over

    @property
    def has_levels(self) -> bool:
        """Whether requests may have different levels."""
        return self.standing is not None or self.promises_at_s is not None

    def gives_way(self, slots: IntArray) -> BoolArray | None:
        """Return which requests give way to other tenants' even while they run, ``[len(slots)]``; ``None`` for none."""
        return None if self.standing is None else self.standing.gives_way(self.rows.account[slots])

    def by_level(self, slots: IntArray) -> IntArray:
        """Return ``slots`` by ascending level, each level in the order that it has."""
        levels = self.levels(slots)
        return slots if levels is None else slots[by_level(np.arange(slots.size), levels)]

    def forecast_blocks(self, reserve: float) -> float:
        """Return the KV blocks that running and admitted requests may come to hold together.

        What later requests will find in the prefix cache stays there, unless swap space has it, too.

        Args:
            reserve: Further share of the blocks to keep free.
        """
        engine = self.engine
        blocks = engine.total_blocks * (1.0 - reserve) - engine.watermark_blocks
        return blocks - (self.awaited_blocks - self.awaited_on_host)

    def woven(self, order: IntArray) -> IntArray:
        """Return ``order``, waiting slots in order of admission, with aged requests in the places of their turns.

        The result has the length of ``order``: requests that are pushed past its end are left out.
        """
        return self.turns.weave(order)[: order.size]

    def holding(self, slot: int) -> Holding:
        """Return the KV blocks of the running request in ``slot``: blocks of its own, and blocks that it shares."""
        return Holding(int(self.rows.kv_blocks[slot])) if self.holding_of is None else self.holding_of(slot)


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What the engine shall do in the next steps. Arrays hold slots; ``None`` leaves the engine's own choice untouched.

    A plan holds until the next one. ``preempt`` is applied once, ``pause`` in each step until then.

    Args:
        running: Order of service of the running requests, first served first; vLLM takes its victims from the end when
            KV is short. Requests that are not named follow in their present order.
        waiting: Order of admission; may name requests that ``preempt`` puts back into the queue. Requests that are not
            named follow in their present order.
        preempt: Running requests to preempt now. Their KV is dropped and computed again when they are admitted again,
            or copied to the host and back where that costs the engine less (:mod:`sloserve.lso.swapping`).
        pause: Running requests that get no tokens in the next step; they keep their KV and their slot.
        max_running: Admit no request while this many requests of the snapshot run; others are not counted.
        token_budget: Tokens that a step may compute.
        prefill_chunk_tokens: Most prompt tokens that one request may get in a step while others wait or run.
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
    """A fresh plan that cannot be applied; the adapter then uses the identity plan for the step."""


def check_plan(plan: Plan, snapshot: Snapshot) -> None:
    """Raise PlanError unless every slot is known, in the right state and named once, and every limit is possible."""
    state = snapshot.rows.state

    def misused(name: str, slots: IntArray, *allowed: int) -> bool:
        """Return whether one of these slots is in another state."""
        if slots.ndim != 1 or slots.dtype.kind != "i":
            raise PlanError(
                f"{name}: an array of slots is one-dimensional and integer, not {slots.dtype}{list(slots.shape)}"
            )
        why = slots_misused(slots, state, *allowed)
        if why == "outside":
            raise PlanError(f"{name}: names a slot outside 0..{state.size - 1}")
        if why == "twice":
            raise PlanError(f"{name}: names a request twice")
        return why is not None

    for name, slots in (("running", plan.running), ("preempt", plan.preempt), ("pause", plan.pause)):
        if slots is not None and slots is not NO_SLOTS and misused(name, slots, _RUNNING):
            raise PlanError(f"{name}: names a request that is not running")
    if plan.waiting is not None and misused("waiting", plan.waiting, _WAITING, _PREEMPTED):
        found = state[plan.waiting]
        idle = (found == _WAITING) | (found == _PREEMPTED)
        if not set(plan.waiting[~idle].tolist()) <= set(plan.preempt.tolist()):
            raise PlanError("waiting: names a request that is neither waiting nor preempted by this plan")
    for name in ("max_running", "token_budget", "prefill_chunk_tokens"):
        limit = getattr(plan, name)
        if limit is None:
            continue
        if not isinstance(limit, (int, np.integer)):
            raise PlanError(f"{name}: {limit!r} is not a whole number")
        if limit < 1:
            raise PlanError(f"{name}: {limit} leaves the engine nothing to do; the least is 1")
