"""Asks a cluster for the hosts that the plan in force needs, and releases hosts that it does not need."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from sloserve.core.clock import Clock, SystemClock
from sloserve.fleet.contract.plan_in_force import plan_of
from sloserve.fleet.contract.reports import AgentReport, agent_report
from sloserve.fleet.fleet import Fleet
from sloserve.fleet.planning.scaling import ScaledKind, Scaling, instances_needed
from sloserve.fleet.pool.keeper import AgentKeeper
from sloserve.fleet.pool.pool import Offer, Pool
from sloserve.fleet.store.store import Store

SCALE_S: Final = 5.0
"""Seconds between looks at the plan."""
STALE_S: Final = 15.0
"""Seconds after which a plan says nothing about present needs: its planner is away."""


class Scaler:
    """Scales the hosts of one pool.

    Args:
        say: Prints a line for each host that goes.
        clock: Clock of this process.
    """

    def __init__(
        self,
        fleet: Fleet,
        store: Store,
        pool: Pool,
        keeper: AgentKeeper,
        say: Callable[[str], None],
        clock: Clock | None = None,
    ) -> None:
        self._kinds = {
            kind: ScaledKind((one.devices or 1) // one.width, one.least, one.most)
            for kind, one in fleet.pool.devices.items()
            if one.most is not None
        }
        section = fleet.pool.scaling
        self._scaling = Scaling(self._kinds, section.up_s, section.down_s)
        self._store, self._pool, self._keeper, self._say = store, pool, keeper, say
        self._clock = clock or SystemClock()

    async def turn(self) -> None:
        """Compare hosts and plan once, and act. Raises: StoreError, and OSError of the pool."""
        if not self._kinds:
            return
        stored, now_s, rows = await asyncio.to_thread(
            lambda: (self._store.members.plan(), self._store.now_s(), self._store.members.agents())
        )
        plan = None if stored is None else plan_of(stored.plan)
        if plan is None or now_s - plan.made_s > STALE_S:
            return
        offers = {host: one for host, one in (await self._pool.offers()).items() if one.device in self._kinds}
        drained = self._keeper.drained
        there = sum(self._kinds[one.device].instances for host, one in offers.items() if host not in drained)
        wanted = self._scaling.want(self._clock.monotonic_s(), instances_needed(plan), there)
        await self._pool.want(wanted)
        reports = {one.host: one for row in rows if (one := agent_report(row.state)) is not None}
        for kind, count in wanted.items():
            await self._fit(kind, count, offers, reports)

    async def _fit(
        self, kind: str, count: int, offers: Mapping[str, Offer], reports: Mapping[str, AgentReport]
    ) -> None:
        """Drain the least busy host of a kind that has too many, or put drained hosts back to work."""
        drained = [host for host in offers if offers[host].device == kind and host in self._keeper.drained]
        active = [host for host in offers if offers[host].device == kind and host not in drained]
        for host in drained[: max(count - len(active), 0)]:
            self._keeper.resume(host)
        if len(active) > count:
            host = min(active, key=lambda host: (_requests(reports.get(host)), host))
            self._say(f"host {host} is not needed: its requests finish or are requeued, and then its agent ends")
            await self._keeper.drain(host)


def _requests(report: AgentReport | None) -> int:
    return 0 if report is None else sum(one.running.requests for one in report.instances)
