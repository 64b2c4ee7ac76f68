"""Earliest deadline first: the simple rival every deadline-aware policy has to beat.

A request's deadline is arrival + e2e. With a TTFT target it is, until the first token, arrival + ttft (the earlier of
both); after it, the time by which the next token is due at the TPOT target (or at 1 / TDS). A request
with a TTFT alone has a reader all the same: after the first token the next is due at the pace of ``default_tds``
tokens per second. Without a pace it would be the first victim, and last in the queue again.

Without any target the deadline is infinite. Then class rank decides: such a request is served before every request of a
less urgent class, late or not, and after requests with a deadline of its own class or a more urgent one; within a class
by arrival. Equal deadlines are ordered by class too.

A waiting request that is late already goes behind the requests of its class that can still be in time (``late_last``):
plain EDF breaks down under overload, since it serves first the request that it can help least (the domino effect). It
stays ahead of the requests of its class without a deadline, and of every less urgent class: its deadline says nothing
any more, so that class rank decides, as where there never was one.

It preempts when a waiting request that can still be in time finds no slot or no KV blocks, and running requests with
deadlines that are later by ``preempt_margin_s`` can make room (by less where a victim can be swapped, which takes less
of the engine's time); each request at most ``max_preemptions`` times. The margin stands in for an estimate: a victim
must afford to wait for its turn again and to be recomputed. With 1 s instead of the default 30 s, 1.5 times stock's
capacity and deadlines of half a minute, preemptions cost more deadlines than they saved (docs/benchmarks/deadlines.md).
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.qoe import DEFAULT_TDS
from sloserve.core.rows import Rows
from sloserve.core.slo import MAX_TDS
from sloserve.lso.ordering import PREEMPTION_COLUMNS, ClassRank, plan_by_key, preemption_in_seconds
from sloserve.lso.pace import PACE_COLUMNS, pace_s
from sloserve.scheduler.options import check_within
from sloserve.scheduler.policy import Plan, Policy, Snapshot

_BEHIND_S = 1e12
"""Time that is later than any deadline, and earlier than no deadline."""


def deadlines_s(rows: Rows, slots: IntArray, default_tds: float = DEFAULT_TDS) -> FloatArray:
    """Return absolute deadlines ``[len(slots)]`` in epoch seconds, inf for a request without a target that still binds.

    Args:
        rows: The request table.
        slots: Slots of the requests.
        default_tds: Tokens per second, after the first, of a request that has a TTFT target alone.
    """
    arrival, ttft, first_token = rows.arrival_s[slots], rows.ttft_s[slots], rows.first_token_s[slots]
    pace = pace_s(rows, slots)
    ttft_alone = ~np.isnan(ttft) & np.isnan(pace) & np.isnan(rows.e2e_s[slots])
    pace = np.where(ttft_alone, 1.0 / default_tds, pace)
    no_token_yet = np.isnan(first_token)
    next_token = np.where(no_token_yet, arrival + ttft, first_token + pace * rows.output_tokens[slots])
    due = np.fmin(arrival + rows.e2e_s[slots], next_token)
    return np.where(np.isnan(due), np.inf, due)


class EDF(Policy):
    """Serves the request with the nearest deadline; may preempt for one that would otherwise wait for a slot."""

    needs = PREEMPTION_COLUMNS | PACE_COLUMNS | {"arrival_s", "ttft_s", "e2e_s", "first_token_s", "class_rank"}

    @dataclass(frozen=True)
    class Settings(Policy.Settings):
        late_last: bool = True
        """whether a waiting request with a missed deadline comes after all of its class that can be in time"""
        preempt: bool = True
        """whether to preempt at all"""
        preempt_margin_s: float = 30.0
        """seconds by which a victim's deadline must be later than the deadline of the request that it makes room for"""
        max_preemptions: int = 3
        """most preemptions of one request"""
        default_tds: float = DEFAULT_TDS
        """tokens per second at which a request with only a TTFT target is served after its first token; the mean
        reader's"""

        def __post_init__(self) -> None:
            if not 0.0 < self.default_tds <= MAX_TDS:
                raise ValueError(f"default_tds: {self.default_tds} is not within 0..{MAX_TDS:.0f}")
            check_within(self, 0, math.inf, "preempt_margin_s", "max_preemptions")

    def __init__(self, settings: Any = None, *, seed: int = 0) -> None:
        super().__init__(settings, seed=seed)
        chosen = self.settings
        self._rule = preemption_in_seconds(chosen.preempt, chosen.preempt_margin_s, chosen.max_preemptions)

    def due_s(self, rows: Rows, slots: IntArray) -> FloatArray:
        """Return the deadlines by which the policy orders requests, as :func:`deadlines_s` does."""
        return deadlines_s(rows, slots, self.settings.default_tds)

    @property
    def gives_up(self) -> bool:
        return bool(self.settings.late_last)

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        waiting_due = self.due_s(snapshot.rows, snapshot.waiting)
        late = waiting_due < now_s
        return plan_by_key(
            snapshot,
            np.where(late, waiting_due + _BEHIND_S, waiting_due) if self.settings.late_last else waiting_due,
            self.due_s(snapshot.rows, snapshot.running),
            preempt=self._rule,
            may_preempt_for=~late & np.isfinite(waiting_due),
            class_rank=ClassRank.UNDECIDED,
            undecided=late if self.settings.late_last else None,
        )
