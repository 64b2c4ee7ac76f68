"""Chooses the launcher that starts the engines of a host."""

import os

from sloserve.fleet.agent.engine_spec import Launcher
from sloserve.fleet.fleet import Host
from sloserve.fleet.launcher.attached import AttachingLauncher
from sloserve.fleet.launcher.forking import ForkingLauncher
from sloserve.fleet.launcher.plain import PlainLauncher
from sloserve.fleet.run.live import DOOR_KEY, STORE, Place


def launcher_for(place: Place, host: Host, engine_module: str | None = None) -> Launcher:
    """Return the launcher of a host's engines, which begins to import vLLM.

    This removes from the process's environment what engines must not have. For tests, ``engine_module`` names a module
    to run in place of ``sloserve serve``.
    """
    for secret in (STORE, DOOR_KEY):
        os.environ.pop(secret, None)
    if host.attach is not None:
        return AttachingLauncher(host.attach)
    if engine_module is not None:
        return PlainLauncher((engine_module,))
    place.logs.mkdir(parents=True, exist_ok=True)
    launcher = ForkingLauncher(place.logs / f"launcher-{host.name}.log")
    launcher.begin()
    return launcher
