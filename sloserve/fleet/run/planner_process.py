"""The task of a planner, in a process of its own or beside a gateway."""

import asyncio
import secrets
from concurrent.futures import Executor, ThreadPoolExecutor

from sloserve.core.clock import SystemClock
from sloserve.fleet.fleet import Fleet
from sloserve.fleet.planning.planning_task import LEASE_S, Planning
from sloserve.fleet.planning.replays import EVERY_S, Replays
from sloserve.fleet.run.live import Place
from sloserve.fleet.run.signals import Stopping
from sloserve.fleet.store.store import Store, open_store
from sloserve.fleet.supervised import supervised


async def run_planner(fleet: Fleet, store: Store, executor: Executor, *, lease_s: float = LEASE_S) -> None:
    """Make plans, whenever this planner leads, until cancelled."""
    replays = Replays(fleet, store)
    planning = Planning(
        fleet,
        store,
        f"planner:{secrets.token_hex(8)}",
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


async def serve_planner(fleet: Fleet, place: Place, lease_s: float) -> None:
    """Run a process that is only a planner, until SIGINT or SIGTERM. Raises: ConfigError."""
    stopping, store = Stopping(), open_store(place.store)
    try:
        with ThreadPoolExecutor(1, "sloserve-planner") as executor:
            planning = asyncio.create_task(run_planner(fleet, store, executor, lease_s=lease_s))
            await stopping.wait()
            planning.cancel()
            await asyncio.gather(planning, return_exceptions=True)
    finally:
        store.close()
