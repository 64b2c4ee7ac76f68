"""Carries out the plan on the instances of an agent: what they pull, which model they have, which they keep warm.

The order of each instance's queue says it all; :mod:`sloserve.lso.fleet_operations` reads it, as in the simulator.
Where no planner has written for a while the last plan holds as long as its groups have requests. Then the instances
serve the models that they have, earliest deadline first, and turn to a model that is active nowhere once its oldest
request has waited for ``max_wait_s``.
"""

import asyncio
import hashlib
import logging
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from typing import Final

from sloserve.core.clock import Clock
from sloserve.core.errors import StoreError
from sloserve.fleet.agent.claims import Pull
from sloserve.fleet.agent.pulling import Pulling
from sloserve.fleet.contract.door import Door
from sloserve.fleet.contract.plan import Plan, plan_of
from sloserve.fleet.contract.reports import InstanceReport, Phase
from sloserve.fleet.file import Fleet
from sloserve.fleet.planning.queued import Queued as QueuedGroups
from sloserve.fleet.planning.snapshot import Members, fleet_state
from sloserve.fleet.store.store import Store
from sloserve.lso.fleet_operations import Queued, fleet_operations
from sloserve.scheduler.qlm.contract import FleetState, GroupSums, ModelState

logger = logging.getLogger(__name__)

LOOK_S: Final = 0.5
STALE_S: Final = 15.0
"""A plan that was not written anew for so long is no planner's any more."""


class Following:
    """Of one agent. Used in one event loop.

    Args:
        fleet: as its file says.
        doors: its instances.
        pulling: for these instances.
        store: shared with all members.
        clock: of this process; for durations alone.
        executor: its threads wait for the store.
    """

    def __init__(
        self, fleet: Fleet, doors: Sequence[Door], pulling: Pulling, store: Store, clock: Clock, executor: Executor
    ) -> None:
        self._fleet, self._pulling, self._store = fleet, pulling, store
        self._doors = {door.name: door for door in doors}
        self._clock, self._executor = clock, executor
        self._queued = QueuedGroups(store.requests, clock)
        self._queues: Mapping[str, Sequence[Queued]] = {}

        self._switches: dict[str, asyncio.Task[None]] = {}
        self._warming: dict[str, tuple[tuple[str, ...], asyncio.Task[None]]] = {}
        hosts = dict(fleet.instances)
        shares = {host.name: host.host_memory_bytes // len(host.instances) for host in fleet.hosts.values()}
        self._host_bytes = {name: shares[hosts[name].name] for name in self._doors}
        swaps = fleet.swaps()
        self._weights = {
            name: {model: swaps[model, hosts[name].device].weights_bytes for model in fleet.models_on(hosts[name])}
            for name in self._doors
        }
        self.plan: tuple[int, int] | None = None
        """Term and version of the plan that is followed."""

    async def run(self) -> None:
        """Looks at the plan until it is cancelled. While the store is away the last one holds."""
        away = False
        while True:
            try:
                await self.step()
                away = False
            except StoreError as error:
                if not away:
                    logger.warning("the plan cannot be read; the last one is followed: %s", error)
                away = True
            except Exception:  # a fault of ours must not end following for good
                logger.exception("a look at the plan failed")
            await asyncio.sleep(LOOK_S)

    async def step(self) -> None:
        """One look, and what follows from it. Raises: StoreError, once the instances have their orders."""
        try:
            self._queues = await asyncio.get_running_loop().run_in_executor(self._executor, self._read)
        finally:
            for name, door in self._doors.items():
                self._order(door, self._queues.get(name, ()))

    async def stop(self) -> None:
        """Begins no more switches, and waits for none."""
        tasks = [*self._switches.values(), *(task for _, task in self._warming.values())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Reading, in a thread.

    def _read(self) -> Mapping[str, Sequence[Queued]]:
        """Of each instance what waits for it, the head first."""
        stored = self._store.members.plan()
        plan = None if stored is None else plan_of(stored.plan)
        self.plan = None if stored is None else (stored.term, stored.version)
        now_s = self._store.now_s()
        if plan is not None and abs(now_s - plan.made_s) < STALE_S:  # the store's clock may have been set back
            return {name: planned(plan, name) for name in {*plan.queues, *self._doors}}
        members = Members.of(self._store.members.agents())
        state, _ = fleet_state(now_s, self._queued.sums(), members, {}, None)
        return {name: unplanned(name, plan, state, self._fleet.switching.max_wait_s) for name in self._doors}

    # Doing.

    def _order(self, door: Door, queue: Sequence[Queued]) -> None:
        report = door.report()
        if door.name in self._switches:
            return
        # A planner that was started with another file may know models that this host does not.
        queue = [one for one in queue if one.model in report.models]
        if report.phase is Phase.EMPTY and not queue:
            first = self._fleet.active.get(door.name)
            if first is not None:
                self._switch(door, first, (first,))
            return
        asked = fleet_operations(
            queue,
            active=report.active,
            last_head=None,
            running=(),
            warm=[model for model, state in report.models.items() if state is ModelState.WARM],
            weights_bytes=self._weights[door.name],
            host_bytes=self._host_bytes[door.name],
        )
        pulled, warm = set(asked.pull), asked.warm
        if asked.activate is not None:
            warm = (asked.activate, *warm)  # which is not to be dropped just before it comes
            if self._may_switch(report):
                self._pulling.follow(door.name, [])
                self._switch(door, asked.activate, warm)
                return
            # Until then it serves what it has.
            pulled = {one.ref for one in queue if one.model == report.active}
        order = [one for one in queue if one.ref in pulled and one.ref >= 0]
        # With room left it helps the others of its model: a group may stand behind streams that are only expected.
        rest = {one.ref: one for name in self._queues for one in self._queues[name] if one.ref >= 0}
        order += sorted((q for q in rest.values() if q.model == report.active and q not in order), key=_by_due)
        self._pulling.follow(door.name, [Pull(one.ref, one.model) for one in order])
        self._keep_warm(door, warm)

    def _may_switch(self, report: InstanceReport) -> bool:
        if report.phase is Phase.SERVING:
            return report.active_for_s is None or report.active_for_s >= self._fleet.switching.min_active_s
        return report.phase in (Phase.EMPTY, Phase.FAILED)

    def _switch(self, door: Door, model: str, warm: tuple[str, ...]) -> None:
        """warm: models to have in host memory until the switch is over."""

        async def switch() -> None:
            try:
                self._warming.pop(door.name, None)
                await door.keep_warm(warm)
                if not await door.activate(model):
                    logger.warning("%s: model %s could not be activated", door.name, model)
            except Exception:  # the agent's fault must not end following
                logger.exception("%s: the switch to %s failed", door.name, model)
            finally:
                self._switches.pop(door.name, None)

        self._switches[door.name] = asyncio.create_task(switch())

    def _keep_warm(self, door: Door, models: tuple[str, ...]) -> None:
        known, task = self._warming.get(door.name, ((), None))
        if models == known or (task is not None and not task.done()):
            return

        async def keep() -> None:
            try:
                await door.keep_warm(models)
            except Exception:
                logger.exception("%s: models %s are not kept warm", door.name, ", ".join(models))

        self._warming[door.name] = models, asyncio.create_task(keep())


def planned(plan: Plan, instance: str) -> list[Queued]:
    """The plan's queue of an instance."""
    return [
        Queued(group.ref, group.model, math.inf if group.due_in_s is None else plan.made_s + group.due_in_s)
        for group in plan.queues.get(instance, ())
    ]


def unplanned(instance: str, last: Plan | None, state: FleetState, max_wait_s: float) -> list[Queued]:
    """What an instance serves where no planner says: the groups of the last plan that still have requests, then those
    of the model that it has by their deadlines. A model that is active nowhere, and whose oldest request has waited for
    ``max_wait_s``, comes before all on one of the instances that can serve it.
    """
    groups = {group.ref: group for group in state.groups}
    kept = [one for one in ([] if last is None else planned(last, instance)) if one.ref in groups]
    held = {group.ref for queue in ({} if last is None else last.queues).values() for group in queue}
    others = sorted((g for g in state.groups if g.ref not in held), key=lambda g: (g.first_due_s, g.ref))
    actives = {one.name: one.active for one in state.instances}
    own = [_queued(group) for group in others if group.model == actives.get(instance)]
    starved = [
        group
        for group in sorted(state.groups, key=lambda g: (g.first_due_s, g.ref))
        if group.model not in actives.values() and state.now_s - group.first_arrival_s >= max_wait_s
    ]
    mine = [_queued(group) for group in starved if _turns(group.model, state) == instance]
    first = {one.ref for one in mine}
    return [*mine, *(one for one in (*kept, *own) if one.ref not in first)]


def _turns(model: str, state: FleetState) -> str | None:
    """The instance that turns to a model that is active nowhere; all agents choose the same one."""
    can = sorted(one.name for one in state.instances if model in one.models)
    if not can:
        return None
    return can[int.from_bytes(hashlib.sha256(model.encode()).digest()[:4], "big") % len(can)]


def _by_due(one: Queued) -> tuple[float, int]:
    return one.due_s, one.ref


def _queued(group: GroupSums) -> Queued:
    return Queued(group.ref, group.model, group.first_due_s)
