"""One policy for all kinds of targets: serves the request with the most expected gain per cost.

Each request has one number, its gain over its cost (``worth.py``).
Deadlines, readers and best effort are parts of the same gain, so that no kind of target switches the rule of another.
Admission keeps the KV cache from being promised twice (``forecast``), and a running request gives way where the
waiting one gains clearly more than it loses, and what its KV costs to compute again or to swap.

A request for which no targets decide is served before every request of a less urgent class, as under all policies here.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.kernels.kv_layout import KVLayout
from sloserve.core.kernels.requests import context_and_uncomputed
from sloserve.core.kernels.survival import Chances
from sloserve.core.rows import Rows
from sloserve.estimator.length.choice import check_lengths
from sloserve.lso.decode_first import progress_columns, service_order
from sloserve.lso.draft_lengths import DRAFT_LENGTH_COLUMNS, LENGTH_OF_DRAFTS
from sloserve.lso.drafted import tokens_per_step
from sloserve.lso.engine_pace import pace_of
from sloserve.lso.forecast import AHEAD, counted_once, how_many_fit_to_the_end
from sloserve.lso.ordering import PREEMPTION_COLUMNS, by_class, ranked, without_targets, woven_places
from sloserve.lso.preemption import Head, PreemptionCandidate, freed_blocks, select_victims
from sloserve.lso.swapping import preemption_price
from sloserve.scheduler.auto.worth import WORTH_COLUMNS, worth_of
from sloserve.scheduler.options import check_within
from sloserve.scheduler.policy import NO_SLOTS, EngineFacts, Plan, Policy, PredictingPolicy, Snapshot

LEAST_WORK_AT: Final = 0.1
"""Share of the KV cache that later requests will find again from which on the least work goes first."""
MOST_ADMITTED: Final = 64
"""Most requests that are admitted in one step; more prompts than a step's budget computes."""


class Auto(PredictingPolicy):
    """Serves the request with the most expected gain per cost, for all kinds of targets."""

    needs = PREEMPTION_COLUMNS | WORTH_COLUMNS

    plans_on_events = True

    gives_up = True

    @dataclass(frozen=True)
    class Settings(Policy.Settings):
        step_budget: bool = True
        """limit the prompt tokens of each step, see docs/step-budget.md; on unless it is turned off"""
        sigmas: float = 1.0
        """standard deviations of the predicted KV usage to keep free; 0 plans with the mean"""
        reserve: float = 0.01
        """further share of KV blocks to keep free"""
        preempt: bool = True
        """whether to preempt at all"""
        hysteresis: float = 0.25
        """by how much the gain of a preemption must exceed its loss, in good requests"""
        max_preemptions: int = 2
        """most preemptions of one request"""
        tail: float = 1.5
        """how much the longest waits of requests without targets count: 0 serves the least work first, for the lowest
        mean latency; the larger, the nearer to order of arrival"""
        length: str = "predicted"
        """``predicted``, ``empirical``, ``gaussian`` or ``oracle``, see docs/profile.md"""
        length_error: float = 0.0
        """relative error of the oracle's lengths"""
        drafts: str = "all"
        """draft tokens that decodes verify: ``all`` that vLLM schedules, fewer by ``load`` or by ``slack``"""

        def __post_init__(self) -> None:
            check_lengths(self.length, self.length_error)
            if self.drafts not in LENGTH_OF_DRAFTS:
                raise ValueError(f"drafts: {self.drafts!r} is not one of {', '.join(LENGTH_OF_DRAFTS)}")
            check_within(self, 0.0, 0.5, "reserve")
            check_within(self, 0.0, math.inf, "sigmas", "hysteresis", "max_preemptions", "tail")

    @property
    def reads(self) -> frozenset[str]:
        return super().reads | (DRAFT_LENGTH_COLUMNS if self.drafts != "all" else frozenset())

    @property
    def drafts(self) -> str:
        return str(self.settings.drafts)

    def is_idle(self, waiting: int, running: int, engine: EngineFacts) -> bool:
        return not waiting and engine.has_room_for(running)

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        rows, engine = snapshot.rows, snapshot.engine
        queued = snapshot.waiting.size
        if self.is_idle(queued, snapshot.running.size, engine):
            return Plan.IDENTITY
        slots = np.concatenate((snapshot.waiting, snapshot.running))
        context, prefill = context_and_uncomputed(progress_columns(rows), slots)
        left, runs = self._lengths.outlook(rows, slots, AHEAD)
        pace = pace_of(engine, snapshot.running.size, int(context[queued:].sum()))
        again_s = context[queued:] * pace.prompt_token_s * preemption_price(rows, snapshot.running, engine)
        charged = prefill if engine.swap is None else _as_if_dropped(rows, slots, queued, context, prefill)
        per_step = tokens_per_step(rows, slots, engine)
        gain, cost, urgency, _ = worth_of(
            rows,
            engine,
            pace,
            runs,
            queued=queued,
            left=left,
            per_step=per_step,
            prefill_tokens=charged,
            again_s=again_s,
            tail=self._tail(snapshot),
            now_s=now_s,
        )
        far_over = snapshot.gives_way(slots)
        if far_over is not None:  # far beyond its share, a tenant only has what the others leave
            gain = np.where(far_over, 0.0, gain)
        undecided = without_targets(rows, slots)
        found = ranked(snapshot, slots, -urgency, undecided)
        waiting, running = found.waiting, queued + found.running
        order = woven_places(snapshot, waiting)
        stay, victims, most = slots[running], NO_SLOTS, None
        if queued:
            fit = self._fit(snapshot, context, runs, running, order)
            if self.settings.preempt and fit < order.size:
                of_all = float(gain[:queued].sum()) / max(float(cost[:queued].sum()), 1e-9)
                heads = self._heads(order, waiting, prefill, engine, fit)
                # Without targets a running request loses no less than any request of a less urgent class gains.
                at_stake = -gain
                at_stake[queued:] -= of_all * again_s
                loss = -by_class(at_stake, rows.class_rank[slots], undecided)
                if far_over is not None:  # whatever its class
                    loss[far_over] = -at_stake[far_over]
                victims, more = self._make_room(snapshot, slots, order[:fit], heads, gain, running, loss)
                fit += more
            if victims.size:
                stay = stay[~np.isin(stay, victims)]
            most = max(stay.size + fit, 1)
        return Plan(running=service_order(rows, stay, engine), waiting=slots[order], preempt=victims, max_running=most)

    def _tail(self, snapshot: Snapshot) -> float:
        """Return the option ``tail``, less the more of the cache holds KV that later requests will find again.

        Where tasks send one call after another, a request that waits loses its KV, and the task's next request comes
        later for it. Served by least work, the calls of tasks in progress go before the calls of new tasks, so that
        fewer tasks compete for the cache.
        """
        share = snapshot.awaited_blocks / snapshot.engine.total_blocks
        tail: float = self.settings.tail
        return tail * max(1.0 - share / LEAST_WORK_AT, 0.0)

    def _fit(
        self,
        snapshot: Snapshot,
        context: IntArray,
        runs: Chances,
        running: IntArray,
        waiting: IntArray,
    ) -> int:
        """Return how many of ``waiting``, in order, the KV cache will hold beside ``running``, to the end of all."""
        engine, queued = snapshot.engine, snapshot.waiting.size
        most = min(engine.free_slots, MOST_ADMITTED)
        if not most:
            return 0
        capacity = snapshot.forecast_blocks(self.settings.reserve)
        if snapshot.shared_blocks:
            context = np.concatenate((context[:queued], counted_once(snapshot, context[queued:], snapshot.running)))
        return how_many_fit_to_the_end(
            runs, context, engine.layout, running, waiting[:most], capacity, self.settings.sigmas
        )

    def _heads(
        self, order: IntArray, ranked: IntArray, prefill: IntArray, engine: EngineFacts, fit: int
    ) -> list[tuple[int, int]]:
        """Return the requests after the first ``fit`` in ``order``, each with the request of its rank, for its gain.

        There are at most as many as a step can begin with.
        """
        begun = engine.begun(prefill[order])
        last = max(begun, fit + 1)
        return list(zip(order[fit:last].tolist(), ranked[fit:last].tolist(), strict=True))

    def _make_room(
        self,
        snapshot: Snapshot,
        slots: IntArray,
        admitted: IntArray,
        heads: list[tuple[int, int]],
        gain: FloatArray,
        running: IntArray,
        loss: FloatArray,
    ) -> tuple[IntArray, int]:
        """Return the slots to preempt, and how many of ``heads`` are then admitted beyond what the forecast allows.

        What is free is promised once: the requests in ``admitted`` come first, and the heads get what they leave. A
        running request will have to give way for each head, now or later: it is admitted where its gain clearly exceeds
        the loss of the requests that lose least for the blocks that they free.
        """
        rows, engine = snapshot.rows, snapshot.engine
        may = rows.preemptable[slots[running]] & (rows.num_preemptions[slots[running]] < self.settings.max_preemptions)
        able = running[may]
        if not (heads and able.size):
            return NO_SLOTS, 0
        per_block = loss[able] / np.maximum(rows.kv_blocks[slots[able]], 1)
        # Most often the first gains less than any preemption loses, and the others need no order.
        if not gain[heads[0][1]] - loss[able[per_block.argmin()]] > self.settings.hysteresis:
            return NO_SLOTS, 0
        able = able[np.argsort(per_block, kind="stable")]
        worth_it = []
        for (place, counted), least in zip(heads, loss[able[: len(heads)]].tolist(), strict=False):
            if not gain[counted] - least > self.settings.hysteresis:
                break
            worth_it.append((place, float(gain[counted])))
        if not worth_it:
            return NO_SLOTS, 0
        places = np.array([place for place, _ in worth_it])
        needed, promised = (_blocks_to_start(rows, slots[some], engine.layout) for some in (places, admitted))
        free_slots = engine.free_slots - admitted.size
        kept = int(promised.sum()) + math.ceil(self.settings.reserve * engine.total_blocks)
        free_blocks = engine.admission_blocks - kept
        victims = select_victims(
            [Head(-value, blocks) for (_, value), blocks in zip(worth_it, needed.tolist(), strict=True)],
            map(PreemptionCandidate, slots[able].tolist(), (-loss[able]).tolist()),
            snapshot.holding,
            free_slots=free_slots,
            free_blocks=free_blocks,
            margin=self.settings.hysteresis,
        )
        room = free_blocks + sum(freed_blocks(map(snapshot.holding, victims)))
        more = min(int(np.searchsorted(np.cumsum(needed), room, side="right")), max(free_slots, 0) + len(victims))
        return (np.array(victims, np.int64) if victims else NO_SLOTS), more


def _as_if_dropped(rows: Rows, slots: IntArray, queued: int, context: IntArray, prefill: IntArray) -> IntArray:
    """Return ``prefill`` as if no KV of preempted requests were kept on the host.

    If it were cheap to bring back, a victim would come back before the requests that it gave way to, and be preempted
    again. The KV of a request that continues an ended one counts as what the prefix cache has.
    """
    waiting = slots[:queued]
    swapped = np.where(rows.num_preemptions[waiting] > 0, rows.swapped_tokens[waiting], 0)
    again = np.minimum(prefill[:queued] + swapped, context[:queued])
    return np.concatenate((again, prefill[queued:]))


def _blocks_to_start(rows: Rows, slots: IntArray, layout: KVLayout) -> IntArray:
    """Return the KV blocks that each request takes until its next token is there."""
    return layout.to_admit(rows.prompt_tokens[slots] + rows.output_tokens[slots] + 1)
