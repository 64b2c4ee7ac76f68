"""Strict priority: the request's own number (lower is earlier, as in vLLM), then the rank of its class, then arrival.

Differs from vLLM's ``--scheduling-policy priority``: a waiting request of better priority preempts a running one also
when all ``max_num_seqs`` slots are taken, not only when KV blocks run out (vLLM #40004).
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from sloserve.lso.ordering import PREEMPTION_COLUMNS, PreemptionRule, plan_by_key, ranks
from sloserve.scheduler.options import check_within
from sloserve.scheduler.policy import Plan, Policy, Snapshot


class Priority(Policy):
    """Serves the best priority; preempts for a strictly better one."""

    needs = PREEMPTION_COLUMNS | {"priority", "class_rank"}

    @dataclass(frozen=True)
    class Settings(Policy.Settings):
        preempt: bool = True
        """whether to preempt at all"""
        max_preemptions: int = 3
        """most preemptions of one request"""

        def __post_init__(self) -> None:
            check_within(self, 0, math.inf, "max_preemptions")

    def __init__(self, settings: Any = None, *, seed: int = 0) -> None:
        super().__init__(settings, seed=seed)
        self._rule = PreemptionRule(max_preemptions=self.settings.max_preemptions) if self.settings.preempt else None

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        rows, queued = snapshot.rows, snapshot.waiting.size
        slots = np.concatenate((snapshot.waiting, snapshot.running))
        key = ranks(rows.priority[slots], rows.class_rank[slots])
        return plan_by_key(snapshot, key[:queued], key[queued:], preempt=self._rule)
