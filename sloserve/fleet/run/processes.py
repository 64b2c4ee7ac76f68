"""Chooses how the engines and forwarding processes of a host are started."""

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final

from sloserve.fleet.agent.host_processes import HostProcesses
from sloserve.fleet.fleet import Host
from sloserve.fleet.launcher.attached import AttachingLauncher
from sloserve.fleet.launcher.kept import KeptProcesses, noted_parent
from sloserve.fleet.launcher.parent_messages import ParentJob
from sloserve.fleet.run.live import ATTACH_ADMIN_KEY, ATTACH_KEY, DOOR_KEY, STORE, Place

SECRETS: Final = (STORE, DOOR_KEY, ATTACH_KEY, ATTACH_ADMIN_KEY)
"""Environment variables that neither engines nor forwarding processes get."""


def processes_for(place: Place, host: Host, engine_module: str | None = None) -> HostProcesses:
    """Return the processes of a host, which outlive its agent.

    For tests, ``engine_module`` names a module to run in place of ``sloserve serve``.
    """
    place.logs.mkdir(parents=True, exist_ok=True)
    job = ParentJob(
        note=str(_note(place, host)),
        log=str(place.logs / f"launcher-{host.name}.log"),
        engine_module=engine_module,
        has_engines=host.attach is None,
        alone_s=host.alone_s,
    )
    attached = None if host.attach is None else AttachingLauncher(host.attach)
    return KeptProcesses(job, place.logs / f"processes-{host.name}.log", SECRETS, attached)


def end_processes(place: Place, host: Host) -> None:
    """Have the processes of a host end that no agent has: its agent died, and the fleet is stopped."""
    pid = noted_parent(_note(place, host))
    if pid is not None:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGTERM)


def _note(place: Place, host: Host) -> Path:
    return place.folder / f"processes-{host.name}.json"
