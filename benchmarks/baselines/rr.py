"""Round robin: requests are served in turns, so that none waits for long and all are interrupted alike.

A request's turn begins when it is admitted and is over after ``interval_steps`` steps that gave it output; steps that
only compute its prompt do not count. While others wait, requests whose turn is over are preempted (and recomputed
later): the longest served first, as many as the waiting ones need for seats or KV blocks. While none waits, all go on.
Waiting requests are admitted in a cycle: the least recently served first. A new request joins at the end of the cycle,
as if it had just been served, and so does one that vLLM preempts for want of KV. Each turn makes progress, so
preemptions are not limited in number; but each costs the recomputation of all tokens so far.

It knows no targets: it is the baseline between vLLM's order and a policy that knows them.

Source: Andes, Sec. 6.1 (baseline RR, 50 iterations). Differs: the paper does not say which requests it preempts, and
preempts by swap where it can.
"""

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray, grown
from sloserve.core.rows import Rows
from sloserve.lso.ordering import PREEMPTION_COLUMNS, PreemptionRule, plan_by_key
from sloserve.scheduler.policy import NO_SLOTS, Plan, Policy, Snapshot

_FAR = 1e15
"""More than there are steps in any run: puts running requests all ahead of the cycle, or behind it."""


class RR(Policy):
    """Serves in turns, the least recently served first; while others wait, preempts requests whose turn is over."""

    full_attention_only = True
    needs = PREEMPTION_COLUMNS
    wants_progress = True

    @dataclass(frozen=True)
    class Settings(Policy.Settings):
        interval_steps: int = 50
        """steps with output that a request gets before it has to make room; the paper's 50"""

        def __post_init__(self) -> None:
            if self.interval_steps < 1:
                raise ValueError(f"interval_steps: {self.interval_steps} is not at least 1")

    def __init__(self, settings: Any = None, *, seed: int = 0) -> None:
        super().__init__(settings, seed=seed)
        self._rule = PreemptionRule(max_preemptions=sys.maxsize)
        self._step = 0
        # By slot: the last step that served it, or in which it arrived; steps that served it in its present turn.
        self._last_served = NO_SLOTS
        self._turn_steps = NO_SLOTS

    def arrived(self, rows: Rows, slot: int, now_s: float) -> None:
        if self._last_served.size < rows.capacity:
            self._last_served = grown(self._last_served, rows.capacity)
            self._turn_steps = grown(self._turn_steps, rows.capacity)
        self._last_served[slot] = self._step
        self._turn_steps[slot] = 0

    def progressed(self, rows: Rows, slots: IntArray, tokens: IntArray, now_s: float) -> None:
        self._step += 1
        self._last_served[slots] = self._step
        self._turn_steps[slots] += 1

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        if not snapshot.waiting.size and not snapshot.running.size:
            return Plan.IDENTITY
        # Also undoes what came in for a request after it was preempted.
        self._turn_steps[snapshot.waiting] = 0
        steps = self._turn_steps[snapshot.running]
        over = steps >= self.settings.interval_steps
        # Of two whose turn is over the longer served is preempted first, also where vLLM chooses for want of KV.
        running_key: FloatArray = np.where(over, _FAR, -_FAR) + steps
        waiting_key = self._last_served[snapshot.waiting].astype(np.float64)
        return plan_by_key(snapshot, waiting_key, running_key, preempt=self._rule)
