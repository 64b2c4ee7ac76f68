"""Keeps what a gateway knows of its fleet up to date: it asks the endpoints of agents, and reads and writes the store.

Only endpoints are needed to serve streams. The store says which agents there are and what the plan is; while it is away
the last state of both holds.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple

from sloserve.core.errors import StoreError
from sloserve.fleet.contract.plan_in_force import PlanInForce
from sloserve.fleet.contract.reports import GatewayReport, agent_report, to_json
from sloserve.fleet.contract.traffic import RecentTraffic, to_text
from sloserve.fleet.gateway.keys import Tenant
from sloserve.fleet.gateway.parts import GatewayState
from sloserve.fleet.gateway.shared_use import SharedUse
from sloserve.fleet.planning.plan_reader import PlanReader
from sloserve.fleet.store.store import Store
from sloserve.fleet.supervised import Faults

logger = logging.getLogger(__name__)

ASK_S: Final = 0.25
"""Seconds between two questions to an endpoint of an older agent, which responds at once."""
ASK_SOON_S: Final = 0.05
"""Seconds between two questions to such an endpoint while requests wait for an instance.

An agent that responds once something has changed is asked again after as long.
"""
APART_S: Final = 0.001
"""Least seconds between two questions, of all agents: together they take a third of a processor at most."""
STORE_S: Final = 1.0
"""Seconds between two times that the store is read, and gets the demand."""
TRAFFIC_S: Final = 15.0
"""Seconds between two reports of the recent requests to the store."""
GONE_S: Final = 30.0
"""Seconds without a sign of life after which a member that does not respond is asked no more."""


class _Known(NamedTuple):
    """What a gateway has of an agent's report.

    Args:
        version: Version of the report; empty if it has none.
        instances: Number of instances in it.
    """

    version: str = ""
    instances: int = 0


class Watch:
    """Keeps instances and plan of one gateway up to date.

    Args:
        name: Name of the gateway, unique among members.
        store: Store of the fleet; ``None`` for none, as in tests.
        endpoints: Endpoints that are asked whatever the store says.
        parts: State of the gateway.
        use: Use by tenant that is shared with other gateways; ``None`` for none, as in tests.
    """

    def __init__(
        self,
        name: str,
        store: Store | None,
        endpoints: Collection[str],
        parts: GatewayState,
        use: SharedUse | None = None,
    ) -> None:
        self._name, self._store, self._static = name, store, frozenset(endpoints)
        self._plan = None if store is None else PlanReader(store.members)
        self._parts, self._instances, self._hold = parts, parts.instances, parts.hold
        self._use = use
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._reading: asyncio.Task[None] | None = None
        """Term and version of the last plan that was read, and the plan; only the thread of the store uses them."""
        self._traffic_due_s = 0.0
        self._thread = ThreadPoolExecutor(1, "sloserve-gateway-store")
        self.store_faults = Faults("the store is not read, and streams continue with the last known state")
        self.answered: set[str] = set()
        """Endpoints that responded when they were last asked."""

    def start(self) -> None:
        self._ask(self._static)
        if self._store is not None:
            self._reading = asyncio.create_task(self._keep_reading(self._store))

    def follow(self, parts: GatewayState, tenants: Callable[[], Iterable[Tenant]]) -> None:
        """Go on for another gateway, which has the same instances, held requests and connections.

        Args:
            parts: State of that gateway.
            tenants: Returns the tenants of its file of keys.
        """
        self._parts = parts
        if self._use is not None:
            self._use.follow(tenants)

    async def stop(self) -> None:
        """Stop watching, and notify the other members that this gateway leaves."""
        tasks = [task for task in (*self._asking.values(), self._reading) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._store is not None:
            try:
                await asyncio.get_running_loop().run_in_executor(self._thread, self._store.members.leave, self._name)
            except StoreError as error:
                logger.warning("the store cannot be notified that this gateway stops: %s", error)
        self._thread.shutdown()

    # Agents' endpoints.

    def _ask(self, endpoints: Collection[str]) -> None:
        """Ask exactly these endpoints from this call on."""
        for endpoint in self._asking.keys() - endpoints:
            self._asking.pop(endpoint).cancel()
            self._instances.lost(endpoint)
            self.answered.discard(endpoint)
        for endpoint in sorted(endpoints - self._asking.keys()):
            self._asking[endpoint] = asyncio.create_task(self._keep_asking(endpoint))

    async def _keep_asking(self, endpoint: str) -> None:
        faults = Faults(f"the report of the agent behind {endpoint} is not read")
        known = _Known()
        while True:
            with faults:
                known = await self._asked(endpoint, known)
            await self._pause(waits=bool(known.version))

    async def _asked(self, endpoint: str, known: _Known) -> _Known:
        """Ask an agent for its report, which it sends once it differs from what is known; return what is known then."""
        sent_before, asked_s = self._instances.sent(), self._parts.clock.monotonic_s()
        state = await self._parts.agents.state(endpoint, known.version)
        if state is None:
            self._instances.lost(endpoint)
            if endpoint in self.answered:
                logger.warning("the agent behind %s does not respond", endpoint)
            self.answered.discard(endpoint)
            return _Known()
        # A report that an agent waited with contains what was sent to it meanwhile.
        made_s = asked_s + state.waited_s if state.waited_s else float("-inf")
        now_s = self._parts.clock.monotonic_s()
        if state.report is not None:
            self._instances.reported(state.report, endpoint, sent_before, now_s, made_s)
            for one in state.report.instances:
                self._parts.tasks.heard(one.tasks)
            known = _Known(state.version or "", len(state.report.instances))
        elif self._instances.unchanged(endpoint, sent_before, now_s, made_s) != known.instances:
            known = _Known()  # some were forgotten, as the store did not name the endpoint
        self.answered.add(endpoint)
        self._hold.let_go()
        return known

    async def _pause(self, *, waits: bool) -> None:
        """Wait until the next question to an agent.

        Args:
            waits: Whether the agent will wait with its response until something has changed.
        """
        if waits:
            await asyncio.sleep(max(ASK_SOON_S, APART_S * len(self._asking)))
            return
        if self._hold.waits.is_set():
            # The pause is never zero: an endpoint without its socket refuses at once, and the event loop would get no
            # turn.
            await asyncio.sleep(ASK_SOON_S)
            return
        try:
            async with asyncio.timeout(ASK_S):
                await self._hold.waits.wait()
        except TimeoutError:
            pass

    # The store.

    async def _keep_reading(self, store: Store) -> None:
        while True:
            with self.store_faults:
                await self._read_store(store)
            await asyncio.sleep(self.store_faults.pause_s(STORE_S))

    async def _read_store(self, store: Store) -> None:
        report = self._parts.demand.report(self._hold.held, self._parts.clock.monotonic_s())
        loop = asyncio.get_running_loop()
        plan, ages = await loop.run_in_executor(self._thread, self._exchange, store, report)
        self._instances.plan = plan
        # An endpoint that responds is there: after the store was away no agent has reported to it yet.
        self._ask(self._static | {endpoint for endpoint, age_s in ages if age_s < GONE_S or endpoint in self.answered})
        # An endpoint that the store no longer names has ended, or a store that was replaced does not know it yet.
        kept = self._instances.keep_only(self._static | {endpoint for endpoint, _ in ages})
        await self._parts.agents.keep_only(kept)
        await self._report_traffic(store)
        if self._use is not None:
            due = self._use.due()
            rows = await loop.run_in_executor(self._thread, self._use.exchange, store, due)
            self._use.exchanged(due, rows)

    async def _report_traffic(self, store: Store) -> None:
        """Report recent requests for the planner, where it replays them and the last report is old."""
        traffic, now_s = self._parts.traffic, self._parts.clock.monotonic_s()
        if traffic is None or now_s < self._traffic_due_s:
            return
        self._traffic_due_s, report = now_s + TRAFFIC_S, traffic.report(now_s)
        write = partial(self._write_traffic, store, report)
        await asyncio.get_running_loop().run_in_executor(self._thread, write)

    def _write_traffic(self, store: Store, report: RecentTraffic) -> None:
        store.traffic.write(self._name, to_text(report))

    def _exchange(self, store: Store, report: GatewayReport) -> tuple[PlanInForce | None, list[tuple[str, float]]]:
        """Return the plan, and the endpoint of each agent with the age of its last sign of life."""
        store.members.beat(self._name, to_json(report))
        plan = None if self._plan is None else self._plan.read()
        agents = [(agent_report(row.state), row.age_s) for row in store.members.agents()]
        ages = [(agent.door, age_s) for agent, age_s in agents if agent is not None]
        return plan, ages
