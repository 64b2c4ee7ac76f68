"""The task of a planner, in a process of its own or beside a gateway."""

import asyncio
import secrets
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import NoReturn

from sloserve.core.clock import SystemClock
from sloserve.fleet.fleet import Fleet
from sloserve.fleet.planning.planning_task import LEASE_S, Planning
from sloserve.fleet.planning.replays import EVERY_S, Replays
from sloserve.fleet.run.live import Place
from sloserve.fleet.run.reloading import FileInForce, FleetSource, Reloading
from sloserve.fleet.run.signals import HangUps, Stopping
from sloserve.fleet.store.store import Store, open_store
from sloserve.fleet.supervised import supervised


class PlannerTask:
    """The planner of a process, by the version of the fleet's file in force.

    Args:
        fleet: Settings of the fleet, from its file.
        store: Store that all members share.
        executor: Runs its rounds. With one thread the round of a version has ended before the next version's begins.
        lease_s: Seconds for which it leads.
    """

    def __init__(self, fleet: Fleet, store: Store, executor: Executor, *, lease_s: float = LEASE_S) -> None:
        self._fleet, self._store, self._executor, self._lease_s = fleet, store, executor, lease_s
        # The name stays: a planner that leads goes on to lead with another version of the file.
        self._holder = f"planner:{secrets.token_hex(8)}"
        self._changed = asyncio.Event()

    async def apply(self, fleet: Fleet) -> None:
        """Plan by another version of the fleet's file."""
        self._fleet = fleet
        self._changed.set()

    async def run(self) -> NoReturn:
        """Make plans, whenever this planner leads, until cancelled."""
        while True:
            self._changed.clear()
            made = run_planner(self._fleet, self._store, self._executor, self._holder, lease_s=self._lease_s)
            planning, changed = asyncio.create_task(made), asyncio.create_task(self._changed.wait())
            try:
                await asyncio.wait({planning, changed}, return_when=asyncio.FIRST_COMPLETED)
                if planning.done():
                    await planning
            finally:
                planning.cancel()
                changed.cancel()
                await asyncio.gather(planning, changed, return_exceptions=True)


async def run_planner(fleet: Fleet, store: Store, executor: Executor, holder: str, *, lease_s: float = LEASE_S) -> None:
    """Make plans by one version of the fleet's file, whenever this planner leads, until cancelled."""
    replays = Replays(fleet, store)
    planning = Planning(
        fleet,
        store,
        holder,
        SystemClock(),
        lease_s=lease_s,
        replayed=lambda: replays.need,
    )

    async def replay() -> None:
        if planning.leads:
            await replays.turn()

    tasks = [asyncio.create_task(planning.run(executor))]
    if fleet.replays_traffic:
        what = "the need of instances is not found by replays, and scaling follows the plan's pressure"
        tasks.append(asyncio.create_task(supervised(what, replay, EVERY_S, first_s=EVERY_S)))
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def serve_planner(fleet: Fleet, place: Place, lease_s: float, source: FleetSource | None = None) -> None:
    """Run a process that is only a planner, until SIGINT or SIGTERM; on SIGHUP it follows its file.

    Raises: ConfigError.
    """
    stopping, hang_ups, store = Stopping(), HangUps(), open_store(place.store)
    try:
        with ThreadPoolExecutor(1, "sloserve-planner") as executor:
            planner = PlannerTask(fleet, store, executor, lease_s=lease_s)
            reloading = Reloading(source, FileInForce(fleet), planner.apply)
            tasks = [asyncio.create_task(planner.run()), asyncio.create_task(reloading.run(hang_ups))]
            await stopping.wait()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        store.close()
