"""The pools of the agents that ``sloserve fleet FILE`` keeps, as the fleet's file has them."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from sloserve.fleet.fleet import Fleet
from sloserve.fleet.pool.agent_child import KILL_S
from sloserve.fleet.pool.embedded import EmbeddedPool
from sloserve.fleet.pool.keeper import THE_AGENT, AgentKeeper
from sloserve.fleet.pool.pool import Offer, Pool
from sloserve.fleet.pool.registered import RegisteredPool
from sloserve.fleet.run.live import DOOR_KEY, Place
from sloserve.fleet.store.store import Store

_RAY: Final = (Offer("ray", "", 0),)


class FleetPools:
    """The pools of a fleet's agents, and the keepers of their agents.

    Args:
        fleet: Settings of the fleet, from its file.
        place: Locations of the fleet's state.
        store: Store of the fleet.
        say: Prints a line.
        run_folder: Folder of the agents' sockets.
        options: Further options of ``sloserve fleet agent``.
    """

    def __init__(
        self,
        fleet: Fleet,
        place: Place,
        store: Store,
        say: Callable[[str], None],
        run_folder: Path,
        options: Sequence[str],
    ) -> None:
        self._fleet, self._place, self._store, self._say = fleet, place, store, say
        self._here = [fleet.source, "--state", str(place.folder), *options]
        environment = {"XDG_RUNTIME_DIR": str(run_folder)}
        stop_s = fleet.switching.drain_max_s
        self._agents = EmbeddedPool(self._offers(), self._agent, place.logs, environment, stop_s=stop_s + KILL_S)
        self._ray: EmbeddedPool | None = None
        self._registered: RegisteredPool | None = None
        if fleet.pool.ray is not None:
            # Ray ends a process that loses its cluster for a minute: it must not be the gateway's process.
            own = environment | {DOOR_KEY: place.endpoint_key or ""}
            command = ["sloserve.cli", "fleet", "pool", *self._here]
            self._ray = EmbeddedPool(_RAY, lambda _: command, place.logs, own, "pool", stop_s=stop_s + 2.0 * KILL_S)
        self._keepers: dict[Pool, AgentKeeper] = {}
        self._changed = asyncio.Event()
        self._find_pools()

    @property
    def pools(self) -> Sequence[Pool]:
        """The pools in use."""
        return list(self._keepers)

    async def run(self) -> None:
        """Keep agents until cancelled. Raises: ConfigError where an agent reports a wrong setting."""
        tasks: dict[Pool, asyncio.Task[None]] = {}
        try:
            while True:
                for pool, keeper in self._keepers.items():
                    if pool not in tasks:
                        tasks[pool] = asyncio.create_task(keeper.run())
                for gone in [pool for pool in tasks if pool not in self._keepers]:
                    tasks.pop(gone).cancel()
                changed = asyncio.create_task(self._changed.wait())
                await asyncio.wait({changed, *tasks.values()}, return_when=asyncio.FIRST_COMPLETED)
                self._changed.clear()
                changed.cancel()
                for task in tasks.values():
                    if task.done():
                        await task
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)

    def follow(self, fleet: Fleet) -> None:
        """Go on with another version of the fleet's file: its agents read it again, and hosts come and go."""
        self._fleet = fleet
        self._agents.follow(self._offers())
        if self._ray is not None:
            self._ray.follow(_RAY)
        self._find_pools()
        self._changed.set()

    def _find_pools(self) -> None:
        self._keeper(self._agents, THE_AGENT)
        if self._ray is not None:
            self._keeper(self._ray, "the pool of")
        elif self._fleet.pool.devices:
            others = self._fleet.hosts.keys()
            if self._registered is None:
                self._registered = RegisteredPool(self._store, others, self._width)
            self._registered.follow(others)
            self._keeper(self._registered, "the registered agent of host")
        elif self._registered is not None:
            self._keepers.pop(self._registered, None)  # its agents continue without this process
            self._registered = None

    def _keeper(self, pool: Pool, what: str) -> None:
        if pool not in self._keepers:
            self._keepers[pool] = AgentKeeper(pool, self._say, what)

    def _offers(self) -> list[Offer]:
        hosts = self._fleet.hosts.values()
        return [Offer(one.name, one.device, one.devices, one.host_memory_bytes) for one in hosts]

    def _agent(self, host: str) -> list[str]:
        return ["sloserve.cli", "fleet", "agent", *self._here, "--host", host]

    def _width(self, device: str) -> int:
        template = self._fleet.pool.devices.get(device)
        return 1 if template is None else template.width
