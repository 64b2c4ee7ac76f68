"""What a gateway is given, and what it shares with the gateway that follows it in its process."""

import secrets
import ssl
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sloserve.core.clock import Clock
from sloserve.fleet.batch_api.files import Files, check_shared, open_files
from sloserve.fleet.batch_api.lines import Limits
from sloserve.fleet.fleet import Fleet
from sloserve.fleet.gateway.agent_connections import AgentConnections
from sloserve.fleet.gateway.demand import DemandMeter
from sloserve.fleet.gateway.held import Hold
from sloserve.fleet.gateway.instances import Instances
from sloserve.fleet.gateway.metrics import GatewayMetrics
from sloserve.fleet.gateway.salts import FleetSecret
from sloserve.fleet.gateway_settings import GatewaySettings
from sloserve.fleet.store.store import Store


@dataclass(frozen=True)
class GatewayDependencies:
    """What a gateway is given: store, files, keys and limits.

    Args:
        store: Store shared with agents and planners; ``None`` for a gateway without batches and without a plan.
        files: Place of the bytes of files: a folder, or an address of object storage.
        keys: File of keys; ``None`` for one tenant, on this machine only.
        endpoints: Endpoints of agents that are asked whatever the store says.
        endpoint_key: Key for endpoints on TCP, see :class:`~sloserve.fleet.gateway.agent_connections.AgentConnections`.
        endpoint_tls: TLS context for endpoints on TCP, see the same class.
        limits: Limits of the gateway.
        file_limits: Limits of one input file of a batch.
        name: Name that is unique among all members; ``None`` for a random one.
        admin_key: Key that the live feed asks for; without one there is no live feed.
        file: State of the fleet's file, for watchers; ``None`` where it is not read again.
    """

    store: Store | None = None
    files: str | Path | None = None
    keys: Path | None = None
    endpoints: Collection[str] = ()
    endpoint_key: str | None = field(default=None, repr=False)
    endpoint_tls: ssl.SSLContext | None = None
    limits: GatewaySettings = GatewaySettings()
    file_limits: Limits = Limits()
    name: str | None = None
    admin_key: str | None = field(default=None, repr=False)
    file: Callable[[], dict[str, Any]] | None = None


@dataclass
class SharedState:
    """What the gateways of one process have, one after another, whatever the version of the fleet's file.

    Instances, agents and hold are shared since requests of several versions go to the same instances: their room and
    the order of deadlines hold for all. The files of batches and the secret cannot change while the process runs.
    """

    name: str
    clock: Clock
    files: Files | None
    secret: FleetSecret
    agents: AgentConnections
    instances: Instances
    hold: Hold
    demand: DemandMeter
    metrics: GatewayMetrics = field(default_factory=GatewayMetrics)
    to_confirm: deque[str] = field(default_factory=deque)
    """Batches that calls for batches have noted for the runner: a call may end after its own runner has stopped."""
    is_leaving: bool = False

    @classmethod
    def first(cls, fleet: Fleet, around: GatewayDependencies, clock: Clock) -> "SharedState":
        """Make them for the first gateway of a process. Raises: ConfigError for files that cannot be used."""
        settings, limits = fleet.settings, around.limits
        name = around.name or f"gateway-{secrets.token_hex(8)}"
        files, instances = _files(around, name), Instances(affinity=limits.affinity)
        return cls(
            name,
            clock,
            files,
            FleetSecret(None if files is None or around.store is None else around.store.files_mark(None)),
            AgentConnections(limits.silent_max_s, around.endpoint_key, around.endpoint_tls),
            instances,
            Hold(instances, clock, limits.max_held, settings.tenant_shares),
            DemandMeter(settings.classes, tokens_an_event(fleet)),
        )


def tokens_an_event(fleet: Fleet) -> dict[str, int]:
    """Return the tokens that an event of each model's streams brings, by the flags of its engines."""
    return {model.name: model.start.tokens_an_event for model in fleet.models.values()}


def _files(around: GatewayDependencies, name: str) -> Files | None:
    """Open the files of batches; ``None`` for a gateway without batches. Raises: ConfigError."""
    if around.store is None or around.files is None:
        return None
    files = open_files(around.files, name)
    check_shared(files, around.store, around.files)
    return files
