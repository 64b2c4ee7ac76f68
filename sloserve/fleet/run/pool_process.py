"""The process that keeps an agent on each node of a Ray cluster.

It is no gateway and no planner: Ray ends a process that has lost its cluster for a minute. Agents outlive it, unless it
is ordered to end: SIGINT and SIGTERM end them, SIGHUP replaces this process by a new one, which finds them again.
"""

import asyncio
import hashlib
import logging
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import sloserve
from sloserve.core.errors import ConfigError
from sloserve.core.extras import not_installed
from sloserve.fleet.file import read_fleet
from sloserve.fleet.fleet import Fleet
from sloserve.fleet.pool.keeper import AgentKeeper
from sloserve.fleet.pool.pool import Offer
from sloserve.fleet.pool.shipped_file import NAME, shipped
from sloserve.fleet.run.live import DOOR_KEY, STORE, Place, check_endpoints, is_of_one_machine
from sloserve.fleet.run.restarting import restart
from sloserve.fleet.run.scaler import SCALE_S, Scaler
from sloserve.fleet.run.signals import HangUps, Stopping
from sloserve.fleet.store.store import open_store
from sloserve.fleet.supervised import supervised

if TYPE_CHECKING:
    from sloserve.fleet.pool.on_ray.pool import RayPool

logger = logging.getLogger(__name__)

_STOP_S: Final = 20.0
"""Seconds for an agent to end, beyond the time that its streams have."""
_LEAVE_S: Final = 10.0
"""Seconds for Ray to let this process go before it is replaced."""


async def reloading(source: Path) -> None:
    """Wait for SIGHUP while the file can be read; a file with faults is logged, and changes nothing."""
    hang_ups = HangUps()
    while True:
        await hang_ups.next()
        try:
            if read_fleet(source, to_run=True).pool.ray is not None:
                return
            raise ConfigError(f"{source}: pool.ray is missing")
        except ConfigError as error:
            logger.error("SIGHUP: this process and its agents stay as they are: %s", error)


async def serve_pool(fleet: Fleet, place: Place, say: Callable[[str], None], options: Sequence[str]) -> None:
    """Run a pool until SIGINT or SIGTERM; then its agents end.

    What they serve ends or goes back into the queue, unless a second signal comes. On SIGHUP this process checks the
    file and starts itself again; its agents go on, and read the file again if it has changed. Agents get ``options``,
    further options of ``sloserve fleet agent``. Raises: ConfigError.
    """
    check_endpoints(fleet, place)
    pool, store = ray_pool(fleet, place, options), open_store(place.store)
    stopping = Stopping()  # after Ray, which takes SIGTERM as a crash
    keeper = AgentKeeper(pool, say)
    keeping, stopped = asyncio.create_task(keeper.run()), asyncio.create_task(stopping.wait())
    reloaded = asyncio.create_task(reloading(Path(fleet.source)))
    scaler = Scaler(fleet, store, pool, keeper, say)
    scaling = asyncio.create_task(supervised("no host is requested or released", scaler.turn, SCALE_S))
    await asyncio.wait({keeping, stopped, reloaded}, return_when=asyncio.FIRST_COMPLETED)
    error = keeping.exception() if keeping.done() else None
    tasks = [keeping, stopped, reloaded, scaling]
    if reloaded.done() and not stopped.done() and error is None:
        await _cancelled(tasks)
        store.close()
        await _replaced(pool, say)
    await _cancelled([scaling, keeping])
    await _close(pool, stopping)
    await _cancelled(tasks)
    store.close()
    if error is not None:
        raise error


async def _close(pool: "RayPool", stopping: Stopping) -> None:
    stopping.again()
    closing, hurried = asyncio.create_task(pool.close()), asyncio.create_task(stopping.wait())
    await asyncio.wait({closing, hurried}, return_when=asyncio.FIRST_COMPLETED)
    if not closing.done():
        closing.cancel()
        await pool.close(at_once=True)
    await _cancelled([closing, hurried])


async def _replaced(pool: "RayPool", say: Callable[[str], None]) -> None:
    """Replace this process by a new one with the same command; it does not return."""
    say("SIGHUP: the pool starts itself again, and its agents go on")
    try:
        async with asyncio.timeout(_LEAVE_S):
            await pool.leave()
    except TimeoutError:
        logger.warning("Ray has not let this process go within %.0f s", _LEAVE_S)
    restart()


async def _cancelled(tasks: Sequence["asyncio.Task[None]"]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def ray_pool(fleet: Fleet, place: Place, options: Sequence[str]) -> "RayPool":
    """Return the pool on Ray.

    Raises: ConfigError for a file without ``pool.ray``, and for a cluster that cannot be reached.
    """
    if fleet.pool.ray is None:
        raise ConfigError(
            f"{fleet.source}: pool.ray is missing: the address of a Ray cluster, or auto for one on this host"
        )
    try:
        from sloserve.fleet.pool.on_ray.actor import FOLDER
        from sloserve.fleet.pool.on_ray.agents import FleetAgents
        from sloserve.fleet.pool.on_ray.pool import RayPool
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise not_installed("pool.ray", "ray", "ray") from None

    def command(offer: Offer) -> list[str]:
        own = ["--host", offer.host, "--device", offer.device, "--devices", str(offer.devices), "--state", FOLDER]
        own += [] if offer.address is None else ["--address", offer.address]
        return ["sloserve.cli", "fleet", "agent", f"{FOLDER}/{NAME}", *own, *options]

    agents = FleetAgents(
        fleet=name_in_ray(fleet, place),
        files=shipped(fleet),
        command=command,
        environment={STORE: place.store, DOOR_KEY: place.endpoint_key or ""},
        release=sloserve.__version__,
        unattended_s=fleet.pool.unattended_s,
        drain_s=fleet.switching.drain_max_s + _STOP_S,
    )
    return RayPool(
        fleet.pool.ray,
        {kind: template.devices for kind, template in fleet.pool.devices.items()},
        agents,
        bundles={kind: one.bundle for kind, one in fleet.pool.devices.items() if one.bundle is not None},
        is_shared=not is_of_one_machine(place),
    )


def name_in_ray(fleet: Fleet, place: Place) -> str:
    """Return the fleet's name on a cluster, which only fleets with the same store and name of the file have.

    A password in the store's address may change, and the address of a file is one of this machine.
    """
    if is_of_one_machine(place):
        store = f"{socket.gethostname()}:{place.store}"
    else:
        parts = urlsplit(place.store)
        store = f"{parts.hostname}:{parts.port}{parts.path}"
    stem = "".join(one if one.isalnum() or one in "._-" else "-" for one in Path(fleet.source).stem)[:40]
    return f"{stem}-{hashlib.sha256(store.encode()).hexdigest()[:8]}"
