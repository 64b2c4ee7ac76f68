"""Applies changes of a fleet's file to a process that runs: on SIGHUP, or once the file has changed.

The file is read and checked whole first, as at a start. A file with a fault, or with a change that needs a restart,
changes nothing and is reported once, in full.
"""

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from sloserve.core.clock import Clock, SystemClock
from sloserve.core.errors import ConfigError, StoreError
from sloserve.fleet.fleet import Fleet
from sloserve.fleet.run.file_changes import changes, check_fixed
from sloserve.fleet.run.file_watch import watch_file
from sloserve.fleet.run.signals import HangUps

logger = logging.getLogger(__name__)

APPLIED: Final = "applied"
REFUSED: Final = "refused"
_TRIES: Final = 5
RUNNING: Final = "running.yaml"
"""File in the state folder of ``sloserve fleet FILE``: the version of the file in force."""
RESULT: Final = "reloaded.json"
"""File in the same folder: how often the file was read again, and why the last version is not in force."""


@dataclass(frozen=True)
class FleetSource:
    """The file by which a process works.

    Args:
        path: The fleet's file.
        read: Reads the file again, with the flags of the command line. Raises: ConfigError.
        is_watched: Whether the file is looked at for changes, beside SIGHUP.
    """

    path: Path
    read: Callable[[], Fleet]
    is_watched: bool = False

    def whole(self) -> tuple[Fleet, bytes]:
        """Read the file; return the fleet with the bytes that it was read from. Raises: ConfigError."""
        for _ in range(_TRIES):
            before, fleet = self._bytes(), self.read()
            if before == self._bytes():
                return fleet, before
        raise ConfigError(f"{self.path}: it was changed each time that it was read; have it read again when it is done")

    def _bytes(self) -> bytes:
        try:
            return self.path.read_bytes()
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be read: {error.strerror}") from None


class FileInForce(Collector):
    """The version of a fleet's file by which a process works, and the results of the versions after it.

    Args:
        fleet: The version that the process was started with.
        clock: Clock of this process.
        folder: Folder that gets a copy of the version in force, and results; ``None`` for none.
    """

    def __init__(self, fleet: Fleet, clock: Clock | None = None, folder: Path | None = None) -> None:
        self._clock, self._folder = clock or SystemClock(), folder
        self.fleet, self.fault = fleet, ""
        """Fault: why the last version was not applied; empty if it was."""
        self._changes: list[str] = []
        self._applied_s = self._clock.now_s()
        self._results: Counter[str] = Counter({APPLIED: 0, REFUSED: 0})
        self._write(RUNNING, Path(fleet.source).read_bytes)
        self._write(RESULT, self._result)

    def applied(self, fleet: Fleet, found: Iterable[str], text: bytes) -> None:
        """Record that a version is in force, with what it changed and the bytes of the file."""
        self.fleet, self.fault, self._changes, self._applied_s = fleet, "", list(found), self._clock.now_s()
        self._results[APPLIED] += 1
        self._write(RUNNING, lambda: text)
        self._write(RESULT, self._result)

    def refused(self, fault: str) -> None:
        """Record that a version was not applied."""
        self.fault = fault
        self._results[REFUSED] += 1
        self._write(RESULT, self._result)

    def close(self) -> None:
        """Remove the copy, since no version is in force any more."""
        if self._folder is not None:
            for name in (RUNNING, RESULT):
                (self._folder / name).unlink(missing_ok=True)

    def _result(self) -> bytes:
        return json.dumps({"number": self._results.total(), "fault": self.fault}).encode()

    def _write(self, name: str, text: Callable[[], bytes]) -> None:
        if self._folder is None:
            return
        path = self._folder / name
        scratch = path.with_suffix(".new")
        try:
            scratch.write_bytes(text())
            scratch.replace(path)
        except OSError as error:
            logger.warning("%s cannot be written, which sloserve fleet reload reads: %s", path, error)

    def view(self) -> dict[str, Any]:
        """Return the state for ``/sloserve/file``."""
        return {
            "file": self.fleet.source,
            "applied_at_s": round(self._applied_s, 3),
            "changes": self._changes,
            "fault": self.fault or None,
        }

    def collect(self) -> Iterable[Any]:
        results = CounterMetricFamily(
            "sloserve:fleet_file_reloads", "Times that the fleet's file was read again, by result.", labels=["result"]
        )
        for result, count in self._results.items():
            results.add_metric([result], float(count))
        yield results
        yield GaugeMetricFamily(
            "sloserve:fleet_file_refused",
            "1 if the last version of the fleet's file that was read is not in force, 0 otherwise.",
            value=float(bool(self.fault)),
        )
        yield GaugeMetricFamily(
            "sloserve:fleet_file_applied_timestamp_seconds",
            "Time at which the version of the fleet's file in force was applied.",
            value=self._applied_s,
        )


class Reloading:
    """Follows the fleet's file in a process that runs.

    Args:
        source: The file; ``None`` for a process that reads its file once.
        in_force: The version by which it works.
        apply: Makes a version the one in force. Raises: ConfigError; then it has changed nothing.
        say: Prints a line for each change.
    """

    def __init__(
        self,
        source: FleetSource | None,
        in_force: FileInForce,
        apply: Callable[[Fleet], Awaitable[None]],
        say: Callable[[str], None] = logger.info,
    ) -> None:
        self._source, self._in_force, self._apply, self._say = source, in_force, apply, say

    async def run(self, hang_ups: HangUps) -> NoReturn:
        """Apply changes of the file until cancelled."""
        watching = None
        if self._source is not None and self._source.is_watched:
            watching = asyncio.create_task(watch_file(self._source.path, hang_ups.set))
        try:
            while True:
                await hang_ups.next()
                if self._source is not None:
                    await self.turn(self._source)
        finally:
            if watching is not None:
                watching.cancel()

    async def turn(self, source: FleetSource) -> None:
        """Read the file once, and apply it if it is right and can be applied."""
        try:
            fleet, text = await asyncio.to_thread(source.whole)
            check_fixed(self._in_force.fleet, fleet)
            found = changes(self._in_force.fleet, fleet)
            await self._apply(fleet)
        except (ConfigError, StoreError) as error:
            self._in_force.refused(str(error))
            logger.error("%s is read again, and nothing changes: %s", source.path, error)
        except Exception as error:
            self._in_force.refused(f"internal fault: {error!r}")
            logger.exception("%s is read again, and is not applied because of a fault", source.path)
        else:
            self._in_force.applied(fleet, found, text)
            for line in found or ["nothing has changed in it"]:
                self._say(f"{source.path} is read again: {line}")
