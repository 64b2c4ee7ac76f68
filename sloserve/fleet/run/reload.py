"""What ``sloserve fleet reload FILE`` does: it checks the file, says what changes, and has the fleet read it again."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from sloserve.core.clock import SystemClock
from sloserve.core.errors import ConfigError
from sloserve.core.file_lock import holder_of
from sloserve.fleet.file import parse_fleet
from sloserve.fleet.fleet import Fleet
from sloserve.fleet.gateway.keys import KeyFile
from sloserve.fleet.run.all_in_one import LOCK
from sloserve.fleet.run.file_changes import changes, check_fixed
from sloserve.fleet.run.live import Place
from sloserve.fleet.run.reloading import RESULT, RUNNING

APPLIED_S: Final = 60.0
"""Most seconds for which the command waits until the fleet has applied the file."""
_LOOK_S: Final = 0.1
_APART: Final = (
    "no `sloserve fleet FILE` runs on {folder}; have processes that were started by themselves read the file by "
    "SIGHUP: systemctl reload UNIT, or kill -HUP PID, for each gateway, planner and agent; in Kubernetes start them "
    "with --watch-file, and change the ConfigMap"
)


def reload(fleet: Fleet, place: Place, say: Callable[[str], None], *, only_check: bool) -> None:
    """Say what differs between the file and the running fleet, and apply it unless ``only_check``.

    Args:
        fleet: The fleet in the file as it is now.
        place: Locations of its state.
        say: Prints a line.
        only_check: Whether nothing is applied.

    Raises: ConfigError for a file of keys with a fault, a change that needs a restart, or a file that is not applied.
    """
    source = Path(fleet.source)
    keys = None if fleet.gateway.keys is None else source.parent / fleet.gateway.keys
    KeyFile(keys, fleet.settings.classes, fleet.models, SystemClock())
    say(f"{source}: no faults")
    running, pid = place.folder / RUNNING, holder_of(place.folder / LOCK)
    if pid is None:
        say(_APART.format(folder=place.folder))
        return
    before = _running(running, fleet.source)
    if before is not None:
        check_fixed(before, fleet)
        for line in changes(before, fleet) or ["nothing has changed in the file"]:
            say(line)
    if only_check:
        return
    number = _result(place)[0]
    os.kill(pid, signal.SIGHUP)
    for _ in range(round(APPLIED_S / _LOOK_S)):
        now, fault = _result(place)
        if now != number:
            if fault:
                raise ConfigError(f"not applied by process {pid}: {fault}")
            say(f"applied by process {pid}")
            return
        time.sleep(_LOOK_S)
    raise ConfigError(
        f"{source}: process {pid} has not read it within {APPLIED_S:g} s; its log says why (under nohup it ignores "
        "SIGHUP)"
    )


def _result(place: Place) -> tuple[int, str]:
    """Return how often the running fleet has read its file again, and why the last version is not in force."""
    try:
        found = json.loads((place.folder / RESULT).read_bytes())
        return int(found["number"]), str(found["fault"])
    except (OSError, ValueError, KeyError, TypeError):
        return -1, ""


def _running(copy: Path, source: str) -> Fleet | None:
    """Return the version of the file in force; ``None`` where it is not known, or names files that are gone."""
    try:
        return parse_fleet(copy.read_text(encoding="utf-8"), source, to_run=True)
    except (ConfigError, OSError, UnicodeDecodeError):
        return None
