"""EconoServe, adapted to today's vLLM: admits requests that fit the KV cache to their end, in an order of stretch.

vLLM admits while a block is free, and preempts when requests grow together. Here a request is admitted if, some
standard deviations aside, the cache will hold what all are expected to hold at every later step (``forecast``). A long
request gives its KV up where that saves the waiting ones more than it costs (``victim``). If the next block is
missing all the same, vLLM preempts the request that is served last.

The order is by *stretch*: latency as a share of what was asked for. Serving first the request with the least KV blocks
x steps to go, times its target, makes the sum of the stretches least (Smith's rule, the KV cache being the machine). A
request without targets counts with one of ``UNHURRIED_S``, and class rank decides beside: it is served before every
request of a less urgent class.

Source: EconoServe, Sec. 2 and 3. The paper's own form, two queues, exact allocation, groups and nested hosting, is the
policy ``econo-paper``, and none of these is in this policy; ``econo-parts`` takes single parts of this one away. What
differs, and what each part gains: docs/benchmarks/econo.md.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.qoe import DEFAULT_TTFT_S
from sloserve.core.rows import Rows
from sloserve.estimator.length.choice import check_lengths
from sloserve.lso.decode_first import PREFILL_COLUMNS, service_order
from sloserve.lso.forecast import OCCUPANCY_COLUMNS, counted_once, how_many_fit, occupancy
from sloserve.lso.ordering import ranked, without_targets, woven_places
from sloserve.lso.pace import pace_s
from sloserve.lso.swapping import preemption_price
from sloserve.scheduler.econo.victim import TOKENS_PER_STEP, ServiceOrder, victim_worth_preempting
from sloserve.scheduler.options import check_within
from sloserve.scheduler.policy import NO_SLOTS, EngineFacts, Plan, Policy, PredictingPolicy, Snapshot

UNHURRIED_S: Final = 600.0
"""Target in seconds of a request that states none."""
MOST_ADMITTED: Final = 64
"""Most requests that are admitted in one step; more prompts than a step's budget computes."""
_LATE: Final = 1e15
"""Key difference that is more than any request's tokens x steps x seconds."""


class Econo(PredictingPolicy):
    """Admits requests that fit the KV cache to their end, least KV x time x target first; preempts if it gains time.

    ``econo-parts`` (:mod:`sloserve.scheduler.papers.econo_parts`) overrides ``_key`` and ``_room``.
    """

    needs = (
        OCCUPANCY_COLUMNS
        | PREFILL_COLUMNS
        | {
            "arrival_s",
            "class_rank",
            "e2e_s",
            "num_preemptions",
            "tds",
            "tpot_s",
            "ttft_s",
        }
    )

    @dataclass(frozen=True)
    class Settings(Policy.Settings):
        late_last: bool = False
        """whether requests with a missed target come after all others of their class"""
        sigmas: float = 1.0
        """standard deviations of the predicted KV usage to keep free; 0 plans with the mean"""
        reserve: float = 0.01
        """further share of KV blocks to keep free"""
        preempt: bool = True
        """whether to preempt a long request for waiting ones, if they gain more time than recomputing or swapping it
        costs"""
        max_preemptions: int = 2
        """most preemptions of one request"""
        tokens_per_step: float = TOKENS_PER_STEP
        """context tokens that are recomputed in the time of a step"""
        length: str = "predicted"
        """``predicted``, ``empirical``, ``gaussian`` or ``oracle``, see docs/profile.md"""
        length_error: float = 0.0
        """relative error of the oracle's lengths"""

        def __post_init__(self) -> None:
            check_lengths(self.length, self.length_error)
            check_within(self, 0, 0.5, "reserve")
            check_within(self, 0, math.inf, "sigmas", "max_preemptions")
            if not self.tokens_per_step >= 1.0:
                raise ValueError(f"tokens_per_step: {self.tokens_per_step} is not 1 or more")

    def is_idle(self, waiting: int, running: int, engine: EngineFacts) -> bool:
        return not waiting and engine.has_room_for(running)

    @property
    def gives_up(self) -> bool:
        return bool(self.settings.late_last)

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        rows, engine = snapshot.rows, snapshot.engine
        if self.is_idle(snapshot.waiting.size, snapshot.running.size, engine):
            return Plan.IDENTITY
        waiting, running = self._ranked(snapshot, now_s)
        stay, preempt, most = running.slots, NO_SLOTS, None
        if waiting.slots.size:
            victim, fit = self._room(snapshot, waiting, running)
            if victim is not None:
                stay, preempt = np.delete(stay, victim), stay[victim : victim + 1]
            most = max(stay.size + fit, 1)
        return Plan(running=service_order(rows, stay, engine), waiting=waiting.slots, preempt=preempt, max_running=most)

    def _ranked(self, snapshot: Snapshot, now_s: float) -> tuple[ServiceOrder, ServiceOrder]:
        """Return the waiting requests, as many as there are slots, and the running ones, each in order of service."""
        rows, queued = snapshot.rows, snapshot.waiting.size
        slots = np.concatenate((snapshot.waiting, snapshot.running))
        done = rows.output_tokens[slots]
        left = self._lengths.left(rows, slots)
        target_s = _target_s(rows, slots, done + left)
        # A request holds its context to its end, and its tokens to come half of the time.
        work = (rows.prompt_tokens[slots] + done + left / 2.0) * left
        key = self._key(rows, slots, work, target_s)
        undecided = without_targets(rows, slots)
        if self.settings.late_last:
            late = now_s - rows.arrival_s[slots] > target_s
            key[late] += _LATE
            undecided |= late
        found = ranked(snapshot, slots, key, undecided)
        lowered, waiting, running = found.lowered, found.waiting, queued + found.running
        woven = woven_places(snapshot, waiting)
        return (
            ServiceOrder(slots[woven], lowered[waiting], work[woven], target_s[woven]),
            ServiceOrder(slots[running], lowered[running], work[running], target_s[running]),
        )

    def _key(self, rows: Rows, slots: IntArray, work: FloatArray, target_s: FloatArray) -> FloatArray:
        """Return the key of each request, ``[len(slots)]``; the least is served first."""
        return work * target_s

    def _room(self, snapshot: Snapshot, waiting: ServiceOrder, running: ServiceOrder) -> tuple[int | None, int]:
        """Return the index of the running request to preempt, if any, and how many of ``waiting`` then fit."""
        rows, engine = snapshot.rows, snapshot.engine
        slots, free_slots = waiting.slots, min(engine.free_slots, MOST_ADMITTED)
        context_tokens = rows.prompt_tokens[running.slots] + rows.output_tokens[running.slots]
        held = counted_once(snapshot, context_tokens, running.slots)
        held_mean, held_variance = (one.sum(axis=0) for one in self._occupancy(rows, engine, running.slots, held))
        first = self._occupancy(rows, engine, slots[:1])
        # Most often the first does not fit, and the others need not be asked.
        if free_slots and self._fit(snapshot, held_mean, held_variance, first):
            asked = self._occupancy(rows, engine, slots[:free_slots])
            return None, self._fit(snapshot, held_mean, held_variance, asked)
        if not (self.settings.preempt and running.slots.size):
            return None, 0
        victim = victim_worth_preempting(
            waiting,
            running,
            context_tokens * preemption_price(rows, running.slots, engine),
            rows.preemptable[running.slots] & (rows.num_preemptions[running.slots] < self.settings.max_preemptions),
            total_tokens=engine.layout.capacity_tokens(engine.total_blocks, float(context_tokens.mean())),
            tokens_per_step=self.settings.tokens_per_step,
        )
        if victim is None:
            return None, 0
        given_up = self._occupancy(rows, engine, running.slots[victim : victim + 1], held[victim : victim + 1])
        # What is left of a difference of equals may be less than nothing.
        spread = np.maximum(held_variance - given_up[1][0], 0.0)
        fit = self._fit(snapshot, held_mean - given_up[0][0], spread, first)
        return (victim, 1) if fit else (None, 0)

    def _occupancy(
        self, rows: Rows, engine: EngineFacts, slots: IntArray, context_tokens: IntArray | None = None
    ) -> tuple[FloatArray, FloatArray]:
        return occupancy(self._lengths, rows, slots, engine.layout, context_tokens=context_tokens)

    def _fit(
        self, snapshot: Snapshot, mean: FloatArray, variance: FloatArray, asked: tuple[FloatArray, FloatArray]
    ) -> int:
        capacity_blocks = snapshot.forecast_blocks(self.settings.reserve)
        return how_many_fit((mean, variance), asked, capacity_blocks, self.settings.sigmas)


def _target_s(rows: Rows, slots: IntArray, output_tokens: FloatArray) -> FloatArray:
    """Return the seconds from arrival within which a request of ``output_tokens`` should end, ``[n]``.

    That is its e2e target, or else what its TTFT and its pace add up to, or else UNHURRIED_S.
    """
    ttft_s, tpot_s = rows.ttft_s[slots], pace_s(rows, slots)
    streamed_s = np.where(np.isnan(ttft_s), DEFAULT_TTFT_S, ttft_s) + np.where(
        np.isnan(tpot_s), 0.0, tpot_s * output_tokens
    )
    streamed_s = np.where(np.isnan(ttft_s) & np.isnan(tpot_s), UNHURRIED_S, streamed_s)
    e2e_s = rows.e2e_s[slots]
    return np.where(np.isnan(e2e_s), streamed_s, e2e_s)
