"""Simulated annealing: the order of service that meets most targets for the least summed latency.

A new plan is made when a request arrived or ended; between, the order holds. What runs stays; there are no preemptions.
Output lengths are predicted by the length model of the server, if it has one, and else by a Gaussian per class fitted
on line, as in the paper (``length=gaussian``), or otherwise (:mod:`sloserve.estimator.length.choice`); step times are
the engine's. The speed of a reader (TDS) is treated as a TPOT target. A good order puts requests that it cannot help
behind all others: they starve under overload unless ageing is on. A request without targets counts by its latency
alone; class rank decides as well: whatever order is found, it is admitted before every request of a less urgent class.

Source: SLO-aware scheduling by simulated annealing, Algorithm 1. Differs: see csrc/include/sloserve/anneal.h.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sloserve.core.arrays import IntArray
from sloserve.core.kernels.anneal import BatchRequests, BatchTimes, Cooling, anneal
from sloserve.core.rows import Rows
from sloserve.estimator.length.choice import PREDICTED_GAUSSIAN, check_lengths
from sloserve.estimator.step_time.online import OnlineLatency
from sloserve.estimator.step_time.profile import ProfileName, load_profile
from sloserve.lso.decode_first import PREFILL_COLUMNS, uncomputed_tokens
from sloserve.lso.drafted import DRAFT_COLUMNS, tokens_per_step
from sloserve.lso.lengths import LENGTH_COLUMNS
from sloserve.lso.ordering import by_class, first_places, without_targets
from sloserve.lso.pace import pace_s
from sloserve.scheduler.options import check_within
from sloserve.scheduler.policy import NO_SLOTS, EngineFacts, Plan, Policy, PredictingPolicy, Snapshot
from sloserve.scheduler.sa.times import RemainingWork, Slots, bilinear_of, slot_times

MOST_ANNEALED = 512
"""Waiting requests that are planned by annealing; the others follow, the shortest first."""

MOST_PLANS_A_FIT = 1000
"""Plans between two readings of the engine's step times, fewer at first; a reading takes some milliseconds."""

_PLAN_NS = 2.5e5
_MOST_MOVES = 2000
_TEMPERATURES = 45


def cooling_for(requests: int, max_batch: int, effort: float) -> Cooling:
    """Return a cooling with as many moves as take about 0.25 ms, times ``effort``.

    A move costs 100 ns, and more where more requests follow. The limit is a count, not a time: the same requests get
    the same plan on a slow machine.
    """
    moves = min(_PLAN_NS / (100.0 + 3.0 * requests + 4.0 * min(max_batch, requests)), _MOST_MOVES)
    return Cooling(moves=round(effort * moves / _TEMPERATURES))


class SA(PredictingPolicy):
    """Searches the order that meets the most targets with the least summed latency, by predicted lengths."""

    needs = (
        LENGTH_COLUMNS
        | DRAFT_COLUMNS
        | PREFILL_COLUMNS
        | {"arrival_s", "class_rank", "e2e_s", "first_token_s", "tds", "tpot_s", "ttft_s"}
    )

    @dataclass(frozen=True)
    class Settings(Policy.Settings):
        length: str = PREDICTED_GAUSSIAN
        """``predicted``, ``predicted-gaussian``, ``empirical``, ``gaussian`` or ``oracle``, see docs/profile.md"""
        length_error: float = 0.0
        """relative error of the oracle's lengths"""
        profile: ProfileName | Path | None = None
        """name or file of the step times; learnt from the engine's steps if not given"""
        effort: float = 1.0
        """number of search moves, as a multiple of what takes 0.25 ms"""

        def __post_init__(self) -> None:
            check_lengths(self.length, self.length_error)
            check_within(self, 0, 1000, "effort")

    def __init__(self, settings: Any = None, *, seed: int = 0) -> None:
        super().__init__(settings, seed=seed)
        profile = self.settings.profile
        self._fit = bilinear_of(OnlineLatency() if profile is None else load_profile(profile))
        self._plans = self._fit_at = 0
        self._changed = False
        self._order = NO_SLOTS
        self._max_running: int | None = None

    def arrived(self, rows: Rows, slot: int, now_s: float) -> None:
        self._changed = True

    def finished(self, rows: Rows, slot: int, now_s: float) -> None:
        self._changed = True
        super().finished(rows, slot, now_s)

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        waiting = self._in_last_order(snapshot)
        if not waiting.size:
            self._order, self._max_running = NO_SLOTS, None
            return Plan.IDENTITY
        if self._changed:
            if self.settings.profile is None and self._plans >= self._fit_at:
                self._fit = bilinear_of(snapshot.engine.step_latency)
                self._fit_at = self._plans + min(self._plans + 1, MOST_PLANS_A_FIT)
            self._plans += 1
            waiting, self._max_running = self._annealed(snapshot, waiting, now_s)
            waiting = _by_class(snapshot.rows, waiting)
            self._changed = False
        self._order = waiting
        return Plan(waiting=snapshot.woven(snapshot.by_level(waiting)[:MOST_ANNEALED]), max_running=self._max_running)

    def _in_last_order(self, snapshot: Snapshot) -> IntArray:
        """Return the waiting requests in the last plan's order, and new requests behind them as they came."""
        waits = np.zeros(snapshot.rows.capacity, np.bool_)
        waits[snapshot.waiting] = True
        known = self._order[waits[self._order]]
        waits[known] = False
        new = snapshot.waiting[waits[snapshot.waiting]]
        return np.concatenate((known, new[np.argsort(snapshot.rows.seq[new])]))

    def _annealed(self, snapshot: Snapshot, waiting: IntArray, now_s: float) -> tuple[IntArray, int | None]:
        """Return the new order, and how many may run, if limited."""
        rows, engine, running = snapshot.rows, snapshot.engine, snapshot.running
        rest = NO_SLOTS
        if waiting.size > MOST_ANNEALED:
            work = self._work(rows, waiting, engine)
            order = np.lexsort((rows.seq[waiting], work.prefill_tokens + work.output_tokens))
            waiting, rest = waiting[np.sort(order[:MOST_ANNEALED])], waiting[order[MOST_ANNEALED:]]
        present = np.concatenate((running, waiting))
        work = self._work(rows, present, engine)
        # Eq. 20, at full use of the memory: a batch holds as many as the KV cache does.
        room = int(engine.layout.capacity_tokens(engine.total_blocks, work.mean_kv_tokens) / work.mean_kv_tokens)
        max_batch = max(min(engine.max_num_seqs, room), running.size, 1)
        order, max_running = self._best_order(snapshot, present, work, max_batch, now_s)
        return np.concatenate((order, rest)), max_running

    def _best_order(
        self, snapshot: Snapshot, present: IntArray, work: RemainingWork, max_batch: int, now_s: float
    ) -> tuple[IntArray, int | None]:
        """Return the best order of the waiting requests of ``present``, and how many may run, ``None`` for no limit.

        The policy ``sa-batches`` (:mod:`sloserve.scheduler.papers.sa_batches`) overrides this in a subclass to plan in
        batches.
        """
        fixed = snapshot.running.size
        bind = present.size > max_batch
        # Free slots fill up: from the running requests to all.
        slots = max_batch if bind else (fixed + present.size + 1) // 2
        times = slot_times(self._fit, work, Slots(slots, snapshot.engine.token_budget, bind))
        requests = self._requests(snapshot.rows, present, work, times, now_s)
        queue = BatchRequests(np.ascontiguousarray(requests.columns[:, fixed:]))
        plan = anneal(queue, 1, cooling=cooling_for(present.size - fixed, 1, self.settings.effort), seed=self.seed)
        return present[fixed + plan.order], None

    def _work(self, rows: Rows, slots: IntArray, engine: EngineFacts) -> RemainingWork:
        done = rows.output_tokens[slots]
        left = self._lengths.left(rows, slots)
        context = rows.prompt_tokens[slots] + done
        per_step = tokens_per_step(rows, slots, engine)
        return RemainingWork(uncomputed_tokens(rows, slots), context, left, per_step)

    def _requests(
        self, rows: Rows, slots: IntArray, work: RemainingWork, times: BatchTimes, now_s: float
    ) -> BatchRequests:
        """Return the targets that can still be met or missed; what was missed already stays so."""
        waited = np.maximum(now_s - rows.arrival_s[slots], 0.0)
        first, done = rows.first_token_s[slots], rows.output_tokens[slots]
        begun = ~np.isnan(first)
        spent = np.where(begun, now_s - first, 0.0)
        return BatchRequests.of(
            times,
            waited_s=waited,
            ttft_s=np.where(begun, np.nan, rows.ttft_s[slots]),
            decode_limit_s=pace_s(rows, slots) * (done + work.output_tokens) - spent,
            e2e_s=rows.e2e_s[slots],
        )


def _by_class(rows: Rows, order: IntArray) -> IntArray:
    """Return ``order``, with class rank applied where no target decides."""
    place, rank = np.arange(order.size, dtype=np.float64), rows.class_rank[order]
    lowered = by_class(place, rank, without_targets(rows, order))
    return order[first_places(place, lowered, rank, rows.seq[order], order.size)]
