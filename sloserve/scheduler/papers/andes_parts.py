"""Andes with options for each of its parts, to see what each contributes; ``andes-paper`` has the form of its paper.

Source: Andes, Sec. 4. None of these options is worth setting on a server (docs/benchmarks/andes.md, "What each part
does").
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.rows import Rows
from sloserve.scheduler.andes.outlook import Foresight, Outlook
from sloserve.scheduler.andes.policy import Andes
from sloserve.scheduler.andes.room import VictimOrder
from sloserve.scheduler.options import check_within
from sloserve.scheduler.policy import NO_SLOTS, EngineFacts, Plan, Snapshot

OBJECTIVES = ("mean", "min", "perfect")
VICTIMS = ("lead", "gain")
_PERFECT = 1.0 - 1e-9


class AndesParts(Andes):
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
        made = super().plan(snapshot, now_s)
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


def foresee(
    objective: str, alpha: float, all_: Outlook, steps_s: FloatArray, prefill_token_s: float, horizon_s: float
) -> Foresight:
    """Return what serving gains by one of OBJECTIVES.

    Source: Andes, Eq. 2, 6 and 7. Differs: Eq. 6 as printed, max(Q_min - Q_wait, 0), counts a gain that serving cannot
    give, so Q_min is capped at Q_serve here.
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
