"""Interface of pools: sources of agents, which also report an agent that has gone.

A pool knows hosts on which an agent may run. It starts agents there, learns which agents end, and ends them.
:class:`~sloserve.fleet.pool.keeper.AgentKeeper` decides when. Gateways and planners never see a pool: an agent writes
its address to the store. The pool does not ensure that one agent at a time has a host either: the fence in the store
does (``agent/host_fence.py``), since a pool may be wrong about what runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Offer:
    """A host on which an agent may run.

    Args:
        host: Name of the host, with which the names of the agent's instances begin.
        device: Kind of its devices.
        devices: Number of its devices.
        host_memory_bytes: Bytes of host memory for weights of models that sleep.
        address: Network address that other hosts reach; ``None`` if there is none.
    """

    host: str
    device: str
    devices: int
    host_memory_bytes: int = 0
    address: str | None = None


@dataclass(frozen=True, slots=True)
class Gone:
    """An agent that has gone without an order to end.

    Args:
        host: Name of the agent's host.
        what: The event, as the end of a sentence: "has ended with status 1; its log is ...".
        certain: Whether its process and its engines have surely ended, so that another may be started at once.
            Otherwise the agent is only unreachable, and may still run; the store's leases decide.
    """

    host: str
    what: str
    certain: bool


class Pool(Protocol):
    """A source of agents. Each method may be called again at any time, in one event loop."""

    async def offers(self) -> Mapping[str, Offer]:
        """Return the hosts that are available now, by name. Raises: OSError where they cannot be known now."""
        ...

    async def ensure(self, offer: Offer) -> None:
        """Ensure that an agent runs on a host; do nothing if one does, or if others start it.

        Raises: OSError where none can be started now.
        """
        ...

    async def gone(self) -> Gone:
        """Wait for the next agent that goes.

        Raises: ConfigError where an agent reports a wrong setting when it starts for the first time.
        """
        ...

    async def drain(self, host: str, *, at_once: bool = False) -> None:
        """End a host's agent; :meth:`gone` does not report it.

        This returns once the agent has ended, or once it is ordered to end if others started it. What it runs ends or
        goes back into the queue, unless ``at_once``.
        """
        ...

    async def want(self, hosts: Mapping[str, int]) -> None:
        """Ask for ``hosts`` hosts of each kind of device; do nothing if the pool can add none."""
        ...

    async def close(self, *, at_once: bool = False) -> None:
        """Drain all agents that the pool started; it starts no more."""
        ...
