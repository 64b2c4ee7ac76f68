"""What happens to the processes of a fleet: upgrades in order, and faults."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Final

import numpy as np
import psutil

from sloserve.core.clock import SystemClock
from tests.fleet.live_faults.processes import GATEWAYS, HOSTS, PLANNERS, LiveFleet

CLOCK = SystemClock()
Event = Callable[[LiveFleet, np.random.Generator], Awaitable[str]]
_RESTARTED_S: Final = 60.0


async def restart_agent(fleet: LiveFleet, rng: np.random.Generator) -> str:
    host = str(rng.choice(HOSTS))
    fleet.parts[f"agent-{host}"].send(signal.SIGHUP)
    return f"SIGHUP to the agent of {host}"


async def roll_gateway(fleet: LiveFleet, rng: np.random.Generator) -> str:
    return await _rolled(fleet, f"gateway-{rng.integers(GATEWAYS)}")


async def roll_planner(fleet: LiveFleet, rng: np.random.Generator) -> str:
    return await _rolled(fleet, f"planner-{rng.integers(PLANNERS)}")


async def reload_gateway(fleet: LiveFleet, rng: np.random.Generator) -> str:
    name = f"gateway-{rng.integers(GATEWAYS)}"
    fleet.parts[name].send(signal.SIGHUP)
    return f"SIGHUP to {name}"


async def kill_agent(fleet: LiveFleet, rng: np.random.Generator) -> str:
    host = str(rng.choice(HOSTS))
    fleet.parts[f"agent-{host}"].send(signal.SIGKILL)
    return f"SIGKILL of the agent of {host}"


async def kill_gateway(fleet: LiveFleet, rng: np.random.Generator) -> str:
    name = f"gateway-{rng.integers(GATEWAYS)}"
    fleet.parts[name].send(signal.SIGKILL)
    return f"SIGKILL of {name}"


async def kill_planner(fleet: LiveFleet, rng: np.random.Generator) -> str:
    name = f"planner-{rng.integers(PLANNERS)}"
    fleet.parts[name].send(signal.SIGKILL)
    return f"SIGKILL of {name}"


async def kill_engine(fleet: LiveFleet, rng: np.random.Generator) -> str:
    host = str(rng.choice(HOSTS))
    for pid in sorted(fleet.engines(host))[:1]:
        os.kill(pid, signal.SIGKILL)
    return f"SIGKILL of an engine of {host}"


async def kill_parent(fleet: LiveFleet, rng: np.random.Generator) -> str:
    host = str(rng.choice(HOSTS))
    parent = fleet.parent(host)
    if parent is not None:
        parent.kill()
    return f"SIGKILL of the parent of the engines of {host}"


async def kill_forwarder(fleet: LiveFleet, rng: np.random.Generator) -> str:
    host = str(rng.choice(HOSTS))
    parent = fleet.parent(host)
    for one in [] if parent is None else parent.children():
        try:
            if "forwarder" in " ".join(one.cmdline()):
                one.kill()
                break
        except psutil.NoSuchProcess:
            continue
    return f"SIGKILL of a forwarder of {host}"


async def suspend(fleet: LiveFleet, rng: np.random.Generator) -> str:
    name, seconds = str(rng.choice(sorted(fleet.parts))), rng.uniform(1.0, 8.0)
    fleet.parts[name].send(signal.SIGSTOP)
    await asyncio.sleep(seconds)
    if not fleet.parts[name].has_ended():
        fleet.parts[name].send(signal.SIGCONT)
    return f"{name} stands still for {seconds:.1f} s"


async def restart_store(fleet: LiveFleet, rng: np.random.Generator) -> str:
    if fleet.postgres is None:
        return "nothing: the store is a file"
    await asyncio.to_thread(fleet.postgres.stop)
    await asyncio.sleep(rng.uniform(0.0, 3.0))
    await asyncio.to_thread(fleet.postgres.start)
    return "PostgreSQL is stopped at once, and started again"


UPGRADE: Final[tuple[Event, ...]] = (restart_agent, roll_gateway, roll_planner, restart_agent, reload_gateway)
FAULTS: Final[tuple[Event, ...]] = (
    *UPGRADE,
    kill_agent,
    kill_gateway,
    kill_planner,
    kill_engine,
    kill_parent,
    kill_forwarder,
    suspend,
    restart_store,
)


async def _rolled(fleet: LiveFleet, name: str) -> str:
    """End a part in order, and start it again once it has ended."""
    ending = fleet.parts[name].process
    assert ending is not None
    ending.send_signal(signal.SIGTERM)
    last_s = CLOCK.monotonic_s() + _RESTARTED_S
    while ending.poll() is None and CLOCK.monotonic_s() < last_s:
        await asyncio.sleep(0.1)
    return f"{name} is restarted in order"
