"""Shortest remaining job first: least work left, prompt and output, is served first.

The output's length is predicted per class from the requests that ended, or as ``length`` says
(:mod:`sloserve.estimator.length.choice`). Victims of KV shortage are the longest.

Class rank decides first, since no targets are read: the shortest of the most urgent class is served before all others
(``classes=false``: one queue for all classes).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.rows import Rows
from sloserve.estimator.length.choice import check_lengths
from sloserve.lso.decode_first import tokens_without_kv
from sloserve.lso.lengths import LENGTH_COLUMNS
from sloserve.lso.ordering import PREEMPTION_COLUMNS, ClassRank, PreemptionRule, plan_by_key
from sloserve.scheduler.options import check_within
from sloserve.scheduler.policy import Plan, Policy, PredictingPolicy, Snapshot


class SJF(PredictingPolicy):
    """Serves the request with the least work left; starves long ones under overload unless ageing is on."""

    needs = PREEMPTION_COLUMNS | LENGTH_COLUMNS | {"class_rank"}

    @dataclass(frozen=True)
    class Settings(Policy.Settings):
        length: str = "predicted"
        """``predicted``, ``empirical``, ``gaussian`` or ``oracle``, see docs/profile.md"""
        length_error: float = 0.0
        """relative error of the oracle's lengths"""
        prompt_weight: float = 0.2
        """work of a prompt token relative to an output token's; on the shipped H100 and A100 profiles a prompt token
        costs 0.02 to 0.06 ms and an output token of a batch of 50 to 100 costs 0.1 to 0.4 ms"""
        preempt: bool = False
        """whether to preempt longer running requests for shorter waiting ones"""
        classes: bool = True
        """whether class rank decides first"""

        def __post_init__(self) -> None:
            check_lengths(self.length, self.length_error)
            check_within(self, 0, 1, "prompt_weight")

    def __init__(self, settings: Any = None, *, seed: int = 0) -> None:
        super().__init__(settings, seed=seed)
        self._rule = PreemptionRule(margin=1.0) if self.settings.preempt else None

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        rows = snapshot.rows
        return plan_by_key(
            snapshot,
            self._work(rows, snapshot.waiting),
            self._work(rows, snapshot.running),
            preempt=self._rule,
            class_rank=ClassRank.FIRST if self.settings.classes else ClassRank.UNREAD,
        )

    def _work(self, rows: Rows, slots: IntArray) -> FloatArray:
        """Return the weighted tokens left ``[len(slots)]``; a preempted request computes its prompt and output again.

        What the host pool keeps counts as well: it takes KV blocks from others as it comes back. Without this, victims
        came back before short requests: swap space cost readers in overload 4 points of attainment (docs/swap.md).
        """
        left = self._lengths.left(rows, slots)
        uncomputed = np.maximum(tokens_without_kv(rows, slots) + rows.swapped_tokens[slots], 0)
        work: FloatArray = left + self.settings.prompt_weight * uncomputed
        return work
