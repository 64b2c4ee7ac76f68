"""The process that keeps an agent on each node of a Ray cluster.

It is no gateway and no planner: Ray ends a process that has lost its cluster for a minute.
"""

import asyncio
from collections.abc import Callable, Sequence

from sloserve.core.errors import ConfigError
from sloserve.core.extras import not_installed
from sloserve.fleet.fleet import Fleet
from sloserve.fleet.pool.keeper import AgentKeeper
from sloserve.fleet.pool.pool import Offer, Pool
from sloserve.fleet.pool.shipped_file import NAME, shipped
from sloserve.fleet.run.live import DOOR_KEY, STORE, Place, check_endpoints, is_of_one_machine
from sloserve.fleet.run.scaler import SCALE_S, Scaler
from sloserve.fleet.run.signals import Stopping
from sloserve.fleet.store.store import open_store
from sloserve.fleet.supervised import supervised


async def serve_pool(fleet: Fleet, place: Place, say: Callable[[str], None], options: Sequence[str]) -> None:
    """Run a pool until SIGINT or SIGTERM; then its agents end.

    What they serve ends or goes back into the queue, unless a second signal comes. Agents get ``options``, further
    options of ``sloserve fleet agent``. Raises: ConfigError.
    """
    stopping = Stopping()
    check_endpoints(fleet, place)
    pool, store = ray_pool(fleet, place, options), open_store(place.store)
    keeper = AgentKeeper(pool, say)
    keeping, stopped = asyncio.create_task(keeper.run()), asyncio.create_task(stopping.wait())
    scaler = Scaler(fleet, store, pool, keeper, say)
    scaling = asyncio.create_task(supervised("no host is requested or released", scaler.turn, SCALE_S))
    await asyncio.wait({keeping, stopped}, return_when=asyncio.FIRST_COMPLETED)
    error = keeping.exception() if keeping.done() else None
    scaling.cancel()
    await asyncio.gather(scaling, return_exceptions=True)
    stopping.again()
    closing, hurried = asyncio.create_task(pool.close()), asyncio.create_task(stopping.wait())
    await asyncio.wait({closing, hurried}, return_when=asyncio.FIRST_COMPLETED)
    if not closing.done():
        closing.cancel()
        await pool.close(at_once=True)
    for task in (keeping, stopped, hurried):
        task.cancel()
    await asyncio.gather(keeping, stopped, hurried, closing, return_exceptions=True)
    store.close()
    if error is not None:
        raise error


def ray_pool(fleet: Fleet, place: Place, options: Sequence[str]) -> Pool:
    """Return the pool on Ray.

    Raises: ConfigError for a file without ``pool.ray``, and for a cluster that cannot be reached.
    """
    if fleet.pool.ray is None:
        raise ConfigError(
            f"{fleet.source}: pool.ray is missing: the address of a Ray cluster, or auto for one on this host"
        )
    try:
        from sloserve.fleet.pool.ray import FOLDER, RayPool
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise not_installed("pool.ray", "ray", "ray") from None

    def command(offer: Offer) -> list[str]:
        own = ["--host", offer.host, "--device", offer.device, "--devices", str(offer.devices), "--state", FOLDER]
        own += [] if offer.address is None else ["--address", offer.address]
        return ["sloserve.cli", "fleet", "agent", f"{FOLDER}/{NAME}", *own, *options]

    return RayPool(
        fleet.pool.ray,
        {kind: template.devices for kind, template in fleet.pool.devices.items()},
        shipped(fleet),
        command,
        {STORE: place.store, DOOR_KEY: place.endpoint_key or ""},
        bundles={kind: one.bundle for kind, one in fleet.pool.devices.items() if one.bundle is not None},
        is_shared=not is_of_one_machine(place),
    )
