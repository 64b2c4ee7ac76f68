"""Andes: serves where it adds most to the readers' quality of experience for the KV cache it takes.

Readers are slower than engines. A reply that is far ahead of its reader can give its place to one that has not begun.
Each plan orders the waiting requests by QoE gained within a horizon per token of context (Andes, Eq. 5), makes room for
the first of them, and orders the running ones so that a shortage of KV takes whoever is furthest ahead. Nothing is
planned while neither memory nor time is short (selective triggering).

Three ways to stand back. *Preempt*, when memory is short: the KV is dropped and computed again later. *Pause*, KV kept,
when time is short: steps are too slow for the fastest reader, a smaller batch is chosen and the others sit out; or when
the next block is short, which spares a preemption. *Wait*, for those that were never admitted.

Nothing is gained by haste for a request without targets. Class rank decides for it: it is admitted before every request
of a less urgent class.

Source: Andes, Sec. 4. Differs, each by default, with the paper's form as an option (figures: docs/benchmarks/andes.md):

* victims are those with the longest lead, ``lead_s`` at least, and not those of least gain per token
  (``victims=gain``). vLLM recomputes what it preempts, where the paper swaps; a preemption pays if its victim can stay
  away for long.
* vLLM's slots and lazy allocation decide who runs; a share of the blocks is left for growth.
* pausing, which the paper does not have.
* the batch size is searched where time is what is short; where memory is, the packing settles it.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from sloserve.core.arrays import BoolArray, FloatArray, IntArray
from sloserve.core.rows import Rows
from sloserve.estimator.length.choice import check_lengths
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.estimator.step_time.running_fit import RunningMean
from sloserve.kernels.digest import DigestCurves
from sloserve.kernels.knapsack import best_batch
from sloserve.lso.blocks import blocks_of
from sloserve.lso.decode_first import service_order
from sloserve.lso.lengths import Lengths
from sloserve.lso.ordering import by_class, first_places, without_targets, woven_places
from sloserve.lso.preemption import freed_blocks
from sloserve.scheduler.andes.outlook import COLUMNS, OBJECTIVES, Foresight, Outlook, reading_tds
from sloserve.scheduler.andes.room import HeadOfLine, VictimRule, short_of_blocks, victims_for
from sloserve.scheduler.policy import NO_SLOTS, EngineFacts, Plan, Policy, Snapshot

VICTIMS = ("lead", "gain")
BATCH_SIZES = 8
"""Candidates between the least and the largest batch size."""
URGENT_QUALITY = 0.5
"""A request whose QoE would be below this even if it were served at once is not urgent: it is lost anyway."""
URGENT_GAIN = 0.02
"""Nor is one that gains less by being served."""
FIRST_HORIZON_S = 8.0
"""Prediction timeframe before any reply has ended."""
_URGENT_FIRST = 2.0
"""More than any gain per token."""


class Andes(Policy):
    """Serves so that the readers' mean QoE is greatest: those who would run dry first, the short contexts first."""

    needs = COLUMNS | {"class_rank", "preemptable", "pausable", "kv_blocks", "num_preemptions"}
    wants_progress = True

    @dataclass(frozen=True)
    class Settings(Policy.Settings):
        """objective: ``mean`` QoE, ``min`` (the worst first) or ``perfect`` (as many of QoE 1 as possible).

        alpha: penalty on a late first token, see ``core.qoe``; 1 is none. horizon_s: prediction timeframe, 0 for the
        mean time from first to last token. victims: ``lead`` (whoever is furthest ahead of its reader) or ``gain``
        (whoever gains least per token). lead_s: a victim is at least so many seconds ahead of its reader. urgent_s: a
        waiting request with less lead than this goes first, and others are preempted for such requests alone.
        preemption_cap: most preemptions per request on average; max_preemptions: most preemptions of one request.
        headroom: share of KV blocks left for growth. watermark: share of KV in use from which on plans are made; 0
        makes them always. search: whether to search the batch size. pause: whether to pause.
        length: ``predicted``, ``empirical``, ``gaussian`` or ``oracle``, see docs/profile.md.
        length_error: relative error of the oracle's lengths.
        """

        objective: str = "mean"
        alpha: float = 1.0
        horizon_s: float = 0.0
        victims: str = "lead"
        lead_s: float = 40.0
        urgent_s: float = 0.5
        preemption_cap: float = 1.0
        max_preemptions: int = 1
        headroom: float = 0.02
        watermark: float = 0.9
        search: bool = False
        pause: bool = True
        length: str = "predicted"
        length_error: float = 0.0

        def __post_init__(self) -> None:
            for name, allowed in (("objective", OBJECTIVES), ("victims", VICTIMS)):
                if getattr(self, name) not in allowed:
                    raise ValueError(f"{name}: {getattr(self, name)!r} is not one of {', '.join(allowed)}")
            for name, most in (("alpha", 1.0), ("headroom", 0.5), ("watermark", 1.0)):
                if not 0.0 <= getattr(self, name) <= most:
                    raise ValueError(f"{name}: {getattr(self, name)} is not within 0..{most:g}")
            for name in ("horizon_s", "lead_s", "urgent_s", "preemption_cap", "max_preemptions"):
                if not 0 <= getattr(self, name) < math.inf:
                    raise ValueError(f"{name}: {getattr(self, name)} is not 0 or more, and finite")
            check_lengths(self.length, self.length_error)

    def __init__(self, settings: Any = None, *, seed: int = 0) -> None:
        super().__init__(settings, seed=seed)
        self._curves = DigestCurves()
        self._lengths = Lengths(self.settings.length, self.settings.length_error, seed=seed)
        self._serving_s = RunningMean()
        self._unfinished = 0
        self._may_preempt = 0.0
        self._rule = VictimRule(
            self.settings.lead_s if self.settings.victims == "lead" else None, self.settings.max_preemptions
        )

    # What happens.

    def arrived(self, rows: Rows, slot: int, now_s: float) -> None:
        self._unfinished += 1
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
        self._unfinished -= 1
        self._lengths.observe(rows, slot)
        if rows.output_tokens[slot] > 0:
            if rows.first_token_s[slot] < now_s:
                self._serving_s.add(now_s - float(rows.first_token_s[slot]))

    # What shall be.

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        rows, engine, waiting = snapshot.rows, snapshot.engine, snapshot.waiting
        slots = np.concatenate((waiting, snapshot.running))
        if not slots.size:
            return Plan.IDENTITY
        slow = self.settings.search and self._is_slow(snapshot, slots)
        if not (slow or self._memory_is_short(rows, engine, waiting)):
            return Plan.IDENTITY
        all_ = Outlook(rows, slots, self._lengths.left(rows, slots), self._curves, now_s)
        if slow:
            return self._plan(snapshot, all_, *self._best_batch(snapshot, all_))
        foresight = self._foresee(engine, all_, np.array([float(max(snapshot.running.size, 1))]))
        return self._plan(snapshot, all_, foresight)

    def _is_slow(self, snapshot: Snapshot, slots: IntArray) -> bool:
        """Whether a step of those that run takes longer than the fastest reader's token."""
        running = snapshot.running.size
        if not running:
            return False
        fastest = float(reading_tds(snapshot.rows, slots).max())
        context = float(snapshot.rows.computed_tokens[snapshot.running].mean())
        return float(self._step_s(snapshot.engine, np.array([float(running)]), context)[0]) * fastest > 1.0

    def _memory_is_short(self, rows: Rows, engine: EngineFacts, waiting: IntArray) -> bool:
        used = 1.0 - engine.free_blocks / engine.total_blocks
        if used >= self.settings.watermark:
            return True
        tokens = rows.prompt_tokens[waiting] + rows.output_tokens[waiting]
        # Beyond a step's budget, prompts queue although there is room for them.
        return bool(waiting.size > engine.free_slots or tokens.sum() > engine.token_budget)

    def _step_s(self, engine: EngineFacts, batches: FloatArray, context_tokens: float) -> FloatArray:
        """Seconds of a step of each of ``batches`` decoding requests, ``[num_batches]``, at this mean context."""
        loads = [StepLoad(decode_seqs=int(b), decode_context_tokens=int(b * context_tokens)) for b in batches.tolist()]
        return np.array([engine.step_latency.step_s(load) for load in loads])

    def _foresee(self, engine: EngineFacts, all_: Outlook, batches: FloatArray) -> Foresight:
        settings = self.settings
        steps_s = self._step_s(engine, batches, float(all_.context_tokens.mean()))
        return all_.foresee(
            steps_s,
            # A prompt gets through at the rate of full steps.
            float(steps_s.max()) / engine.token_budget,
            settings.horizon_s or self._serving_s.value or FIRST_HORIZON_S,
            objective=settings.objective,
            alpha=settings.alpha,
        )

    def _best_batch(self, snapshot: Snapshot, all_: Outlook) -> tuple[Foresight, IntArray, int]:
        """Eq. 4 with the batch size searched; who runs and is not of the best batch sits out.

        The least size is the largest that is still fast enough for the fastest reader, the largest what fits the KV
        cache (optimization 2).
        """
        engine = snapshot.engine
        blocks = blocks_of(all_.context_tokens + 1, engine.block_size)  # + 1: the slot of the next token
        most = int(np.searchsorted(np.cumsum(np.sort(blocks)), engine.total_blocks, side="right"))
        most = max(min(most, engine.max_num_seqs), 1)
        sizes = np.arange(1, most + 1).astype(np.float64)
        fast = self._step_s(engine, sizes, float(all_.context_tokens.mean())) * all_.tds.max() <= 1.0
        least = max(int(fast.sum()), 1)
        batches = np.unique(np.geomspace(least, most, BATCH_SIZES).round()).astype(np.float64)
        foresight = self._foresee(engine, all_, batches)
        seq = snapshot.rows.seq[all_.slots]
        choice = best_batch(foresight.gain, blocks, seq, engine.total_blocks, batches.astype(np.int64))
        of = int(np.searchsorted(batches, choice.batch_size))
        chosen = np.zeros(all_.slots.size, np.bool_)
        chosen[choice.chosen] = True
        sits_out = ~chosen & (all_.lead_s > 0.0) & snapshot.rows.pausable[all_.slots]
        sits_out[: snapshot.waiting.size] = False
        if not self.settings.pause or not choice.chosen.size:
            sits_out[:] = False
        best = Foresight(foresight.serve[of : of + 1], foresight.gain[of : of + 1])
        return best, all_.slots[sits_out], choice.batch_size

    def _plan(
        self,
        snapshot: Snapshot,
        all_: Outlook,
        foresight: Foresight,
        pause: IntArray = NO_SLOTS,
        batch_size: int | None = None,
    ) -> Plan:
        rows, engine, queued = snapshot.rows, snapshot.engine, snapshot.waiting.size
        worth = foresight.gain[0] / all_.context_tokens
        urgent = self._urgent(all_, foresight, queued)
        key, rank = -worth[:queued] - _URGENT_FIRST * urgent, rows.class_rank[snapshot.waiting]
        lowered = by_class(key, rank, without_targets(rows, snapshot.waiting))
        ranked = first_places(key, lowered, rank, rows.seq[snapshot.waiting], min(queued, engine.max_num_seqs))
        order = woven_places(snapshot, ranked)
        running = queued + np.lexsort((rows.seq[snapshot.running], all_.lead_s[queued:]))
        tokens = all_.context_tokens[order]
        needed = blocks_of(tokens + 1, engine.block_size)  # + 1: the slot of the next token
        free_blocks = engine.free_blocks - math.ceil(self.settings.headroom * engine.total_blocks)
        # No more urgent ones than a step can begin with: the others' victims would stand idle until then.
        begun = 1 + int(np.searchsorted(np.cumsum(tokens), engine.token_budget))
        heads = min(int(urgent.sum()), begun)
        if batch_size is not None:
            heads = min(heads, max(batch_size - running.size + pause.size, 0))
        self._may_preempt = min(self._may_preempt, float(engine.max_num_seqs))
        victims = victims_for(
            HeadOfLine(ranked[:heads], needed[:heads]),
            all_,
            worth,
            running,
            snapshot,
            self._rule,
            free_blocks=free_blocks,
            most=int(self._may_preempt),
        )
        self._may_preempt -= victims.size
        preempted = all_.slots[victims]
        room = free_blocks + sum(freed_blocks(map(snapshot.holding, preempted.tolist())))
        admitted = min(int(np.searchsorted(np.cumsum(needed), room, side="right")), engine.free_slots + victims.size)
        pause = pause[~np.isin(pause, preempted)] if pause.size and victims.size else pause
        if batch_size is not None:
            # Who sits out keeps a slot, and is not of the batch.
            admitted = max(min(admitted, batch_size - running.size + victims.size + pause.size), 0)
        if victims.size:
            stays = np.ones(all_.slots.size, np.bool_)
            stays[victims] = False
            running = running[stays[running]]
        if self.settings.pause and not pause.size and not victims.size:
            pause = short_of_blocks(all_, running, rows, engine)
        return Plan(
            running=service_order(snapshot, all_.slots[running]),
            waiting=snapshot.waiting[order],
            preempt=preempted,
            pause=pause,
            max_running=None if admitted >= queued else max(running.size + admitted, 1),
        )

    def _urgent(self, all_: Outlook, foresight: Foresight, queued: int) -> BoolArray:
        """Of the waiting ones, whose reader is about to run dry, and can still be served well."""
        urgent: BoolArray = (
            (all_.lead_s[:queued] < self.settings.urgent_s)
            & (foresight.serve[0, :queued] >= URGENT_QUALITY)
            & (foresight.gain[0, :queued] >= URGENT_GAIN)
        )
        return urgent
