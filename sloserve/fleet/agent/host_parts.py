"""State that the instances of one host share."""

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from sloserve.core.clock import Clock
from sloserve.fleet.agent.canaries import Canaries
from sloserve.fleet.agent.costs import Costs
from sloserve.fleet.agent.engine import EngineLimits
from sloserve.fleet.agent.engine_spec import EngineProcess, Launcher
from sloserve.fleet.agent.memory import HostMemory
from sloserve.fleet.agent.tenant_service import TenantService


@dataclass(frozen=True, slots=True)
class HostParts:
    """State that the instances of a host share.

    Args:
        launcher: Launcher that starts the engines.
        run_folder: Folder of sockets, for this user alone; its path is short, since a socket's has at most 107 bytes.
        log_folder: Folder of engines' logs.
        memory: Host memory that sleeping models hold.
        costs: Measured costs of switches.
        clock: Clock of this process.
        canaries: Recorded canary outputs.
        limits: Times that an engine may take.
        sockets: Numbers for the names of sockets.
        service: Recent service of tenants; ``None`` where they have no shares.
        note: Function that keeps a note about an engine's process for the next agent.
        renewing: Lock under which one instance at a time replaces an outdated engine.
    """

    launcher: Launcher
    run_folder: Path
    log_folder: Path
    memory: HostMemory
    costs: Costs
    clock: Clock
    canaries: Canaries = field(default_factory=Canaries)
    limits: EngineLimits = EngineLimits()
    sockets: "itertools.count[int]" = field(default_factory=itertools.count)
    service: TenantService | None = None
    note: Callable[[EngineProcess, bytes], None] = lambda process, note: None
    renewing: asyncio.Lock = field(default_factory=asyncio.Lock)
