"""Schedulers that EconoServe's measurements begin with: ORCA, SRTF, Sarathi-Serve. FastServe is in ``mlfq``; the
policies with exact allocation are in ``coupled``.

Each follows the rule that its paper describes, on vLLM's engine: iteration-level batches, chunked prompts, paged KV,
and recomputation after a preemption. The costs of the papers' own kernels and copies are not reproduced.

Source: EconoServe, Sec. 2.1 and 2.2.
"""

import math
from dataclasses import dataclass

import numpy as np

from benchmarks.baselines.allocation import RESERVATION_COLUMNS, admit, max_blocks, oldest
from benchmarks.baselines.preemptive import RANKED_COLUMNS, plan_ranked
from sloserve.core.arrays import IntArray
from sloserve.estimator.length.choice import check_lengths
from sloserve.lso.lengths import LENGTH_COLUMNS
from sloserve.scheduler.options import check_within
from sloserve.scheduler.policy import Plan, Policy, PredictingPolicy, Snapshot


class Orca(Policy):
    """First come, first served, in a small batch, with KV reserved for the longest possible reply.

    Source: ORCA (OSDI 2022), Sec. 4.2: the scheduler reserves max_tokens slots of KV at admission; EconoServe, Sec. 2.1
    gives the batch of 8. Differs: chunked prompts; prompts and tokens share attention kernels.
    """

    full_attention_only = True
    needs = RESERVATION_COLUMNS

    @dataclass(frozen=True)
    class Settings(Policy.Settings):
        batch: int = 8
        """most requests that run at once; 0 for as many as fit. 16 in the paper for OPT-175B"""

        def __post_init__(self) -> None:
            if self.batch < 0:
                raise ValueError(f"batch: {self.batch} requests is negative; 0 is no limit")

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        rows, engine = snapshot.rows, snapshot.engine
        order = oldest(rows, snapshot.waiting, engine.max_num_seqs)

        def blocks(slots: IntArray) -> IntArray:
            return max_blocks(rows, slots, engine)

        return admit(snapshot, order, blocks, int(blocks(snapshot.running).sum()), self.settings.batch)


class Sarathi(Policy):
    """vLLM's own order, in steps of few tokens: long prompts are cut into small chunks, so that decodes do not wait.

    Source: Sarathi-Serve (OSDI 2024), Sec. 4: stall-free batching, token budget 512 for the stricter of its targets.
    Differs: vLLM chunks prompts and serves running requests first by itself; the budget is all there is to set.
    """

    full_attention_only = True
    needs = frozenset({"seq"})

    @dataclass(frozen=True)
    class Settings(Policy.Settings):
        tokens: int = 512
        """most that a step computes; below the number of requests that run, some get no token in a step"""

        def __post_init__(self) -> None:
            if self.tokens < 1:
                raise ValueError(f"tokens: {self.tokens} a step is not at least 1")

    @property
    def limits_steps(self) -> bool:
        return True

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        return Plan(token_budget=self.settings.tokens)


class SRTF(PredictingPolicy):
    """Shortest remaining time first, decided in each step, with KV reserved for the longest possible reply.

    The request with most left is preempted for requests with less, as far as their reservations need the room.

    Source: EconoServe, Sec. 2.1 (SRTF). Differs: the paper does not say what becomes of the KV of preempted requests;
    it is recomputed here. A request is not preempted again after ``max_preemptions``: remaining times that are only
    predicted may grow while a request runs.
    """

    full_attention_only = True
    needs = RANKED_COLUMNS | LENGTH_COLUMNS | {"num_preemptions", "preemptable"}

    @dataclass(frozen=True)
    class Settings(Policy.Settings):
        length: str = "predicted"
        """``predicted``, ``empirical``, ``gaussian`` or ``oracle``, see docs/profile.md"""
        length_error: float = 0.0
        """relative error of the oracle's lengths"""
        max_preemptions: int = 3
        """most preemptions of one request"""

        def __post_init__(self) -> None:
            check_lengths(self.length, self.length_error)
            check_within(self, 0, math.inf, "max_preemptions")

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        rows, running = snapshot.rows, snapshot.running
        fixed = ~rows.preemptable[running] | (rows.num_preemptions[running] >= self.settings.max_preemptions)
        running_key = np.where(fixed, -np.inf, self._lengths.left(rows, running))
        return plan_ranked(snapshot, self._lengths.left(rows, snapshot.waiting), running_key)
