"""FastServe's scheduler: a multi-level feedback queue over tokens, joined at the level of the prompt.

Short replies are served before long ones although lengths are not known. A request is served until it has used up the
quantum of its level, and then falls to the next level, whose quantum is twice as large. In the last level it is served
to its end. A prompt's work is known beforehand: a request joins at the first level whose quantum its prompt would not
use up (skip-join). A request that has not been served for long returns to the top.

Each plan serves the first requests by level, then by the time they entered it, with max-allocation for the batch. Other
running requests are paused with their KV, as long as there is room for it beside the reservations; else they are
preempted, the last by rank first.

Source: FastServe (NSDI 2026), Sec. 4, as EconoServe compares with it (Sec. 2.1: 5 queues, batches of 8,
max-allocation). Differs: quanta are output tokens, not seconds, since steps of a full batch take about as long; a
request that falls goes to the end of the next level (FastServe's released code puts it in front); a preempted request
is recomputed, not swapped to the host, so quanta are longer than its 10 ms by default.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.baselines.preemptive import RANKED_COLUMNS, plan_ranked
from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.rows import Rows
from sloserve.lso.ordering import ranks
from sloserve.scheduler.options import check_within
from sloserve.scheduler.policy import Plan, Policy, Snapshot


class FastServe(Policy):
    """Serves the requests with the least service so far, in levels; those of lower levels are paused or preempted."""

    full_attention_only = True
    needs = RANKED_COLUMNS | {"kv_blocks", "preemptable", "pausable"}
    wants_progress = True

    @dataclass(frozen=True)
    class Settings(Policy.Settings):
        levels: int = 5
        """of the queue"""
        quantum_tokens: int = 32
        """output tokens of the first level; by default the five together reach the longest replies of ShareGPT"""
        prompt_weight: float = 0.2
        """work of a prompt token relative to an output token's"""
        batch: int = 8
        """most requests served at once, 0 for as many as fit"""
        promote_s: float = 300.0
        """time without a token after which a request returns to the top, 0 for never. The 3 s of FastServe's code cost
        a quarter of the throughput where more wait than a batch: a request that returns displaces another, which is
        recomputed here"""

        def __post_init__(self) -> None:
            check_within(self, 1, 32, "levels")
            if not 1 <= self.quantum_tokens <= 2**20:
                raise ValueError(f"quantum_tokens: {self.quantum_tokens} is not within 1..{2**20}")
            check_within(self, 0, 1, "prompt_weight")
            if self.batch < 0:
                raise ValueError(f"batch: {self.batch} requests is negative; 0 is no limit")
            check_within(self, 0, np.inf, "promote_s")

    def __init__(self, settings: Any = None, *, seed: int = 0) -> None:
        super().__init__(settings, seed=seed)
        # Of all levels but the last, which has no end.
        self._quanta: IntArray = self.settings.quantum_tokens << np.arange(self.settings.levels - 1)
        self._moves = 0
        # By slot.
        self._level = self._used = self._entered = np.empty(0, np.int64)
        self._served_s: FloatArray = np.empty(0)

    def arrived(self, rows: Rows, slot: int, now_s: float) -> None:
        missing = rows.capacity - self._level.size
        if missing:
            more = (0, missing)
            self._level, self._used = np.pad(self._level, more), np.pad(self._used, more)
            self._entered, self._served_s = np.pad(self._entered, more), np.pad(self._served_s, more)
        # The output counts where this policy takes over a request that is being served.
        work = self.settings.prompt_weight * rows.prompt_tokens[slot] + rows.output_tokens[slot]
        self._enter(np.array([slot]), int(np.searchsorted(self._quanta, work)))
        self._served_s[slot] = now_s

    def progressed(self, rows: Rows, slots: IntArray, tokens: IntArray, now_s: float) -> None:
        self._served_s[slots] = now_s
        self._used[slots] += tokens
        upper = slots[self._level[slots] < self._quanta.size]
        over = upper[self._used[upper] >= self._quanta[self._level[upper]]]
        if over.size:
            self._enter(over, self._level[over] + 1)

    def _enter(self, slots: IntArray, level: IntArray | int) -> None:
        """Puts requests at the end of a level; requests that enter together are in order of ``seq``."""
        self._moves += 1
        self._level[slots], self._used[slots], self._entered[slots] = level, 0, self._moves

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        rows, running = snapshot.rows, snapshot.running
        if self.settings.promote_s > 0.0:
            self._promote(np.concatenate((snapshot.waiting, running)), now_s)
        touchable = rows.preemptable[running] & rows.pausable[running]
        slots = np.concatenate((snapshot.waiting, running))
        key = ranks(self._level[slots], self._entered[slots])
        return plan_ranked(
            snapshot,
            key[: snapshot.waiting.size],
            np.where(touchable, key[snapshot.waiting.size :], -np.inf),
            batch=self.settings.batch or None,
            pause=True,
        )

    def _promote(self, slots: IntArray, now_s: float) -> None:
        lower = slots[self._level[slots] > 0]
        starving = lower[now_s - self._served_s[lower] >= self.settings.promote_s]
        if starving.size:
            self._enter(starving, 0)
