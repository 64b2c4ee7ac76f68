"""``sloserve fleet FILE``: gateway and planner in this process, and an agent for each host as a child of it.

A child dies with this process, however it ends; a child that dies is started again.
"""

import asyncio
import logging
import secrets
import shutil
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final

from sloserve.core.errors import StoreError
from sloserve.core.file_lock import OwnLock
from sloserve.fleet.fleet import Fleet
from sloserve.fleet.planning.planning_task import LEASE_S
from sloserve.fleet.pool.embedded import EmbeddedPool
from sloserve.fleet.pool.keeper import THE_AGENT, AgentKeeper
from sloserve.fleet.pool.pool import Offer, Pool
from sloserve.fleet.pool.registered import RegisteredPool
from sloserve.fleet.run.gateway_process import GatewayServer, stop
from sloserve.fleet.run.live import DOOR_KEY, Place
from sloserve.fleet.run.open_files import allow_open_files
from sloserve.fleet.run.planner_process import run_planner
from sloserve.fleet.run.progress import Progress
from sloserve.fleet.run.signals import Stopping
from sloserve.fleet.store.store import Store, open_store

logger = logging.getLogger(__name__)

_LOOK_S: Final = 0.5


async def run_fleet(
    fleet: Fleet,
    place: Place,
    say: Callable[[str], None],
    *,
    agent_options: Sequence[str] = (),
    lease_s: float = LEASE_S,
) -> None:
    """Serve until SIGINT or SIGTERM; a second signal does not wait for what runs.

    Args:
        fleet: Settings of the fleet, from its file.
        place: Locations of the fleet's state.
        say: Prints a line.
        agent_options: Further options of ``sloserve fleet agent``.
        lease_s: Seconds for which claims and hosts are leased.

    Raises:
        ConfigError: Something is set wrongly, here or at an agent.
    """
    stopping = Stopping()
    allow_open_files(fleet.gateway.max_requests)
    lock = OwnLock(place.folder / "fleet.lock", f"the fleet of {fleet.source}")
    store = open_store(place.store)
    if fleet.pool.ray is not None and place.endpoint_key is None:  # agents that Ray starts get it from here
        place = replace(place, endpoint_key=secrets.token_urlsafe(32))
    run_folder = Path(tempfile.mkdtemp(prefix="slo-"))  # 0700; short, since a socket's path has at most 107 bytes
    try:
        place.logs.mkdir(exist_ok=True)
        server = GatewayServer(fleet, place, store, fleet.switching.drain_max_s)
        pools = _pools(fleet, place, store, run_folder, agent_options)
        counted = f"{len(fleet.models)} models on {len(fleet.instances)} instances"
        counted += " and the instances of hosts that join" if fleet.pool.devices else ""
        say(f"{counted}; store {_shown(place.store)}; logs in {place.logs}")
        with ThreadPoolExecutor(2, "sloserve-planner") as executor:
            tasks = [asyncio.create_task(AgentKeeper(pool, say, what).run()) for what, pool in pools.items()]
            tasks.append(asyncio.create_task(run_planner(fleet, store, executor, lease_s=lease_s)))
            tasks.append(asyncio.create_task(_say_progress(fleet, store, server, say)))
            also = await server.start()
            if also is not None:
                say(also)
            stopped = asyncio.create_task(stopping.wait())
            ended = await _first_failure(stopped, tasks)
            say("stopping: no new requests, running ones finish; signal again to stop at once")
            await _stop(server, list(pools.values()), stopping)
            for task in (*tasks, stopped):
                task.cancel()
            await asyncio.gather(*tasks, stopped, return_exceptions=True)
        if ended is not None:
            raise ended
        say("stopped")
    finally:
        store.close()
        lock.close()
        shutil.rmtree(run_folder, ignore_errors=True)


def _pools(fleet: Fleet, place: Place, store: Store, run_folder: Path, options: Sequence[str]) -> dict[str, Pool]:
    """Return the pools, each under the name of the processes that it keeps."""
    environment = {"XDG_RUNTIME_DIR": str(run_folder)}
    offers = [Offer(one.name, one.device, one.devices, one.host_memory_bytes) for one in fleet.hosts.values()]
    here = [fleet.source, "--state", str(place.folder), *options]

    def agent(host: str) -> list[str]:
        return ["sloserve.cli", "fleet", "agent", *here, "--host", host]

    pools: dict[str, Pool] = {THE_AGENT: EmbeddedPool(offers, agent, place.logs, environment)}
    if fleet.pool.ray is not None:
        # Ray ends a process that loses its cluster for a minute: it must not be the gateway's process.
        own = environment | {DOOR_KEY: place.endpoint_key or ""}
        command = ["sloserve.cli", "fleet", "pool", *here]
        pools["the pool of"] = EmbeddedPool([Offer("ray", "", 0)], lambda _: command, place.logs, own, "pool")
    elif fleet.pool.devices:
        pools["the registered agent of host"] = RegisteredPool(store, fleet.hosts.keys(), lambda d: _width(fleet, d))
    return pools


def _width(fleet: Fleet, device: str) -> int:
    template = fleet.pool.devices.get(device)
    return 1 if template is None else template.width


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
