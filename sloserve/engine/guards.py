"""Guards that hold for every policy: bounded planning cost, bounded overtaking, progress, and protected requests."""

import math
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from sloserve.core.arrays import IntArray
from sloserve.core.rows import Rows, State
from sloserve.core.slo import ClassTable
from sloserve.engine.adapter_turns import with_adapter_turn
from sloserve.engine.request_table import RequestTable
from sloserve.lso.aged_turns import NO_TURNS, AgedTurns
from sloserve.lso.decode_first import PREFILL_COLUMNS, unfinished
from sloserve.scheduler.policy import NO_SLOTS, Plan, Snapshot


class PlanBudget:
    """Bounds the share of time spent on planning.

    If a plan took c seconds, the next one is allowed c / ``share`` seconds later.
    """

    def __init__(self, share: float, measure: Callable[[], float] = time.perf_counter) -> None:
        """Start with no plan made: the first is allowed at once.

        Args:
            share: Largest share of time for planning, 0 to 1.
            measure: Function that reads a timer, in seconds.
        """
        self._share = share
        self._measure = measure
        self._last_cost_s = 0.0
        self._last_plan_s = -math.inf
        self._started = 0.0

    def allows(self, now_s: float) -> bool:
        """Return whether a plan may be made.

        Args:
            now_s: The present time of a monotonic clock in seconds, here and below.
        """
        return (now_s - self._last_plan_s) * self._share >= self._last_cost_s

    def start(self) -> None:
        self._started = self._measure()

    def stop(self, now_s: float, *, others_s: float = 0.0, charged_s: float | None = None) -> float:
        """Charge the plan that :meth:`start` began to the budget; return what it really cost, in seconds.

        Args:
            now_s: The present time of a monotonic clock in seconds.
            others_s: Seconds since then that went to something else.
            charged_s: Seconds to charge in place of the measured ones; a simulator gives them, so that its runs do not
                depend on the machine.
        """
        cost_s = self._measure() - self._started - others_s
        self._last_cost_s = cost_s if charged_s is None else charged_s
        self._last_plan_s = now_s
        return cost_s


class Ageing:
    """Finds requests that have aged and gives them turns in the order of admission: see :mod:`sloserve.lso.aged_turns`.

    With k aged requests before it, at most ``(k + 1) * period`` requests are admitted before an aged one, but for the
    time in which earlier aged ones run and hold more than their share of the KV in use: aged requests are long ones,
    and a tenth of the admissions was a third of the engine. Once it is admitted no plan preempts or pauses it, and it
    is served before all others, so that vLLM preempts it last when KV is short. The oldest aged request therefore runs
    to its end without interruption, and then the next oldest.
    """

    NEEDS = PREFILL_COLUMNS | {
        "arrival_s", "class_id", "first_item_tokens", "item_tokens", "kv_blocks", "left_item_tokens"
    }  # fmt: skip

    def __init__(self, share: float, classes: ClassTable) -> None:
        self._share = share
        self.period = math.ceil(1.0 / share) if share > 0 else None
        self._since_aged = 0
        self.follow(classes)

    def follow(self, classes: ClassTable) -> None:
        """Take the ages from which on requests have aged from ``classes``."""
        self._age_s = np.array([c.aged_after_s for c in classes])
        self._least_age_s = float(self._age_s.min())

    def turns(
        self, rows: Rows, waiting: IntArray, now_s: float, running: IntArray = NO_SLOTS, protected: IntArray = NO_SLOTS
    ) -> AgedTurns:
        """Return the turns of the aged requests among ``waiting``.

        Args:
            rows: The request table.
            waiting: Slots of the waiting requests.
            now_s: The present time, in epoch seconds.
            running: Slots of the running requests.
            protected: Slots of the running requests that were admitted because of their age.
        """
        if self.period is None or not waiting.size:
            return NO_TURNS
        arrival_s = rows.arrival_s[waiting]
        if now_s - arrival_s.min() <= self._least_age_s:
            return NO_TURNS
        old = waiting[now_s - arrival_s > self._age_s[rows.class_id[waiting]]]
        if not old.size:
            return NO_TURNS
        oldest_first = old[np.argsort(rows.seq[old])]
        before_next = max(self.period - 1 - self._since_aged, 0)
        if protected.size and rows.kv_blocks[protected].sum() > self._share * rows.kv_blocks[running].sum():
            before_next = max(before_next, waiting.size)  # none of them now
        return AgedTurns(oldest_first, self.period, before_next)

    def admitted(self, slots: IntArray, aged: IntArray) -> IntArray:
        """Count the admissions of a step; return the aged requests among them, which must not be preempted.

        Only the admission of the oldest aged request resets the count: otherwise a policy that prefers the youngest of
        them would keep the oldest waiting forever.
        """
        if not aged.size:
            self._since_aged += slots.size
            return NO_SLOTS
        gone: set[int] = set()
        oldest = 0
        for slot in slots.tolist():
            gone.add(slot)
            self._since_aged = 0 if oldest < aged.size and slot == aged[oldest] else self._since_aged + 1
            while oldest < aged.size and int(aged[oldest]) in gone:
                oldest += 1
        return slots[np.isin(slots, aged)]


def drop_forbidden(plan: Plan, snapshot: Snapshot, *, may_pause: bool, may_preempt: bool = True) -> Plan:
    """Return ``plan`` without what it may not do: to protected requests, and to any where the engine forbids it.

    A request is not both preempted and paused.

    Args:
        plan: What a policy wants.
        snapshot: The engine that it was made for.
        may_pause: Whether the engine can leave a running request out of a step.
        may_preempt: Whether the engine lets a plan preempt.
    """
    if not (plan.preempt.size or plan.pause.size):
        return plan
    rows = snapshot.rows
    preempt = plan.preempt[rows.preemptable[plan.preempt]] if may_preempt else NO_SLOTS
    pause = plan.pause[rows.pausable[plan.pause]] if may_pause else NO_SLOTS
    preempt, pause = preempt[~snapshot.must_stay(preempt)], pause[~snapshot.must_stay(pause)]
    if preempt.size and pause.size:
        pause = pause[~np.isin(pause, preempt)]
    if preempt.size == plan.preempt.size and pause.size == plan.pause.size:
        return plan
    return replace(plan, preempt=preempt, pause=pause)


def keep_idle_victims(plan: Plan, snapshot: Snapshot) -> Plan:
    """Return ``plan`` without preemptions where the next step begins no prompt in the place of the victims.

    That is so where the engine computes no prompt at all, and where its encoder has no room for the item with which the
    first prompt in order begins: the engine admits none behind it.
    """
    if not plan.preempt.size:
        return plan
    engine, rows, first = snapshot.engine, snapshot.rows, plan.waiting
    begins = not engine.defers_prompts
    if begins and engine.encoder_tokens is not None and first is not None and "first_item_tokens" in rows.kept:
        begins = not first.size or int(rows.first_item_tokens[first[0]]) <= engine.encoder_tokens
    return plan if begins else replace(plan, preempt=NO_SLOTS)


def spare_decodes(plan: Plan, snapshot: Snapshot, protected: IntArray) -> Plan:
    """Return ``plan`` with prompt chunks that leave each decode its token, although protected prompts are served first.

    Protected requests stand in front since vLLM takes its victims from the end. There an unfinished prompt would take
    whole steps; with a limit on chunks it gets what it would get behind the decodes.

    Args:
        plan: The plan.
        snapshot: The engine's state.
        protected: Slots of the protected requests that run.
    """
    if not protected.size:
        return plan
    prompts = protected[unfinished(snapshot.rows, protected)]
    if not prompts.size:
        return plan
    engine = snapshot.engine
    decodes = int(np.count_nonzero(~unfinished(snapshot.rows, snapshot.running)))
    budget = engine.token_budget if plan.token_budget is None else min(plan.token_budget, engine.token_budget)
    room = budget - decodes * engine.decode_tokens
    # A chunk that ends inside a multimodal item may be none at all.
    chunk = max(room // prompts.size, min(int(snapshot.rows.item_tokens[prompts].max()), room), 1)
    planned = plan.prefill_chunk_tokens
    return replace(plan, prefill_chunk_tokens=chunk if planned is None else min(planned, chunk))


def keep_prompts_whole(plan: Plan, snapshot: Snapshot) -> Plan:
    """Return ``plan`` without limits on the tokens of a step where the engine computes each prompt in one step.

    There a prompt longer than the limit would never be admitted, nor any prompt behind it.
    """
    if snapshot.engine.chunked_prefill or (plan.token_budget is None and plan.prefill_chunk_tokens is None):
        return plan
    return replace(plan, token_budget=None, prefill_chunk_tokens=None)


def ensure_progress(plan: Plan, snapshot: Snapshot) -> Plan:
    """Return ``plan``, changed where it would leave the engine with nothing to schedule.

    A running request that is neither preempted nor paused can always be scheduled, since vLLM takes its victims from
    the other requests when KV is short. If the plan leaves no such request, all pauses are dropped, because paused
    requests hold the KV and the slots that admissions need. If in addition no waiting request could be admitted at
    once, the oldest running request is not preempted.
    """
    running = snapshot.running
    if not running.size or running.size > plan.preempt.size + plan.pause.size:
        return plan
    kept = running[~np.isin(running, plan.preempt)]
    if kept.size > plan.pause.size:
        return plan
    if kept.size:
        return replace(plan, pause=NO_SLOTS)
    fresh = snapshot.rows.state[snapshot.waiting] == State.WAITING
    if fresh.any():
        return replace(plan, pause=NO_SLOTS)
    # Preempted requests cannot be admitted again before their tokens in flight have arrived, so one keeps running.
    first = running[np.argmin(snapshot.rows.seq[running])]
    preempt = plan.preempt[plan.preempt != first]
    order = None if plan.waiting is None else plan.waiting[plan.waiting != first]
    return replace(plan, preempt=preempt, pause=NO_SLOTS, waiting=order)


def guarded(
    plan: Plan,
    snapshot: Snapshot,
    table: RequestTable,
    *,
    max_loras: int | None,
    may_pause: bool,
    may_preempt: bool,
) -> Plan:
    """Return the plan as far as all guards allow it.

    Args:
        plan: The policy's plan.
        snapshot: The snapshot that it was made for.
        table: Rows of the requests.
        max_loras: Number of LoRA adapters that may run at once; ``None`` without adapters.
        may_pause: Whether the engine can pause requests.
        may_preempt: Whether the engine lets a plan preempt requests.
    """
    if snapshot.turns.aged.size or snapshot.has_levels:
        order = plan.waiting
        if order is None or snapshot.promises_at_s is not None:  # a policy may name only the requests that it admits
            by_arrival = snapshot.waiting[np.argsort(snapshot.rows.seq[snapshot.waiting])]
            order = by_arrival if order is None else np.append(order, by_arrival[~np.isin(by_arrival, order)])
        # Most policies put these turns and shares into their order themselves; the others get them here.
        plan = replace(plan, waiting=snapshot.turns.weave(snapshot.by_level(order)))
    if plan.preempt.size and plan.waiting is not None and snapshot.engine.encoder_tokens is not None:
        table.note_items(plan.waiting[:1])
    plan = keep_idle_victims(plan, snapshot)
    plan = keep_prompts_whole(spare_decodes(plan, snapshot, table.marks.protected_running()), snapshot)
    if max_loras is not None and table.marks.is_short_of_loras and (snapshot.has_levels or snapshot.turns.aged.size):
        plan = with_adapter_turn(plan, snapshot, table.marks.lora_of, max_loras)
    if plan is Plan.IDENTITY:
        return plan
    return ensure_progress(drop_forbidden(plan, snapshot, may_pause=may_pause, may_preempt=may_preempt), snapshot)
