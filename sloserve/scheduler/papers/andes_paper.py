"""Andes in the form of its paper: whenever memory or time is short, the requests to serve next are chosen again.

*Trigger*: most of the KV cache is in use, or a step takes longer than the fastest reader's token. Else every request
is served in the order of arrival. *Choice*: for each candidate batch size, the requests of most QoE gained within the
horizon that fit the cache (Eq. 4); the size that gains most is taken. Running requests that were not chosen are
preempted, the least gain per token first, waiting ones that were chosen are admitted. *Cap*: once there were
``preemption_cap`` preemptions for each request that has arrived, the engine's own included, nothing more is preempted;
how often one request is hit does not matter.

``solver=greedy`` is Algorithm 1: by gain per token of context, until one does not fit. ``solver=dp`` is Algorithm 2,
which is exact and slow: virtual time charges it by the cells of the paper's tables, a column for each token of KV.

Source: Andes, Sec. 4 and Appendix C. Differs: weights are KV blocks and not tokens, so ``dp`` fills a table that is
smaller than what it is charged for; of the batch sizes between the least and the largest, BATCH_SIZES are considered,
not all; requests of equal gain per token go by whether they run, then by arrival, where the paper leaves it open.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.kernels.knapsack import pack_exact
from sloserve.core.rows import Rows
from sloserve.estimator.length.choice import check_lengths
from sloserve.lso.decode_first import service_order
from sloserve.scheduler.andes.outlook import COLUMNS, Outlook, reading_tds
from sloserve.scheduler.andes.policy import Andes
from sloserve.scheduler.options import check_within
from sloserve.scheduler.policy import EngineFacts, Plan, Policy, Snapshot

SOLVERS = ("greedy", "dp")
BATCH_SIZES = 8
"""Candidates between the least and the largest batch size."""


class AndesPaper(Andes):
    """Serves the requests of most QoE gained per token, and preempts all others."""

    needs = COLUMNS | {"num_preemptions", "preemptable"}

    @dataclass(frozen=True)
    class Settings(Policy.Settings):
        solver: str = "greedy"
        """``greedy`` (Algorithm 1) or ``dp`` (Algorithm 2)"""
        preemption_cap: float = 1.0
        """most preemptions per request on average"""
        horizon_s: float = 0.0
        """prediction timeframe, 0 for the mean time from first to last token"""
        watermark: float = 0.9
        """share of KV in use from which on requests are chosen; 0 chooses always"""
        length: str = "predicted"
        """``predicted``, ``empirical``, ``gaussian`` or ``oracle``, see docs/profile.md"""
        length_error: float = 0.0
        """relative error of the oracle's lengths"""

        def __post_init__(self) -> None:
            if self.solver not in SOLVERS:
                raise ValueError(f"solver: {self.solver!r} is not one of {', '.join(SOLVERS)}")
            check_within(self, 0, 1, "watermark")
            check_within(self, 0, math.inf, "preemption_cap", "horizon_s")
            check_lengths(self.length, self.length_error)

    def __init__(self, settings: Any = None, *, seed: int = 0) -> None:
        super().__init__(settings, seed=seed)
        self.horizon_s = self.settings.horizon_s or None
        self._ended_preemptions = 0

    def finished(self, rows: Rows, slot: int, now_s: float) -> None:
        super().finished(rows, slot, now_s)
        self._ended_preemptions += int(rows.num_preemptions[slot])

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        self.solver_cells = 0
        if not (snapshot.waiting.size or snapshot.running.size) or not self._is_triggered(snapshot):
            return Plan.IDENTITY
        all_ = self._outlook(snapshot, now_s)
        queued = snapshot.waiting.size
        chosen, priority = self._choose(snapshot, all_)
        victims = self._victims(snapshot, all_, chosen, priority)
        admitted = chosen[chosen < queued]
        others = np.setdiff1d(np.arange(queued), admitted)
        others = others[np.lexsort((snapshot.rows.seq[all_.slots[others]], -priority[others]))]
        stays = np.setdiff1d(np.arange(queued, all_.slots.size), victims)
        stays = stays[np.lexsort((snapshot.rows.seq[all_.slots[stays]], -priority[stays]))]
        return Plan(
            running=service_order(snapshot.rows, all_.slots[stays], snapshot.engine),
            waiting=all_.slots[np.concatenate((admitted, others))],
            preempt=all_.slots[victims],
            max_running=None if not others.size else max(stays.size + admitted.size, 1),
        )

    def _is_triggered(self, snapshot: Snapshot) -> bool:
        engine = snapshot.engine
        return 1.0 - engine.free_blocks / engine.total_blocks >= self.settings.watermark or self._is_slow(snapshot)

    def _is_slow(self, snapshot: Snapshot) -> bool:
        """Return whether a step of the running requests takes longer than the fastest reader's token."""
        rows, running = snapshot.rows, snapshot.running
        if not running.size:
            return False
        fastest = float(reading_tds(rows, np.concatenate((snapshot.waiting, running))).max())
        context = float(rows.computed_tokens[running].mean())
        return float(self._token_s(snapshot.engine, np.array([float(running.size)]), context)[0]) * fastest > 1.0

    def _batch_sizes(self, engine: EngineFacts, all_: Outlook, blocks: IntArray) -> FloatArray:
        """Return the candidate batch sizes, ascending whole numbers.

        The least is the largest that is still fast enough for the fastest reader, the largest what fits the KV cache.

        Args:
            engine: What the engine can do.
            all_: The outlook of all requests.
            blocks: KV blocks that each request of ``all_`` needs, ``[len(all_)]``.
        """
        most = int(np.searchsorted(np.cumsum(np.sort(blocks)), engine.total_blocks, side="right"))
        most = max(min(most, engine.max_num_seqs), 1)
        sizes = np.arange(1, most + 1).astype(np.float64)
        fast = self._token_s(engine, sizes, float(all_.context_tokens.mean())) * all_.tds.max() <= 1.0
        least = max(int(fast.sum()), 1)
        return np.unique(np.geomspace(least, most, BATCH_SIZES).round()).astype(np.float64)

    def _choose(self, snapshot: Snapshot, all_: Outlook) -> tuple[IntArray, FloatArray]:
        """Return indices of the requests to serve, the highest priority first, and each request's priority (Eq. 5)."""
        engine = snapshot.engine
        blocks = engine.layout.to_admit(all_.context_tokens + 1)  # + 1: the slot of the next token
        batches = self._batch_sizes(engine, all_, blocks)
        tokens = int(engine.layout.capacity_tokens(engine.total_blocks, float(all_.context_tokens.mean())))
        gains = self._foresee(engine, all_, batches).gain
        waits = np.arange(all_.slots.size) < snapshot.waiting.size
        best, best_gain, best_priority = np.empty(0, np.int64), -1.0, np.empty(0)
        # Of sizes that gain as much, the largest serves most.
        for batch, gain in zip(batches.astype(np.int64)[::-1].tolist(), gains[::-1], strict=True):
            priority = gain / blocks
            order = np.lexsort((snapshot.rows.seq[all_.slots], waits, -priority))
            if self.settings.solver == "dp":
                self.solver_cells += gain.size * batch * tokens
                packed = pack_exact(gain, blocks, engine.total_blocks, min(batch, gain.size))
                found = order[np.isin(order, packed)] if packed is not None else order[:0]
            else:
                fits = int(np.searchsorted(np.cumsum(blocks[order]), engine.total_blocks, side="right"))
                found = order[: min(fits, batch)]
            if (gained := float(gain[found].sum())) > best_gain:
                best, best_gain, best_priority = found, gained, priority
        return best, best_priority

    def _victims(self, snapshot: Snapshot, all_: Outlook, chosen: IntArray, priority: FloatArray) -> IntArray:
        """Return indices of the running requests to preempt, the lowest priority first, as many as the cap leaves."""
        running = np.setdiff1d(np.arange(snapshot.waiting.size, all_.slots.size), chosen)
        running = running[snapshot.rows.preemptable[all_.slots[running]]]
        order = np.lexsort((-snapshot.rows.seq[all_.slots[running]], priority[running]))
        preemptions = self._ended_preemptions + int(snapshot.rows.num_preemptions[all_.slots].sum())
        victims: IntArray = running[order][: max(int(self._may_preempt) - preemptions, 0)]
        return victims
