"""Random plans, legal and illegal, to test the adapter.

Outputs must stay equal and no request may be lost whatever it plans. It is for tests alone, and ``sloserve policies``
does not list it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from sloserve.core.arrays import IntArray
from sloserve.core.rows import COLUMNS
from sloserve.scheduler.policy import Plan, Policy, Snapshot


class Chaos(Policy):
    """Draws orders, preemptions, pauses and limits at random; now and then a plan that is wrong, or an exception."""

    needs = frozenset(COLUMNS)
    wants_progress = True

    @dataclass(frozen=True)
    class Settings(Policy.Settings):
        preempt: float = 0.1
        """probability per plan that it preempts"""
        pause: float = 0.3
        """probability per plan that it pauses"""
        limit: float = 0.2
        """probability per plan that it sets limits"""
        illegal: float = 0.05
        """probability per plan that it asks for what is not allowed"""
        max_preemptions: int = 8
        """most preemptions of one request, so that a run ends"""

    def __init__(self, settings: Any = None, *, seed: int = 0) -> None:
        super().__init__(settings, seed=seed)
        self._rng = np.random.default_rng(seed)

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        if self._rng.random() < self.settings.illegal:
            return self._illegal(snapshot)
        rng, settings = self._rng, self.settings
        tired = snapshot.rows.num_preemptions[snapshot.running] >= settings.max_preemptions
        preempt = self._some(snapshot.running[~tired], settings.preempt)
        pause = self._some(np.setdiff1d(snapshot.running, preempt), settings.pause)
        limited = rng.random() < settings.limit
        return Plan(
            running=rng.permutation(np.setdiff1d(snapshot.running, preempt)),
            waiting=rng.permutation(np.concatenate([snapshot.waiting, preempt])),
            preempt=preempt,
            pause=pause,
            max_running=int(rng.integers(1, snapshot.engine.max_num_seqs + 1)) if limited else None,
            token_budget=int(rng.integers(1, snapshot.engine.token_budget + 1)) if limited else None,
            prefill_chunk_tokens=int(rng.integers(1, 64)) if limited else None,
        )

    def _some(self, slots: IntArray, share: float) -> IntArray:
        return slots[self._rng.random(slots.size) < share]

    def _illegal(self, snapshot: Snapshot) -> Plan:
        kind = int(self._rng.integers(6))
        if kind == 0:
            raise RuntimeError("chaos: a policy that raises")
        if kind == 1:
            return Plan(running=np.array([snapshot.rows.capacity + 7]))
        if kind == 2:
            return Plan(preempt=snapshot.waiting)
        if kind == 3:
            return Plan(waiting=np.repeat(snapshot.waiting, 2))
        if kind == 4:
            return Plan(max_running=0)
        return Plan(preempt=snapshot.running, pause=snapshot.running, waiting=np.array([0.5]))
