"""Earliest deadline first over the calls of tasks, with the rest of a task's time split evenly over its calls.

When a call of a task arrives, the time until the task's deadline is divided by the number of calls that are left, this
call included: the calls that the client states less those that came before. The result is the time that the call gets;
tools run within it, since nothing tells how long they take. Where a client does not say how many calls there are, and
for each call beyond the number it stated, the call may take all the time that is left. Targets that a call states for
itself hold beside this, and so does everything else of ``edf``.

Source: no paper; it is the simplest use of one deadline for many calls, and so the rival of each policy that learns
what the rest of a task will take.
"""

from typing import Any

import numpy as np

from benchmarks.baselines.programs import PROGRAM_COLUMNS, Programs
from sloserve.core.arrays import FloatArray, IntArray, grown
from sloserve.core.rows import Rows
from sloserve.scheduler.edf import EDF


class SplitDeadline(EDF):
    """Serves the request with the nearest deadline; a call's is an even part of what is left of its task's time."""

    needs = EDF.needs | PROGRAM_COLUMNS | {"task_due_s"}

    def __init__(self, settings: Any = None, *, seed: int = 0) -> None:
        super().__init__(settings, seed=seed)
        self._programs = Programs()
        self._due_s: FloatArray = np.empty(0)
        """By slot: epoch seconds at which the call should have ended; inf without a task or its deadline."""

    def arrived(self, rows: Rows, slot: int, now_s: float) -> None:
        program = self._programs.arrived(rows, slot)
        if self._due_s.size < rows.capacity:
            self._due_s = grown(self._due_s, rows.capacity, np.inf)
        due_s, arrival_s = float(rows.task_due_s[slot]), float(rows.arrival_s[slot])
        left = 1 if rows.task_last[slot] else max(int(rows.task_calls[slot]) - program.calls + 1, 1)
        # A task that is late already leaves its calls no time to split.
        call_due_s = arrival_s + (due_s - arrival_s) / left if due_s > arrival_s else due_s
        self._due_s[slot] = np.inf if np.isnan(due_s) else call_due_s

    def finished(self, rows: Rows, slot: int, now_s: float) -> None:
        self._programs.finished(rows, slot, 0, now_s)

    def due_s(self, rows: Rows, slots: IntArray) -> FloatArray:
        found: FloatArray = np.minimum(super().due_s(rows, slots), self._due_s[slots])
        return found
