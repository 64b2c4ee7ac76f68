"""Autellix's schedulers: calls of the programs that have had the least service come first, in levels.

``PLAS`` (program-level attained service) counts for a program the execution times of all its calls that have ended.
``ATLAS`` (adaptive thread-level attained service) is for programs with parallel calls: a call begins with the program's
number, and when it has ended the number becomes the call's own beginning and its execution time together, if that is
more. The number so is the longest path of service that was seen. Both agree where calls follow one another.

A call that arrives joins the level of its program's number of seconds, at its end. Each level is twice as wide as the
level before it. A call that has run for the width of its level falls to the end of the next one. If the time that a
program has waited is ``starved_ratio`` times the time that it was served, the present call included in both, the call
returns to the end of the first level and its own times begin anew. Calls are served by level, then in the order in
which they entered it; a call of a later level gives way to one of an earlier level that finds no room.

Execution time is the time for which the engine has a call admitted, as a policy sees it from plan to plan. It counts in
seconds of the engine and not in tokens, as in the paper.

Source: Autellix (arXiv 2502.13965), Sec. 4.2, Algorithm 1. The paper gives neither the number and the width of its
levels nor its threshold of starvation; the defaults are ours. Differs: a call that gives way is recomputed, or swapped
as the engine's settings say, where the paper always swaps; the paper plans once in several steps; a call that is
admitted counts as executed also in a step that has no tokens left for its prompt. The paper's load balancer (Sec. 4.3)
is for several engines and not part of this.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.baselines.programs import PROGRAM_COLUMNS, Programs
from sloserve.core.arrays import FloatArray, IntArray, grown
from sloserve.core.rows import Rows
from sloserve.lso.ordering import PREEMPTION_COLUMNS, PreemptionRule, plan_by_key, ranks
from sloserve.scheduler.options import check_within
from sloserve.scheduler.policy import NO_SLOTS, Plan, Policy, Snapshot

_BY_SLOT = ("_level", "_entered", "_began_s", "_used_s", "_served_s", "_waited_s", "_all_served_s", "_all_waited_s")


class PLAS(Policy):
    """Serves the calls of the programs with the least service, by all calls that have ended."""

    needs = PREEMPTION_COLUMNS | PROGRAM_COLUMNS

    @dataclass(frozen=True)
    class Settings(Policy.Settings):
        levels: int = 8
        """of the queue"""
        quantum_s: float = 2.0
        """width of the first level in seconds of service; each next level is twice as wide"""
        starved_ratio: float = 10.0
        """waiting time per time of service from which on a call returns to the first level; 0 for never"""
        preempt: bool = True
        """whether calls of later levels give way to calls that find no room"""
        max_preemptions: int = 3
        """most preemptions of one call; the paper, which swaps, has no limit"""

        def __post_init__(self) -> None:
            check_within(self, 1, 32, "levels")
            check_within(self, 0, np.inf, "quantum_s", "starved_ratio", "max_preemptions")
            if self.quantum_s <= 0.0:
                raise ValueError(f"quantum_s: {self.quantum_s} is not above 0")

    def __init__(self, settings: Any = None, *, seed: int = 0) -> None:
        super().__init__(settings, seed=seed)
        chosen = self.settings
        # Keys of different levels are at least 1 apart, and those of one level less.
        self._rule = PreemptionRule(1.0, max_preemptions=chosen.max_preemptions) if chosen.preempt else None
        self._widths_s: FloatArray = chosen.quantum_s * 2.0 ** np.arange(chosen.levels - 1)
        self._programs = Programs()
        self._moves = 0
        self._looked_s = -np.inf
        self._ran, self._waited = NO_SLOTS, NO_SLOTS
        # By slot. A call's times since it last returned to the first level decide that it returns again; all its times
        # count for its program.
        self._level = self._entered = NO_SLOTS
        self._began_s: FloatArray = np.empty(0)
        self._used_s = self._served_s = self._waited_s = self._all_served_s = self._all_waited_s = self._began_s

    def arrived(self, rows: Rows, slot: int, now_s: float) -> None:
        program = self._programs.arrived(rows, slot)
        if self._level.size < rows.capacity:
            for name in _BY_SLOT:
                setattr(self, name, grown(getattr(self, name), rows.capacity))
        self._began_s[slot] = program.served_s
        for column in (self._served_s, self._waited_s, self._all_served_s, self._all_waited_s):
            column[slot] = 0.0
        self._enter(np.array([slot]), int(self._widths_s.cumsum().searchsorted(program.served_s, side="right")))

    def finished(self, rows: Rows, slot: int, now_s: float) -> None:
        self._count(now_s, only=slot)
        self._ran, self._waited = self._ran[self._ran != slot], self._waited[self._waited != slot]
        program = self._programs.finished(rows, slot, 0, now_s)
        program.served_s = self._updated(program.served_s, float(self._began_s[slot]), float(self._all_served_s[slot]))
        program.waited_s += float(self._all_waited_s[slot])

    def _updated(self, served_s: float, began_s: float, took_s: float) -> float:
        """Return a program's seconds of service after a call.

        Args:
            served_s: Seconds of service before.
            began_s: Seconds of service of the program when the call arrived.
            took_s: Execution time of the call in seconds.
        """
        return served_s + took_s

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        rows, waiting, running = snapshot.rows, snapshot.waiting, snapshot.running
        self._count(now_s)
        self._ran, self._waited = running, waiting
        upper = running[self._level[running] < self._widths_s.size]
        fallen = upper[self._used_s[upper] >= self._widths_s[self._level[upper]]]
        if fallen.size:
            self._enter(fallen, self._level[fallen] + 1)
        slots = np.concatenate((waiting, running))
        if self.settings.starved_ratio > 0.0:
            self._promote(rows, slots)
        place = ranks(self._entered[slots], rows.seq[slots]) / (slots.size + 1)
        key = 2.0 * self._level[slots] + place
        return plan_by_key(snapshot, key[: waiting.size], key[waiting.size :], preempt=self._rule)

    def _count(self, now_s: float, only: int | None = None) -> None:
        """Count the time since the last look for all calls, or for one that ends."""
        passed_s = max(now_s - self._looked_s, 0.0) if self._looked_s > -np.inf else 0.0
        ran, waited = self._ran, self._waited
        if only is None:
            self._looked_s = now_s
        else:
            ran, waited = ran[ran == only], waited[waited == only]
        for column in (self._used_s, self._served_s, self._all_served_s):
            column[ran] += passed_s
        for column in (self._waited_s, self._all_waited_s):
            column[waited] += passed_s

    def _promote(self, rows: Rows, slots: IntArray) -> None:
        """Return calls of starved programs to the first level."""
        lower = slots[self._level[slots] > 0]
        before = [self._programs.of(rows, slot) for slot in lower.tolist()]
        waited_s = np.array([one.waited_s for one in before]) + self._waited_s[lower]
        served_s = np.array([one.served_s for one in before]) + self._served_s[lower]
        starved = lower[waited_s >= self.settings.starved_ratio * served_s]
        if starved.size:
            self._enter(starved, 0)
            self._waited_s[starved] = self._served_s[starved] = 0.0

    def _enter(self, slots: IntArray, level: IntArray | int) -> None:
        """Put calls at the end of a level, with the whole quantum of the level."""
        self._moves += 1
        self._level[slots], self._used_s[slots], self._entered[slots] = level, 0.0, self._moves


class ATLAS(PLAS):
    """Serves the calls of the programs with the shortest path of service."""

    def _updated(self, served_s: float, began_s: float, took_s: float) -> float:
        return max(served_s, began_s + took_s)
