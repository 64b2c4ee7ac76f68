"""Where do agents come from, and who says that one has gone?

A pool knows hosts on which an agent may run. It starts agents there, hears of those that end, and ends them.
:class:`~sloserve.fleet.pool.keeper.AgentKeeper` says when. Gateways and planners never see a pool: an agent tells the
store its door. That one agent at a time has a host is not the pool's business either, but that of the fence in the
store (``agent/host_fence.py``): a pool may be wrong about what runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Offer:
    """A host on which an agent may run.

    Args:
        host: its name, which the agent's instances begin with.
        device: the kind of its devices.
        devices: how many.
        host_memory_bytes: for weights of models that sleep.
        address: at which other hosts reach it; ``None`` where none does.
    """

    host: str
    device: str
    devices: int
    host_memory_bytes: int = 0
    address: str | None = None


@dataclass(frozen=True, slots=True)
class Gone:
    """An agent that has gone, and was not told to.

    Args:
        host: whose agent it was.
        what: has happened, as the end of a sentence: "has ended with status 1; its log is ...".
        certain: its process has ended, and its engines with it: another may be started at once. Otherwise it is only
            unreachable, and may still run; the store's leases decide.
    """

    host: str
    what: str
    certain: bool


class Pool(Protocol):
    """Where agents come from. Each method may be called again at any time, in one event loop."""

    async def offers(self) -> Mapping[str, Offer]:
        """Hosts that are there now, by name. Raises: OSError where they cannot be known now."""
        ...

    async def ensure(self, offer: Offer) -> None:
        """Has an agent run on a host; does nothing where one does, or where others start it.

        Raises: OSError where none can be started now.
        """
        ...

    async def gone(self) -> Gone:
        """Waits for the next agent that goes. Raises: ConfigError where one says that something is set wrongly, as it
        starts for the first time.
        """
        ...

    async def drain(self, host: str, *, at_once: bool = False) -> None:
        """Ends a host's agent; returns once it has ended, or is told to where others started it. What it runs ends or
        goes back into the queue, unless ``at_once``. :meth:`gone` does not tell of it.
        """
        ...

    async def want(self, hosts: Mapping[str, int]) -> None:
        """So many hosts of each kind of device are asked for; nothing where the pool can add none."""
        ...

    async def close(self, *, at_once: bool = False) -> None:
        """Drains all agents that it started; it starts no more."""
        ...
