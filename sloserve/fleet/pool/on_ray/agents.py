"""What the agents of a fleet on Ray are started with, and the start of one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.util.placement_group import get_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from sloserve.fleet.pool.on_ray.actor import AT_A_TIME, SloserveAgent
from sloserve.fleet.pool.pool import Offer


@dataclass(frozen=True, slots=True)
class FleetAgents:
    """What the agents of a fleet are started with.

    Args:
        fleet: Name of the fleet, which no other fleet on the cluster has.
        files: Text by file name, to be written into the folder in which an agent is started.
        command: Returns the module and arguments that start an agent, for an offer.
        environment: Environment variables of agents. They go through Ray as an argument, which Ray shows nowhere.
        release: Release of sloserve; agents read their file again where it differs.
        unattended_s: Seconds for which agents go on without a pool.
        drain_s: Seconds for an agent to end in order.
    """

    fleet: str
    files: Mapping[str, str]
    command: Callable[[Offer], Sequence[str]]
    environment: Mapping[str, str] = field(repr=False)
    release: str = ""
    unattended_s: float = 600.0
    drain_s: float = 60.0


def start(agents: FleetAgents, name: str, group: str, offer: Offer, bundle: Mapping[str, float]) -> Any:
    """Start the actor of a host's agent, or find it, if another process has started it meanwhile.

    Args:
        agents: What the agents of the fleet are started with.
        name: Name of the actor.
        group: Name of its placement group.
        offer: The host.
        bundle: What the group holds.
    """
    options = {
        "name": name,
        "lifetime": "detached",
        "get_if_exists": True,
        "max_restarts": -1,
        "max_concurrency": AT_A_TIME,
        "num_gpus": bundle.get("GPU", 0.0),
        "num_cpus": bundle.get("CPU", 0.0),
        "scheduling_strategy": PlacementGroupSchedulingStrategy(get_placement_group(group)),
    }
    made = ray.remote(SloserveAgent).options(**options)
    return made.remote(
        name,
        group=group,
        fleet=agents.fleet,
        host=offer.host,
        files=dict(agents.files),
        release=agents.release,
        command=list(agents.command(offer)),
        environment=dict(agents.environment),
        unattended_s=agents.unattended_s,
        drain_s=agents.drain_s,
    )
