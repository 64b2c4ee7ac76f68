"""EconoServe, as it pays on today's vLLM: admits who fits the KV cache to the end, first whose wait costs most.

vLLM admits while a block is free, and evicts when requests grow together. Here a request is admitted if, some standard
deviations aside, the cache will hold what all are expected to hold at every later step (``forecast``). If the next
block is missing all the same, whoever is served last sits out with its KV (EconoServe's offload-free preemption).

The order is by *stretch*: latency as a share of what was asked for. Serving first whoever has the least KV blocks x
steps to go, times its target, makes the sum of the stretches least (Smith's rule, the KV cache being the machine).

Source: EconoServe, Sec. 2 and 3. The paper's own form, two queues, exact allocation, groups and nested hosting, is the
policy ``econo-paper``. What differs, and what each part gains: benchmarks/README.md.
"""

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from sloserve.core.qoe import DEFAULT_TTFT_S
from sloserve.kernels.rank import top_k
from sloserve.lso.pausing import short_of_blocks
from sloserve.scheduler.econo.forecast import FORECAST_COLUMNS, Forecast, how_many_fit
from sloserve.scheduler.policy import NO_SLOTS, EngineFacts, Plan, Policy, Snapshot
from sloserve.scheduler.rows import FloatArray, IntArray, Rows

ORDERS: Final = ("stretch", "fcfs")
UNHURRIED_S: Final = 600.0
"""Target of a request that states none."""
MOST_ADMITTED: Final = 64
"""In one step; more prompts than a step's budget computes."""
_LATE: Final = 1e15
"""More than any request's tokens x steps x seconds."""


class Econo(Policy):
    """Admits who fits the KV cache to the end, the least KV x time x target first; who finds no block sits out."""

    needs = FORECAST_COLUMNS | {"arrival_s", "computed_tokens", "e2e_s", "tds", "tpot_s", "ttft_s"}

    @dataclass(frozen=True)
    class Settings:
        """order: ``stretch`` or ``fcfs``. late_last: whether those whose target has passed come after all others.

        sigmas: standard deviations of the foreseen occupancy kept free; ``inf`` admits one at a time, 0 as the mean
        has it. reserve: share of KV blocks kept free beside. foresee: whether to look ahead at all. pause: whether
        those without a next block sit out. length: ``predicted``, or ``oracle`` with a relative length_error.
        """

        order: str = "stretch"
        late_last: bool = False
        foresee: bool = True
        sigmas: float = 2.0
        reserve: float = 0.01
        pause: bool = True
        length: str = "predicted"
        length_error: float = 0.0

        def __post_init__(self) -> None:
            for name, allowed in (("order", ORDERS), ("length", ("predicted", "oracle"))):
                if getattr(self, name) not in allowed:
                    raise ValueError(f"{name}: {getattr(self, name)!r} is not one of {', '.join(allowed)}")
            if not 0.0 <= self.reserve <= 0.5:
                raise ValueError(f"reserve: {self.reserve} is not within 0..0.5")
            for name in ("sigmas", "length_error"):
                if not 0.0 <= getattr(self, name) < math.inf:
                    raise ValueError(f"{name}: {getattr(self, name)} is not 0 or more, and finite")

    def __init__(self, settings: Any = None, *, seed: int = 0) -> None:
        super().__init__(settings, seed=seed)
        oracle = self.settings.length == "oracle"
        self._forecast = Forecast(oracle=oracle, error=self.settings.length_error, seed=seed)

    def finished(self, rows: Rows, slot: int, now_s: float) -> None:
        self._forecast.observe(rows, slot)

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        rows, engine, queued = snapshot.rows, snapshot.engine, snapshot.waiting.size
        if not queued and engine.free_blocks >= snapshot.running.size:
            return Plan.IDENTITY
        slots = np.concatenate((snapshot.waiting, snapshot.running))
        key = self._key(rows, slots, now_s)
        seq = rows.seq[slots]
        waiting = snapshot.waiting[top_k(key[:queued], seq[:queued], min(queued, engine.max_num_seqs))]
        running = snapshot.running[np.lexsort((seq[queued:], key[queued:]))]
        pause = NO_SLOTS
        if self.settings.pause:
            pause = running[
                short_of_blocks(
                    rows.computed_tokens[running],
                    rows.prompt_tokens[running],
                    rows.pausable[running],
                    block_size=engine.block_size,
                    free_blocks=engine.free_blocks,
                )
            ]
        return Plan(
            running=running, waiting=waiting, pause=pause, max_running=self._most(rows, engine, waiting, running)
        )

    def _key(self, rows: Rows, slots: IntArray, now_s: float) -> FloatArray:
        """Who is served first, ascending, ``[n]``."""
        arrival_s = rows.arrival_s[slots]
        if self.settings.order == "fcfs":
            return arrival_s
        done = rows.output_tokens[slots]
        left = self._forecast.left_tokens(rows, slots)
        target_s = _target_s(rows, slots, done + left)
        # KV tokens x steps: it holds its context from now on, and what comes half of the time.
        cost = (rows.prompt_tokens[slots] + done + left / 2.0) * left
        key: FloatArray = cost * target_s
        if self.settings.late_last:
            key[now_s - arrival_s > target_s] += _LATE
        return key

    def _most(self, rows: Rows, engine: EngineFacts, waiting: IntArray, running: IntArray) -> int | None:
        """How many may run in the next step; ``None`` for as many as vLLM likes."""
        asked = waiting[: min(engine.free_slots, MOST_ADMITTED)]
        if not self.settings.foresee or not asked.size:
            return None
        fit = how_many_fit(
            self._forecast.occupancy(rows, running, engine.block_size),
            self._forecast.occupancy(rows, asked, engine.block_size),
            engine.total_blocks * (1.0 - self.settings.reserve),
            self.settings.sigmas,
        )
        return max(running.size + fit, 1)


def _target_s(rows: Rows, slots: IntArray, output_tokens: FloatArray) -> FloatArray:
    """Within how many seconds of its arrival a request of ``output_tokens`` should end, ``[n]``.

    Its e2e target, or else what its TTFT and TPOT (or TDS) come to, or else UNHURRIED_S.
    """
    ttft_s, tpot_s = rows.ttft_s[slots], rows.tpot_s[slots]
    tpot_s = np.where(np.isnan(tpot_s), 1.0 / rows.tds[slots], tpot_s)
    streamed_s = np.where(np.isnan(ttft_s), DEFAULT_TTFT_S, ttft_s) + np.where(
        np.isnan(tpot_s), 0.0, tpot_s * output_tokens
    )
    streamed_s = np.where(np.isnan(ttft_s) & np.isnan(tpot_s), UNHURRIED_S, streamed_s)
    e2e_s = rows.e2e_s[slots]
    return np.where(np.isnan(e2e_s), streamed_s, e2e_s)
