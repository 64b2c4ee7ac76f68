"""Earliest deadline first: the simple rival every deadline-aware policy has to beat.

A request's deadline is arrival + e2e. With a TTFT target it is, until the first token, arrival + ttft (the earlier of
both); after it, the time by which the next token is due at the TPOT target (or at 1 / TDS). Without any target it is
infinite, and such requests are served in order of arrival after all others.

A waiting request that is late already goes behind those that can still be in time (``late_last``): plain EDF breaks
down under overload, since it serves first whom it can help least (the domino effect). It stays ahead of those without a
deadline.

Evicts when a waiting request that can still be in time finds no slot or no KV blocks, and running requests whose
deadlines lie later by ``evict_margin_s`` can make room; each request at most ``max_preemptions`` times. The margin
stands in for an estimate: a victim must afford to wait for its turn again and to be recomputed. With 1 s instead of the
default 30 s, 1.5 times stock's capacity and deadlines of half a minute, evictions broke more promises than they kept
(benchmarks/README.md).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from sloserve.scheduler.ordering import EVICTION_COLUMNS, EvictionRule, plan_by_key
from sloserve.scheduler.policy import Plan, Policy, Snapshot
from sloserve.scheduler.rows import FloatArray, IntArray, Rows

_BEHIND_S = 1e12
"""Later than any deadline, earlier than none."""


def deadlines_s(rows: Rows, slots: IntArray) -> FloatArray:
    """Absolute deadlines ``[len(slots)]`` in epoch seconds, inf where a request has no target that still binds."""
    arrival, ttft, first_token = rows.arrival_s[slots], rows.ttft_s[slots], rows.first_token_s[slots]
    pace = np.fmin(rows.tpot_s[slots], 1.0 / rows.tds[slots])
    no_token_yet = np.isnan(first_token)
    next_token = np.where(no_token_yet, arrival + ttft, first_token + pace * rows.output_tokens[slots])
    due = np.fmin(arrival + rows.e2e_s[slots], next_token)
    return np.where(np.isnan(due), np.inf, due)


class EDF(Policy):
    """Serves the request whose deadline is nearest; may evict for one that would otherwise wait for a slot."""

    needs = EVICTION_COLUMNS | {"arrival_s", "ttft_s", "tpot_s", "e2e_s", "tds", "first_token_s"}

    @dataclass(frozen=True)
    class Settings:
        """late_last, evict_margin_s: see the module. evict: whether to evict at all. max_preemptions: per request."""

        late_last: bool = True
        evict: bool = True
        evict_margin_s: float = 30.0
        max_preemptions: int = 3

        def __post_init__(self) -> None:
            if self.evict_margin_s < 0 or self.max_preemptions < 0:
                raise ValueError("evict_margin_s and max_preemptions must not be negative")

    def __init__(self, settings: Any = None, *, seed: int = 0) -> None:
        super().__init__(settings, seed=seed)
        self._rule = (
            EvictionRule(margin=self.settings.evict_margin_s, max_preemptions=self.settings.max_preemptions)
            if self.settings.evict
            else None
        )

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        waiting_due = deadlines_s(snapshot.rows, snapshot.waiting)
        late = waiting_due < now_s
        return plan_by_key(
            snapshot,
            np.where(late, waiting_due + _BEHIND_S, waiting_due) if self.settings.late_last else waiting_due,
            deadlines_s(snapshot.rows, snapshot.running),
            evict=self._rule,
            may_evict_for=~late & np.isfinite(waiting_due),
        )
