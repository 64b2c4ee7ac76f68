"""Carries out the plan on the instances of an agent: what they pull, which model they have, which they keep warm.

What follows from the queue of an instance is in :mod:`sloserve.fleet.agent.orders`. If no planner has written for a
while, the last plan holds as long as its groups have requests. Then the instances serve the models that they have,
earliest deadline first, and turn to a model that is active nowhere once its oldest request has waited for
``max_wait_s``.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import Final

from sloserve.core.clock import Clock
from sloserve.fleet.agent.claims import Pull
from sloserve.fleet.agent.giving_way import GivingWay, running_groups
from sloserve.fleet.agent.orders import agendas, planned, unplanned
from sloserve.fleet.agent.pulling import Pulling
from sloserve.fleet.contract.endpoint import InstanceEndpoint
from sloserve.fleet.fleet import Fleet
from sloserve.fleet.planner_rule import preempts_lines
from sloserve.fleet.planning.plan_reader import PlanReader
from sloserve.fleet.planning.snapshot import LiveMembers, fleet_state
from sloserve.fleet.planning.waiting_groups import durable_groups
from sloserve.fleet.store.store import Store
from sloserve.fleet.supervised import Faults, supervised
from sloserve.scheduler.virtual_queues.fleet_operations import Queued

logger = logging.getLogger(__name__)

LOOK_S: Final = 0.5
STALE_S: Final = 15.0
"""Age in seconds from which a plan counts as having no planner any more."""


class Following:
    """Follows the plan on the instances of one agent. It is used in one event loop.

    Args:
        fleet: Fleet that the fleet's file describes.
        endpoints: Instances of the agent.
        pulling: Puller of durable requests for these instances.
        store: Store shared with all members.
        clock: Clock of this process, for durations alone.
        executor: Executor with threads that wait for the store.
    """

    def __init__(
        self,
        fleet: Fleet,
        endpoints: Sequence[InstanceEndpoint],
        pulling: Pulling,
        store: Store,
        clock: Clock,
        executor: Executor,
    ) -> None:
        self._fleet, self._pulling, self._store = fleet, pulling, store
        self._endpoints = {endpoint.name: endpoint for endpoint in endpoints}
        self._clock, self._executor = clock, executor
        self._plan = PlanReader(store.members)
        self._queues: Mapping[str, Sequence[Queued]] = {}
        self._monotonic_at_0_s = 0.0
        """Monotonic time of this process when the store's clock showed 0."""
        self._preempts_lines = False
        """Whether running lines give way under the plan that is followed."""
        self._giving_way = dict.fromkeys(self._endpoints, GivingWay())
        self._faults = {name: Faults(f"{name} does not follow the plan") for name in self._endpoints}
        self._switches: dict[str, asyncio.Task[None]] = {}
        self._warming: dict[str, tuple[tuple[str, ...], asyncio.Task[None]]] = {}
        self._agendas = agendas(fleet, self._endpoints)
        self.plan: tuple[int, int] | None = None
        """Term and version of the plan that is followed."""

    async def run(self) -> None:
        """Look at the plan until cancelled. While the store is away the last one holds."""
        await supervised("no plan is read, and the last one is followed", self.step, LOOK_S)

    async def step(self) -> None:
        """Look at the plan once, and order what follows. Raises: StoreError, once the instances have their orders."""
        try:
            self._queues = await asyncio.get_running_loop().run_in_executor(self._executor, self._read)
        finally:
            for name, endpoint in self._endpoints.items():
                self._order(endpoint, self._queues.get(name, ()))

    async def stop(self) -> None:
        """Begin no more switches, and wait for none."""
        tasks = [*self._switches.values(), *(task for _, task in self._warming.values())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Reading, in a thread.

    def _read(self) -> Mapping[str, Sequence[Queued]]:
        """Read the plan, and return the queue of each instance by its name, the head first."""
        plan, stored = self._plan.read(), self._plan.stored
        self.plan = None if stored is None else (stored.term, stored.version)
        now_s = self._store.now_s()
        self._monotonic_at_0_s = self._clock.monotonic_s() - now_s
        is_recent = plan is not None and abs(now_s - plan.made_s) < STALE_S  # the store's clock may have been set back
        self._preempts_lines = plan is not None and is_recent and preempts_lines(plan.solver)
        if plan is not None and is_recent:
            return {name: planned(plan, name) for name in {*plan.queues, *self._endpoints}}
        members = LiveMembers.of(self._store.members.agents())
        state, _ = fleet_state(now_s, durable_groups(self._store.shared_sums.sums()), members, {}, None)
        return {name: unplanned(name, plan, state, self._fleet.switching.max_wait_s) for name in self._endpoints}

    # Carrying out.

    def _order(self, endpoint: InstanceEndpoint, queue: Sequence[Queued]) -> None:
        if endpoint.name in self._switches:
            return
        name, report, from_s = endpoint.name, endpoint.report(), self._monotonic_at_0_s
        lines = [line._replace(due_s=line.due_s - from_s) for line in self._pulling.running(name)]
        orders = self._agendas[name].orders(
            report,
            queue,
            (one for queue in self._queues.values() for one in queue),
            last_head=self._giving_way[name].head,
            running=running_groups(lines, str(report.active)) if self._preempts_lines else (),
        )
        giving_way = self._giving_way[name] = self._giving_way[name].after(
            orders, self._pulling.at_hand(name), preempts=self._preempts_lines
        )
        pulled = [Pull(one.ref, one.model) for one in orders.pull]
        self._pulling.follow(name, pulled, replace(giving_way, due_s=giving_way.due_s + from_s))
        if orders.switch_to is not None:
            self._switch(endpoint, orders.switch_to, orders.warm or ())
        elif orders.warm is not None:
            self._keep_warm(endpoint, orders.warm)

    def _switch(self, endpoint: InstanceEndpoint, model: str, warm: tuple[str, ...]) -> None:
        """Switch an instance to a model in a task of its own.

        Args:
            endpoint: Instance that switches.
            model: Model to switch to.
            warm: Models to have in host memory until the switch is over.
        """

        async def switch() -> None:
            try:
                with self._faults[endpoint.name]:  # faults of the agent must not end following
                    self._warming.pop(endpoint.name, None)
                    await endpoint.keep_warm(warm)
                    if not await endpoint.switch(model):
                        logger.warning("%s: the switch to model %s failed", endpoint.name, model)
            finally:
                self._switches.pop(endpoint.name, None)

        self._switches[endpoint.name] = asyncio.create_task(switch())

    def _keep_warm(self, endpoint: InstanceEndpoint, models: tuple[str, ...]) -> None:
        known, task = self._warming.get(endpoint.name, ((), None))
        if models == known or (task is not None and not task.done()):
            return

        async def keep() -> None:
            with self._faults[endpoint.name]:
                await endpoint.keep_warm(models)

        self._warming[endpoint.name] = models, asyncio.create_task(keep())
