"""``sloserve fleet FILE``: gateway and planner in this process, and an agent for each host as a child of it.

A child dies with this process, however it ends; a child that dies is started again.
"""

import asyncio
import logging
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from sloserve.core.errors import StoreError
from sloserve.core.file_lock import OwnLock
from sloserve.core.user_folders import socket_folder
from sloserve.fleet.fleet import Fleet
from sloserve.fleet.planning.planning_task import LEASE_S
from sloserve.fleet.pool.pool import Pool
from sloserve.fleet.run.fleet_pools import FleetPools
from sloserve.fleet.run.gateway_process import GatewayServer, stop
from sloserve.fleet.run.live import Place, with_own_key
from sloserve.fleet.run.open_files import allow_open_files
from sloserve.fleet.run.planner_process import PlannerTask
from sloserve.fleet.run.processes import end_processes
from sloserve.fleet.run.progress import Progress
from sloserve.fleet.run.reloading import FileInForce, FleetSource, Reloading
from sloserve.fleet.run.signals import HangUps, Stopping
from sloserve.fleet.store.store import Store, open_store

logger = logging.getLogger(__name__)

_LOOK_S: Final = 0.5
LOCK: Final = "fleet.lock"


async def run_fleet(
    fleet: Fleet,
    place: Place,
    say: Callable[[str], None],
    *,
    agent_options: Sequence[str] = (),
    lease_s: float = LEASE_S,
    source: FleetSource | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM; a second signal does not wait for what runs. On SIGHUP it follows its file.

    Args:
        fleet: Settings of the fleet, from its file.
        place: Locations of the fleet's state.
        say: Prints a line.
        agent_options: Further options of ``sloserve fleet agent``.
        lease_s: Seconds for which claims and hosts are leased.
        source: File from which the fleet is read again; ``None`` for a fleet that is read once.

    Raises:
        ConfigError: Something is set wrongly, here or at an agent.
    """
    stopping, hang_ups = Stopping(), HangUps()
    allow_open_files(fleet.gateway.max_requests)
    lock = OwnLock(place.folder / LOCK, f"the fleet of {fleet.source}")
    store = open_store(place.store)
    if fleet.pool.ray is not None and place.endpoint_key is None:  # agents that Ray starts get it from here
        place = with_own_key(place)
    run_folder = socket_folder()
    try:
        place.logs.mkdir(exist_ok=True)
        in_force = FileInForce(fleet, folder=place.folder)
        server = GatewayServer(fleet, place, store, fleet.switching.drain_max_s, in_force)
        pools = FleetPools(fleet, place, store, say, run_folder, agent_options)
        counted = f"{len(fleet.models)} models on {len(fleet.instances)} instances"
        counted += " and the instances of hosts that join" if fleet.pool.devices else ""
        say(f"{counted}; store {_shown(place.store)}; logs in {place.logs}")
        with ThreadPoolExecutor(1, "sloserve-planner") as executor:
            planner = PlannerTask(fleet, store, executor, lease_s=lease_s)

            async def apply(changed: Fleet) -> None:
                await server.apply(changed)  # first, since it alone may refuse the version
                await planner.apply(changed)
                pools.follow(changed)

            tasks = [asyncio.create_task(one) for one in (pools.run(), planner.run())]
            tasks.append(asyncio.create_task(_say_progress(fleet, store, server, say)))
            also = await server.start()
            if also is not None:
                say(also)
            reloading = asyncio.create_task(Reloading(source, in_force, apply, say).run(hang_ups))
            stopped = asyncio.create_task(stopping.wait())
            ended = await _first_failure(stopped, tasks)
            reloading.cancel()
            await asyncio.gather(reloading, return_exceptions=True)
            say("stopping: no new requests, running ones finish; signal again to stop at once")
            await _stop(server, pools.pools, stopping)
            for task in (*tasks, stopped):
                task.cancel()
            await asyncio.gather(*tasks, stopped, return_exceptions=True)
        in_force.close()
        if ended is not None:
            raise ended
        say("stopped")
    finally:
        store.close()
        for host in fleet.hosts.values():
            end_processes(place, host)  # of a host that has no agent just now
        lock.close()
        shutil.rmtree(run_folder, ignore_errors=True)


async def _first_failure(stopped: "asyncio.Task[None]", tasks: Sequence["asyncio.Task[None]"]) -> BaseException | None:
    """Wait until the fleet shall stop; return the error of a part that has failed, if that is why."""
    waiting = {stopped, *tasks}
    while not stopped.done():
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in done - {stopped}:
            if (error := task.exception()) is not None:
                return error
    return None


async def _stop(server: GatewayServer, pools: Sequence[Pool], stopping: Stopping) -> None:
    stopping.again()
    hurried = asyncio.create_task(stopping.wait())
    await stop(server, hurried)
    await asyncio.gather(*(pool.close(at_once=hurried.done()) for pool in pools))
    hurried.cancel()


async def _say_progress(fleet: Fleet, store: Store, server: GatewayServer, say: Callable[[str], None]) -> None:
    """Print what happens until the fleet serves."""
    progress = Progress(fleet, say)
    while True:
        try:
            if progress.look(await asyncio.to_thread(store.members.agents)):
                break
        except StoreError as error:
            logger.warning("%s", error)
        await asyncio.sleep(_LOOK_S)
    say(f"ready: {server.address}/v1 with models {', '.join(fleet.models)}")


def _shown(address: str) -> str:
    """Return the address without a password."""
    scheme, at, rest = address.rpartition("@")
    return f"{scheme.partition('://')[0]}://...@{rest}" if at else address
