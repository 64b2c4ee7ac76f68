"""The process of an agent: its instances, and the tasks that pull for them and follow the plan."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, Final

from sloserve.core.clock import SystemClock
from sloserve.core.errors import ConfigError
from sloserve.fleet.agent.agent import Agent
from sloserve.fleet.agent.claims import cancelled
from sloserve.fleet.agent.costs import SHARE_S, SharedCosts
from sloserve.fleet.agent.following import Following
from sloserve.fleet.agent.host_fence import HostFence
from sloserve.fleet.agent.host_processes import HostProcesses
from sloserve.fleet.agent.instance import Instance
from sloserve.fleet.agent.pulling import LEASE_S, Pulling
from sloserve.fleet.fleet import Fleet, Host
from sloserve.fleet.run.live import Place, agent_settings, certificates_of, refreshing
from sloserve.fleet.run.open_files import allow_open_files
from sloserve.fleet.run.signals import HangUps, Stopping
from sloserve.fleet.store.store import open_store
from sloserve.fleet.supervised import supervised

logger = logging.getLogger(__name__)

STOP_S: Final = 5.0
"""Seconds for lines that run when the agent stops, to end or to go back with their tokens."""
_STORE_THREADS: Final = 4


async def run_agent(
    fleet: Fleet,
    host: Host,
    place: Place,
    processes: HostProcesses,
    stopping: Stopping,
    check: Callable[[], None],
    *,
    lease_s: float = LEASE_S,
) -> bool:
    """Serve until asked to stop, by a signal or through the store; return whether the process is to be restarted.

    To stop, streams have their time to end, unless a second signal comes, lines go back into the queue, and all engines
    end. After SIGHUP lines go back, engines and streams go on, and the process is to be restarted.

    Args:
        fleet: Settings of the fleet, with this host.
        host: This host.
        place: Locations of the fleet's state.
        processes: Starts engines and forwarding processes.
        stopping: Signals to stop.
        check: Function that checks the file with which the process would restart. Raises: ConfigError.
        lease_s: Seconds for which claims and the host are leased.

    Raises: ConfigError for a store that cannot be opened, and where another agent has the host.
    """
    hang_ups, clock, store = HangUps(), SystemClock(), open_store(place.store)
    allow_open_files(fleet.gateway.max_requests)
    try:
        with ThreadPoolExecutor(_STORE_THREADS, "sloserve-agent-store") as executor:
            fence = HostFence(host.name, store, place.folder, lease_s)
            await fence.take()
            pulling = Pulling(store.requests, fence.holder, clock, executor, lease_s=lease_s)
            settings, certificates = agent_settings(fleet, host, place), certificates_of(fleet)
            if certificates is not None and (host.door or "").startswith("https:"):
                settings = replace(settings, endpoint_tls=certificates.of_endpoint(host.name))
            async with Agent(settings, processes, fence, pulling, clock) as agent:
                endpoints = list(agent.instances.values())
                pulling.start(endpoints)
                following = Following(fleet, endpoints, pulling, store, clock, executor)
                agent.plan = lambda: following.plan
                looking = asyncio.create_task(following.run())
                shared = SharedCosts(agent.costs, store.switch_costs, host.device, executor)
                sharing = supervised("measured costs of switches are not shared with other hosts", shared.turn, SHARE_S)
                beside = [asyncio.create_task(sharing), *refreshing(certificates)]
                if host.serves is not None:  # its model is there, whatever a plan says
                    beside += [asyncio.create_task(_attached(endpoint, host.serves)) for endpoint in endpoints]
                leaves, is_again = False, False
                # The first ones count if several come together: an agent that is to stop does not restart.
                ends = (stopping.wait, fence.must_end.wait, fence.lost.wait)
                try:
                    came = await _first(*ends, processes.lost, partial(_hung_up, hang_ups, check))
                    if came > len(ends):
                        came = await _first(*ends, processes.lost, agent.leave)
                    # Engines that have ended with their parent process are started by the next image.
                    leaves, is_again = came > len(ends), came >= len(ends)
                    if not leaves:
                        agent.ends()
                finally:
                    await cancelled([looking, *beside])
                    await following.stop()
                    if fence.lost.is_set():
                        agent.ends()  # another agent has the host, and its devices
                        await pulling.stop(0.0)  # its requests have gone back already: their results would not count
                    elif leaves:
                        await pulling.stop(STOP_S)
                    else:
                        await _drained(agent, pulling, stopping)
                return is_again and not fence.lost.is_set()
    finally:
        store.close()


async def _hung_up(hang_ups: HangUps, check: Callable[[], None]) -> None:
    """Return after SIGHUP, once the file is right; one with faults is logged, and changes nothing."""
    while True:
        await hang_ups.next()
        try:
            await asyncio.to_thread(check)
            return
        except ConfigError as error:
            logger.error("the agent goes on as it was, since the fleet's file has faults:\n%s", error)


async def _attached(instance: Instance, model: str) -> None:
    await instance.switch(model)


async def _first(*calls: Callable[[], Coroutine[Any, Any, object]]) -> int:
    """Wait for the first of the calls to return, cancel the others, and return its number."""
    tasks = [asyncio.create_task(call()) for call in calls]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(number for number, task in enumerate(tasks) if task.done())
    finally:
        await cancelled(tasks)


async def _drained(agent: Agent, pulling: Pulling, stopping: Stopping) -> None:
    stopping.again()
    draining = asyncio.create_task(agent.drain())

    async def drained() -> None:
        await draining

    await pulling.stop(STOP_S)
    await _first(stopping.wait, drained)
