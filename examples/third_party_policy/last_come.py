"""Last come, first served: who arrived last is admitted and served first. Fair to nobody, but short."""

from dataclasses import dataclass

import numpy as np

from sloserve.core.arrays import IntArray
from sloserve.scheduler.policy import Plan, Policy, Snapshot


class LastCome(Policy):
    """Reverses the order of arrival; preempts nobody."""

    needs = frozenset({"prompt_tokens"})

    @dataclass(frozen=True)
    class Settings(Policy.Settings):
        short_first_tokens: int = 0
        """prompts of at most so many tokens go ahead of all others; 0 makes no difference"""

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        rows = snapshot.rows

        def order(slots: IntArray) -> IntArray:
            long = rows.prompt_tokens[slots] > self.settings.short_first_tokens
            ranked: IntArray = slots[np.lexsort((-rows.seq[slots], long))]
            return ranked

        return Plan(running=order(snapshot.running), waiting=order(snapshot.waiting))
