"""The planner's task: one of several leads, and writes the plan in force under its term.

It keeps nothing that cannot be read again: waiting requests are in the store, running ones in the reports of agents,
the last plan in its row. If the leader dies the last plan holds, and another leads once its lease has run out.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import Final

from sloserve.core.clock import Clock
from sloserve.fleet.contract.plan_in_force import PlanInForce, ReplayedNeed, to_json
from sloserve.fleet.fleet import Fleet
from sloserve.fleet.planning.cached_sums import CachedSums
from sloserve.fleet.planning.plan_maker import PlanMaker
from sloserve.fleet.planning.plan_reader import PlanReader
from sloserve.fleet.planning.snapshot import LiveMembers
from sloserve.fleet.planning.waiting_groups import durable_groups
from sloserve.fleet.store.records import StoredPlan
from sloserve.fleet.store.store import Store
from sloserve.fleet.supervised import supervised

LEASE_S: Final = 5.0
_ROUNDS: Final = 3.0
"""Lease of a leader, in rounds of the length of its last one: another that took the lead during each round would keep
all of them from writing a plan."""
_LONGEST_LEASE_S: Final = 120.0
"""Longest such lease in seconds, for which no plan is made if the leader dies."""
REPLAN_S: Final = 1.0
REFRESH_S: Final = 3.0
"""Seconds after which an unchanged plan is written again, so that agents see that the planner still holds to it."""


class Planning:
    """One planner of a fleet.

    Args:
        fleet: Settings of the fleet, from its file.
        store: Store that all members share.
        holder: a name that is unique among planners, and new in each process.
        clock: Clock of this process, used for durations alone.
        lease_s: Seconds after which another planner follows a leader that does not renew; longer where rounds are long.
        replayed: Returns the need by replays that was found last.
    """

    def __init__(
        self,
        fleet: Fleet,
        store: Store,
        holder: str,
        clock: Clock,
        *,
        lease_s: float = LEASE_S,
        replayed: Callable[[], ReplayedNeed | None] = lambda: None,
    ) -> None:
        self._replayed = replayed
        self._store, self._holder, self._clock = store, holder, clock
        self._lease_s = lease_s
        self._round_s = 0.0
        """Length of the last round in which this planner led, whether or not it kept the lead."""
        self._maker = PlanMaker(fleet)
        self._plan = PlanReader(store.members)
        self._queued = CachedSums(store.requests, clock)
        self._written: tuple[int, PlanInForce] | None = None

    def step(self) -> PlanInForce | None:
        """Run one round: lead if possible, and plan if leading; return the plan in force if it is this planner's.

        This blocks for the store, and while the planner searches. Raises: StoreError.
        """
        began_s = self._clock.monotonic_s()
        long_s = min(_ROUNDS * self._round_s, _LONGEST_LEASE_S)
        term = self._store.members.lead(self._holder, max(self._lease_s, long_s))
        if term is None:
            self._written = None
            return None
        try:
            return self._lead(term)
        finally:
            self._round_s = self._clock.monotonic_s() - began_s

    def _lead(self, term: int) -> PlanInForce | None:
        """Plan as the leader of this term; return the plan in force if it is this planner's."""
        last, stored = self._plan.read(), self._plan.stored
        members = LiveMembers.of(self._store.members.agents())
        plan = self._maker.plan(self._store.now_s(), durable_groups(self._queued.sums()), members, last)
        plan = replace(plan, replayed=self._replayed())
        if not self._is_news(term, plan):
            return plan
        version = stored.version + 1 if stored is not None and stored.term == term else 1
        if not self._store.members.write_plan(self._holder, StoredPlan(term, version, to_json(plan))):
            self._written = None
            return None
        self._written = term, plan
        return plan

    @property
    def leads(self) -> bool:
        """Whether the last plan in force is its own."""
        return self._written is not None

    async def run(self, executor: Executor, *, every_s: float = REPLAN_S) -> None:
        """Run rounds until cancelled. While the store is away, the last plan holds."""
        step = partial(asyncio.get_running_loop().run_in_executor, executor, self.step)
        await supervised("no plan is made, and the last one holds", step, every_s)

    def _is_news(self, term: int, plan: PlanInForce) -> bool:
        if self._written is None or self._written[0] != term:
            return True
        last = self._written[1]
        is_new = plan.order != last.order or plan.replayed != last.replayed or bool(plan.waiting) != bool(last.waiting)
        return is_new or plan.made_s >= last.made_s + REFRESH_S
