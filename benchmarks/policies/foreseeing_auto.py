"""``auto`` that is told of arrivals before they come: how much of its gap is due to not knowing them?

Requests that arrive within a horizon count as waiting already, with their own arrival times, and so with their own
slack. Where one of them would be admitted now, its place stays free.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sloserve.core.request import WorkloadRequest
from sloserve.core.rows import COLUMNS, Rows
from sloserve.lso.step_budget import StepBudget
from sloserve.scheduler.auto.policy import Auto
from sloserve.scheduler.policy import NO_SLOTS, Plan, Snapshot


class ForeseeingAuto(Auto):
    """See the module's text. requests: all that will come, ascending. class_ids: of their classes, by name."""

    def __init__(
        self, requests: Sequence[WorkloadRequest], class_ids: dict[str, int], horizon_s: float, settings: Any
    ) -> None:
        super().__init__(settings)
        self._requests, self._horizon_s = requests, horizon_s
        self._arrivals_s = np.array([one.arrival_s for one in requests])
        self._epoch_s: float | None = None
        nan = float("nan")
        known = [
            {
                "class_id": class_ids[one.slo.slo_class.name],
                "class_rank": one.slo.slo_class.rank,
                "prompt_tokens": one.prompt_tokens,
                "max_tokens": one.output_tokens,
                "oracle_output_tokens": one.output_tokens,
                **{name: getattr(one.slo.targets, name) or nan for name in ("ttft_s", "tpot_s", "e2e_s", "tds")},
                "own_e2e_s": one.slo.targets.e2e_s or nan,
            }
            for one in requests
        ]
        self._columns = {
            name: np.array([row.get(name, fill) for row in known], dtype)
            for name, (dtype, fill) in COLUMNS.items()
            if name in self.needs | StepBudget.NEEDS | {"seq", "state", "preemptable", "pausable"}
        }
        self._columns["state"][:] = 1
        self._columns["seq"] = np.arange(len(requests))

    def arrived(self, rows: Rows, slot: int, now_s: float) -> None:
        super().arrived(rows, slot, now_s)
        if self._epoch_s is None:
            self._epoch_s = float(rows.arrival_s[slot]) - float(self._arrivals_s[0])
            self._columns["arrival_s"] = self._arrivals_s + self._epoch_s

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        at_s = now_s - (self._epoch_s or 0.0)
        first = snapshot.rows.last_seq + 1
        last = int(np.searchsorted(self._arrivals_s, at_s + self._horizon_s, side="right"))
        if first >= last or not snapshot.waiting.size:
            return super().plan(snapshot, now_s)
        rows, capacity = copy.copy(snapshot.rows), snapshot.rows.capacity
        for name in rows.kept:
            column = getattr(snapshot.rows, name)
            setattr(rows, name, np.concatenate((column, self._columns[name][first:last].astype(column.dtype))))
        coming = np.arange(capacity, capacity + last - first)
        waiting = np.concatenate((snapshot.waiting, coming))
        plan = super().plan(replace(snapshot, rows=rows, waiting=waiting), now_s)
        if plan.waiting is None or not plan.waiting.size:
            return plan
        is_here = plan.waiting < capacity
        preempt = plan.preempt if is_here[0] else NO_SLOTS
        most = plan.max_running
        if most is not None:
            places = most - (snapshot.running.size - plan.preempt.size)
            kept_free = int(np.count_nonzero(~is_here[: max(places, 0)]))
            most = max(most - kept_free - (plan.preempt.size - preempt.size), 1)
        running = plan.running
        if preempt.size < plan.preempt.size:
            running = None  # as it is: nothing is preempted for a request that is not there
        return replace(plan, waiting=plan.waiting[is_here], preempt=preempt, max_running=most, running=running)
