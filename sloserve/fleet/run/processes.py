"""Chooses how the engines and forwarding processes of a host are started."""

from typing import Final

from sloserve.fleet.agent.host_processes import HostProcesses
from sloserve.fleet.fleet import Host
from sloserve.fleet.launcher.attached import AttachingLauncher
from sloserve.fleet.launcher.kept import KeptProcesses
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
        note=str(place.folder / f"processes-{host.name}.json"),
        log=str(place.logs / f"launcher-{host.name}.log"),
        engine_module=engine_module,
        has_engines=host.attach is None,
        alone_s=host.alone_s,
    )
    attached = None if host.attach is None else AttachingLauncher(host.attach)
    return KeptProcesses(job, place.logs / f"processes-{host.name}.log", SECRETS, attached)
