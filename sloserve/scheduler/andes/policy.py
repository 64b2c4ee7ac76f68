"""Andes: a policy that serves the requests which add most to readers' quality of experience for their KV cache.

Readers are slower than engines. A request that is far ahead of its reader can give its place to one that has not begun.
Each plan orders the waiting requests by QoE gained within a horizon per token of context (Andes, Eq. 5), makes room for
the first of them, and orders the running ones so that a shortage of KV takes the one furthest ahead. Nothing is planned
while neither memory nor time is short (selective triggering).

When memory is short, a running request is *preempted* (its KV is dropped and computed again later), or *paused* with
its KV kept if only its next block is missing, which spares a preemption.

Nothing is gained by haste for a request without targets. Class rank decides for it: it is admitted before every request
of a less urgent class.

Source: Andes, Sec. 4. Differs (the policy ``andes-paper`` has the paper's form, docs/benchmarks/andes.md the figures):

* victims are the requests with the longest lead, ``lead_s`` at least, and not the ones with the least gain per token.
  Without swap space vLLM recomputes what it preempts, where the paper swaps; then a preemption pays only if its victim
  can stay away for long. With it the lead asked for is less by the share of the cost that swapping saves.
* vLLM's slots and lazy allocation decide which requests run; a share of the blocks is left for growth.
* pausing, which the paper does not have.
* the batch size is not searched. Where steps are slower than the fastest reader, a search that paused the requests
  outside of the best batch lost QoE, and no shipped profile has steps that are slower than a reader at full KV.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from sloserve.core.arrays import BoolArray, FloatArray, IntArray
from sloserve.core.kernels.digest import DigestCurves
from sloserve.core.rows import Rows
from sloserve.estimator.length.choice import check_lengths
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.estimator.step_time.running_fit import RunningMean
from sloserve.lso.decode_first import service_order, uncomputed_tokens
from sloserve.lso.drafted import mean_tokens_per_step
from sloserve.lso.ordering import by_class, first_places, without_targets, woven_places
from sloserve.lso.preemption import freed_blocks
from sloserve.lso.standing import by_level
from sloserve.lso.swapping import preemption_price
from sloserve.scheduler.andes.outlook import COLUMNS, Foresight, Outlook, reading_tds
from sloserve.scheduler.andes.room import HeadOfLine, VictimOrder, longest_lead_first, short_of_blocks, victims_for
from sloserve.scheduler.options import check_within
from sloserve.scheduler.policy import NO_SLOTS, EngineFacts, Plan, Policy, PredictingPolicy, Snapshot

URGENT_QUALITY = 0.5
"""QoE if served at once below which a request is not urgent: it is lost anyway."""
URGENT_GAIN = 0.02
"""Gain by being served below which a request is not urgent."""
FIRST_HORIZON_S = 8.0
"""Prediction timeframe in seconds before any output has ended."""
_URGENT_FIRST = 2.0
"""Key difference that is more than any gain per token."""


class Andes(PredictingPolicy):
    """Maximises the mean QoE of readers: first those about to run out of tokens, then short contexts.

    ``andes-parts`` (:mod:`sloserve.scheduler.papers.andes_parts`) overrides the class attributes, ``_foresee`` and
    ``_victim_order``.
    """

    horizon_s: float | None = None
    """Prediction timeframe; ``None`` for the mean time from first to last token."""
    urgent_s: float = 2.0
    """A waiting request with less lead than this goes first, and others are preempted for such requests alone. Until it
    has its next token, the step in flight ends, a victim gives way, and its prompt is computed: half a second was too
    short for that where steps are slow. 1 and 4 s have the same QoE."""
    watermark: float = 0.9
    """Share of KV in use from which on plans are made."""

    needs = COLUMNS | {"class_rank", "preemptable", "pausable", "kv_blocks", "num_preemptions"}
    wants_progress = True

    learned = ("_lengths", "_serving_s")

    @dataclass(frozen=True)
    class Settings(Policy.Settings):
        lead_s: float = 40.0
        """a victim is at least this many seconds ahead of its reader; fewer if swapping makes it cheaper"""
        preemption_cap: float = 1.0
        """most preemptions per request on average"""
        max_preemptions: int = 1
        """most preemptions of one request"""
        headroom: float = 0.02
        """share of KV blocks left for growth"""
        length: str = "predicted"
        """``predicted``, ``empirical``, ``gaussian`` or ``oracle``, see docs/profile.md"""
        length_error: float = 0.0
        """relative error of the oracle's lengths"""

        def __post_init__(self) -> None:
            check_within(self, 0, 0.5, "headroom")
            check_within(self, 0, math.inf, "lead_s", "preemption_cap", "max_preemptions")
            check_lengths(self.length, self.length_error)

    def __init__(self, settings: Any = None, *, seed: int = 0) -> None:
        super().__init__(settings, seed=seed)
        self._curves = DigestCurves()
        self._serving_s = RunningMean()
        self._may_preempt = 0.0

    # What happens.

    def arrived(self, rows: Rows, slot: int, now_s: float) -> None:
        self._may_preempt += self.settings.preemption_cap
        self._curves.reset(slot)
        done = int(rows.output_tokens[slot])
        if done:  # it was being served when this policy took over
            one = np.array([slot])
            since_s = np.maximum(rows.first_token_s[one] - rows.arrival_s[one], 0.0)
            self._curves.deliver(one, np.array([done]), since_s, reading_tds(rows, one))

    def progressed(self, rows: Rows, slots: IntArray, tokens: IntArray, now_s: float) -> None:
        since_s = np.maximum(now_s - rows.arrival_s[slots], 0.0)
        self._curves.deliver(slots, tokens, since_s, reading_tds(rows, slots))

    def finished(self, rows: Rows, slot: int, now_s: float) -> None:
        super().finished(rows, slot, now_s)
        if rows.output_tokens[slot] > 0:
            if rows.first_token_s[slot] < now_s:
                self._serving_s.add(now_s - float(rows.first_token_s[slot]))

    # What shall be.

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        rows, engine, waiting = snapshot.rows, snapshot.engine, snapshot.waiting
        if not (waiting.size or snapshot.running.size) or not self._memory_is_short(rows, engine, waiting):
            return Plan.IDENTITY
        all_ = self._outlook(snapshot, now_s)
        foresight = self._foresee(engine, all_, np.array([float(max(snapshot.running.size, 1))]))
        return self._plan(snapshot, all_, foresight)

    def _outlook(self, snapshot: Snapshot, now_s: float) -> Outlook:
        """Return the outlook of the waiting requests, followed by the running ones."""
        rows, slots = snapshot.rows, np.concatenate((snapshot.waiting, snapshot.running))
        return Outlook(rows, slots, self._lengths.left(rows, slots), self._curves, now_s)

    def _memory_is_short(self, rows: Rows, engine: EngineFacts, waiting: IntArray) -> bool:
        used = 1.0 - engine.free_blocks / engine.total_blocks
        if used >= self.watermark:
            return True
        # Beyond a step's budget, prompts queue although there is room for them.
        prefill_tokens = uncomputed_tokens(rows, waiting).sum()
        return bool(waiting.size > engine.free_slots or prefill_tokens > engine.token_budget)

    def _token_s(self, engine: EngineFacts, batches: FloatArray, context_tokens: float) -> FloatArray:
        """Return the seconds of a token at each number of decodes in ``batches``, ``[num_batches]``."""
        loads = [StepLoad(decode_seqs=int(b), decode_context_tokens=int(b * context_tokens)) for b in batches.tolist()]
        return np.array([engine.step_latency.step_s(load) for load in loads]) / mean_tokens_per_step(engine)

    def _foresee(self, engine: EngineFacts, all_: Outlook, batches: FloatArray) -> Foresight:
        """Return what serving gains at each of several batch sizes."""
        return all_.foresee(*self._times_s(engine, all_, batches), self._horizon_s())

    def _times_s(self, engine: EngineFacts, all_: Outlook, batches: FloatArray) -> tuple[FloatArray, float]:
        """Return the seconds of a token at each batch size, and of a prompt token at the rate of full steps."""
        token_s = self._token_s(engine, batches, float(all_.context_tokens.mean()))
        return token_s, float(token_s.max()) * mean_tokens_per_step(engine) / engine.token_budget

    def _horizon_s(self) -> float:
        return self.horizon_s or self._serving_s.value or FIRST_HORIZON_S

    def _victim_order(self, all_: Outlook, worth: FloatArray, running: IntArray, snapshot: Snapshot) -> VictimOrder:
        """Return which running requests may be preempted, and in which order.

        Args:
            all_: The outlook of all requests.
            worth: Gain per token, ``[len(all_)]``.
            running: Indices of the running requests, the shortest lead first.
            snapshot: The engine's state.
        """
        price = preemption_price(snapshot.rows, all_.slots[running], snapshot.engine)
        swap = snapshot.engine.swap
        return longest_lead_first(all_, running, self.settings.lead_s, price, 0.0 if swap is None else swap.wait_s)

    def _plan(self, snapshot: Snapshot, all_: Outlook, foresight: Foresight) -> Plan:
        """Return a plan that orders all requests and makes room for the urgent ones.

        Args:
            snapshot: The engine's state.
            all_: The outlook of all requests.
            foresight: QoE within the horizon.
        """
        rows, engine, queued = snapshot.rows, snapshot.engine, snapshot.waiting.size
        worth = foresight.gain[0] / all_.context_tokens
        urgent, levels = self._urgent(all_, foresight, queued), snapshot.levels(snapshot.waiting)
        if levels is not None:
            urgent &= levels == 0
        key, rank = -worth[:queued] - _URGENT_FIRST * urgent, rows.class_rank[snapshot.waiting]
        lowered = by_class(key, rank, without_targets(rows, snapshot.waiting))
        most = min(queued, engine.max_num_seqs)
        seq = rows.seq[snapshot.waiting]
        ranked = first_places(key, lowered, rank, seq, most if levels is None else queued)
        if levels is not None:
            ranked = by_level(ranked, levels)[:most]
        order = woven_places(snapshot, ranked)
        running = queued + np.lexsort((rows.seq[snapshot.running], all_.lead_s[queued:]))
        needed = engine.layout.to_admit(all_.context_tokens[order] + 1)  # + 1: the slot of the next token
        free_blocks = engine.admission_blocks - math.ceil(self.settings.headroom * engine.total_blocks)
        # No more urgent ones than a step can begin with: the others' victims would stand idle until then.
        begun = engine.begun(all_.prefill_tokens[order])
        head = slice(min(int(urgent.sum()), begun))
        heads, victims = HeadOfLine(ranked[head], needed[head]), NO_SLOTS
        self._may_preempt = min(self._may_preempt, float(engine.max_num_seqs))
        if self._may_preempt >= 1.0 and not heads.fit(engine.free_slots, free_blocks):
            victims = victims_for(
                heads,
                all_,
                self._victim_order(all_, worth, running, snapshot),
                snapshot,
                max_preemptions=self.settings.max_preemptions,
                free_blocks=free_blocks,
                most=int(self._may_preempt),
            )
            self._may_preempt -= victims.size
        preempted = all_.slots[victims]
        room = free_blocks + sum(freed_blocks(map(snapshot.holding, preempted.tolist())))
        admitted = min(int(np.searchsorted(np.cumsum(needed), room, side="right")), engine.free_slots + victims.size)
        pause = NO_SLOTS
        if victims.size:
            stays = np.ones(all_.slots.size, np.bool_)
            stays[victims] = False
            running = running[stays[running]]
        else:
            pause = short_of_blocks(all_, running, rows, engine)
        return Plan(
            running=service_order(rows, all_.slots[running], engine),
            waiting=snapshot.waiting[order],
            preempt=preempted,
            pause=pause,
            max_running=None if admitted >= queued else max(running.size + admitted, 1),
        )

    def _urgent(self, all_: Outlook, foresight: Foresight, queued: int) -> BoolArray:
        """Return which waiting requests have a reader about to run dry that can still be served well, ``[queued]``."""
        urgent: BoolArray = (
            (all_.lead_s[:queued] < self.urgent_s)
            & (foresight.serve[0, :queued] >= URGENT_QUALITY)
            & (foresight.gain[0, :queued] >= URGENT_GAIN)
        )
        return urgent
