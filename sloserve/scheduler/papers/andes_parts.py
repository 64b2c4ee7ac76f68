"""Andes with options for each of its parts, to see what each contributes; ``andes-paper`` has the form of its paper.

Source: Andes, Sec. 4. None of these options is worth setting on a server (docs/benchmarks/andes.md, "What each part
does").
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.kernels.knapsack import best_batch
from sloserve.core.rows import Rows
from sloserve.scheduler.andes.outlook import Foresight, Outlook
from sloserve.scheduler.andes.policy import Andes
from sloserve.scheduler.andes.room import VictimOrder
from sloserve.scheduler.options import check_within
from sloserve.scheduler.papers.andes_batches import AndesOfBatches
from sloserve.scheduler.policy import NO_SLOTS, EngineFacts, Plan, Snapshot

OBJECTIVES = ("mean", "min", "perfect")
VICTIMS = ("lead", "gain")
_PERFECT = 1.0 - 1e-9


class AndesParts(AndesOfBatches):
    """Andes with options for each of its parts."""

    @dataclass(frozen=True)
    class Settings(Andes.Settings):
        objective: str = "mean"
        """``mean`` QoE, ``min`` (the worst first) or ``perfect`` (as many of QoE 1 as possible)"""
        alpha: float = 1.0
        """penalty on a late first token, see ``core.qoe``; 1 is none"""
        horizon_s: float = 0.0
        """prediction timeframe, 0 for the mean time from first to last token"""
        victims: str = "lead"
        """``lead`` (the request that is furthest ahead of its reader) or ``gain`` (the one that gains least per
        token)"""
        urgent_s: float = Andes.urgent_s
        """a waiting request with less lead than this goes first, and others are preempted for such requests alone"""
        watermark: float = Andes.watermark
        """share of KV in use from which on plans are made; 0 makes them always"""
        search: bool = False
        """whether to search the batch size where steps are too slow for the fastest reader, and to pause the running
        requests that are not of the best batch"""
        pause: bool = True
        """whether to pause"""

        def __post_init__(self) -> None:
            super().__post_init__()
            for name, allowed in (("objective", OBJECTIVES), ("victims", VICTIMS)):
                if getattr(self, name) not in allowed:
                    raise ValueError(f"{name}: {getattr(self, name)!r} is not one of {', '.join(allowed)}")
            check_within(self, 0, 1, "alpha", "watermark")
            check_within(self, 0, math.inf, "horizon_s", "urgent_s")

    def __init__(self, settings: Any = None, *, seed: int = 0) -> None:
        super().__init__(settings, seed=seed)
        self.horizon_s = self.settings.horizon_s or None
        self.urgent_s, self.watermark = self.settings.urgent_s, self.settings.watermark

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        slow = self.settings.search and self._is_slow(snapshot)
        made = self._searched(snapshot, now_s) if slow else super().plan(snapshot, now_s)
        if self.settings.pause or not made.pause.size:
            return made
        return replace(made, pause=NO_SLOTS)

    # How gain is measured.

    def _foresee(self, engine: EngineFacts, all_: Outlook, batches: FloatArray) -> Foresight:
        times = self._times_s(engine, all_, batches)
        return foresee(self.settings.objective, self.settings.alpha, all_, *times, self._horizon_s())

    # Which requests are preempted.

    def _victim_order(self, all_: Outlook, worth: FloatArray, running: IntArray, snapshot: Snapshot) -> VictimOrder:
        if self.settings.victims == "lead":
            return super()._victim_order(all_, worth, running, snapshot)
        return least_worth_first(all_, worth, running, snapshot.rows)

    # How many run at once.

    def _searched(self, snapshot: Snapshot, now_s: float) -> Plan:
        """Return the plan at the best batch size; the running requests that are not of the best batch are paused."""
        all_, running = self._outlook(snapshot, now_s), snapshot.running.size
        foresight, pause, batch_size = self._best_batch(snapshot, all_)
        made = self._plan(snapshot, all_, foresight, max(batch_size - running + pause.size, 0))
        stay = running - made.preempt.size
        pause = pause[~np.isin(pause, made.preempt)]
        # A paused request keeps its slot, and is not of the batch.
        most = max(min(_limit(made, stay + snapshot.waiting.size), batch_size + pause.size), stay)
        return replace(
            made,
            pause=pause if pause.size else made.pause,
            max_running=None if most >= stay + snapshot.waiting.size else max(most, 1),
        )

    def _best_batch(self, snapshot: Snapshot, all_: Outlook) -> tuple[Foresight, IntArray, int]:
        """Search the batch size (Eq. 4); return what serving gains at it, the requests to pause, and the size."""
        engine = snapshot.engine
        blocks = engine.layout.to_admit(all_.context_tokens + 1)  # + 1: the slot of the next token
        batches = self._batch_sizes(engine, all_, blocks)
        foresight = self._foresee(engine, all_, batches)
        seq = snapshot.rows.seq[all_.slots]
        choice = best_batch(foresight.gain, blocks, seq, engine.total_blocks, batches.astype(np.int64))
        of = int(np.searchsorted(batches, choice.batch_size))
        chosen = np.zeros(all_.slots.size, np.bool_)
        chosen[choice.chosen] = True
        paused = ~chosen & (all_.lead_s > 0.0) & snapshot.rows.pausable[all_.slots]
        paused[: snapshot.waiting.size] = False
        if not self.settings.pause or not choice.chosen.size:
            paused[:] = False
        best = Foresight(foresight.serve[of : of + 1], foresight.wait, foresight.gain[of : of + 1])
        return best, all_.slots[paused], choice.batch_size


def foresee(
    objective: str, alpha: float, all_: Outlook, steps_s: FloatArray, prefill_token_s: float, horizon_s: float
) -> Foresight:
    """Return what serving gains by one of OBJECTIVES.

    Source: Andes, Eq. 2, 6 and 7.
    """
    found = all_.foresee(steps_s, prefill_token_s, horizon_s, alpha=alpha)
    if objective == "mean":
        return found
    replies = all_.replies(np.multiply(all_.prefill_tokens, prefill_token_s))
    current = all_.curves.current(replies, alpha=alpha)
    current[all_.no_reader] = 1.0
    serve, wait = found.serve, found.wait
    if objective == "min":
        # Serving lifts no request above what it gives that request.
        gain = np.minimum(serve, current.min(initial=1.0)) - wait
    else:
        gain = ((serve >= _PERFECT).astype(np.float64) - (wait >= _PERFECT)) * (current >= _PERFECT)
    return Foresight(serve, wait, np.maximum(gain, 0.0))


def least_worth_first(all_: Outlook, worth: FloatArray, running: IntArray, rows: Rows) -> VictimOrder:
    """Return the order that preempts any request that is worth less than the waiting one.

    Source: Andes, Algorithm 1.
    """
    order = np.lexsort((rows.seq[all_.slots[running]], worth[running]))
    return VictimOrder(running[order], -worth, -worth, 0.0)


def _limit(plan: Plan, unlimited: int) -> int:
    return unlimited if plan.max_running is None else plan.max_running
