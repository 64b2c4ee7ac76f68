"""Comparison of two plans for the same snapshot: how far they differ, and the predicted worth of the difference.

It is used in shadow mode: a second policy plans beside the one in charge and its plans are scored, never applied. All
functions are pure; only :class:`AdmissionRate` depends on the admissions that it has observed.
"""

import math

import numpy as np

from sloserve.core.arrays import BoolArray, IntArray
from sloserve.core.rows import State
from sloserve.scheduler.policy import Plan, Snapshot

NEEDS = frozenset({"arrival_s", "ttft_s", "e2e_s"})
"""Columns that :func:`predicted_met` reads."""


def own_order(snapshot: Snapshot) -> IntArray:
    """Return the waiting requests in the order in which vLLM would admit them if no plan had touched its queue.

    Preempted requests come first, then the order is by arrival. (Of several preempted ones vLLM admits the last first;
    a snapshot does not say which one that was, and they go by arrival too.)
    """
    rows, waiting = snapshot.rows, snapshot.waiting
    fresh = rows.state[waiting] != int(State.PREEMPTED)
    order: IntArray = waiting[np.lexsort((rows.seq[waiting], fresh))]
    return order


def admission_order(plan: Plan, snapshot: Snapshot, present: IntArray) -> IntArray:
    """Return ``snapshot.waiting`` as ``plan`` would have it admitted: the plan's requests, then the others.

    Args:
        plan: The plan.
        snapshot: The engine's state.
        present: Slots in the order before the plan; slots of requests that do not wait are passed over.
    """
    named = present[:0] if plan.waiting is None else plan.waiting
    order = np.concatenate([named, present[~np.isin(present, named)]])
    return order[np.isin(order, snapshot.waiting)]


def agreement(one: Plan, one_order: IntArray, other: Plan, other_order: IntArray, snapshot: Snapshot) -> float | None:
    """Share, 0 to 1, of the decisions on which both plans agree; ``None`` if neither plan decides anything.

    A plan decides which requests to preempt, to pause, and to admit next. Admitted next are the first requests of its
    admission order, as many as there are free slots, and at least one, since a full engine's next free slot goes to one
    of them too. If every waiting request gets a slot at once, admission is not a decision. The order among the admitted
    or the running requests is not a decision either.
    """
    free = snapshot.engine.free_slots
    next_up = max(free, 1) if snapshot.waiting.size > free else 0
    pairs = ((one.preempt, other.preempt), (one.pause, other.pause), (one_order[:next_up], other_order[:next_up]))
    decided = np.unique(np.concatenate([slots for pair in pairs for slots in pair])).size
    alike = sum(np.intersect1d(mine, theirs).size for mine, theirs in pairs)
    return alike / decided if decided else None


def predicted_met(order: IntArray, snapshot: Snapshot, admissions_per_s: float, now_s: float) -> BoolArray:
    """Return whether each waiting request with a TTFT or e2e target, in slot order, is admitted before it has passed.

    The prediction is from the rank alone: the first ``free_slots`` of ``order`` are admitted now, the others one by one
    at the rate observed. This is a bound, not an estimate: what comes after admission is left out, for either order. A
    preempted request has its first token behind it, as a rule, so that only its e2e target counts.
    """
    rows = snapshot.rows
    rank = np.arange(1, order.size + 1) - snapshot.engine.free_slots
    admitted_s = now_s + np.maximum(rank, 0) / admissions_per_s
    ttft_s = np.where(rows.state[order] == int(State.PREEMPTED), np.nan, rows.ttft_s[order])
    due_s = rows.arrival_s[order] + np.fmin(ttft_s, rows.e2e_s[order])
    by_slot = np.argsort(order)
    promised = ~np.isnan(due_s[by_slot])
    met: BoolArray = (admitted_s <= due_s)[by_slot][promised]
    return met


def predicted_gain(
    main: IntArray, shadow: IntArray, snapshot: Snapshot, admissions_per_s: float | None, now_s: float
) -> float | None:
    """Return the share of requests predicted to meet their targets under ``shadow``, minus the share under ``main``.

    The result is -1 to 1, over waiting requests with a target; ``None`` if no request has a target or no rate is known.
    """
    if not admissions_per_s:
        return None
    met = predicted_met(shadow, snapshot, admissions_per_s, now_s)
    if not met.size:
        return None
    return float(met.mean() - predicted_met(main, snapshot, admissions_per_s, now_s).mean())


class AdmissionRate:
    """Requests admitted per second: admissions over time, both fading with a time constant of ``memory_s``.

    Steps at one and the same time are counted together. The rate is ``None`` until time has passed.
    """

    def __init__(self, memory_s: float = 10.0) -> None:
        self._memory_s = memory_s
        self._since_s: float | None = None
        self._pending = 0
        self._admitted = self._elapsed_s = 0.0

    @property
    def per_s(self) -> float | None:
        return self._admitted / self._elapsed_s if self._elapsed_s else None

    def observe(self, admitted: int, now_s: float) -> None:
        """Record that a step at ``now_s``, of a clock that only grows, admitted ``admitted`` requests."""
        if self._since_s is None:
            self._since_s = now_s
        elapsed_s = now_s - self._since_s
        if elapsed_s > 0.0:
            fade = math.exp(-elapsed_s / self._memory_s)
            self._admitted = self._admitted * fade + self._pending
            self._elapsed_s = self._elapsed_s * fade + elapsed_s
            self._since_s, self._pending = now_s, 0
        self._pending += admitted
