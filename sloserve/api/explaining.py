"""``GET /sloserve/explain``: why a request of this server was late, from the recording that its engines write.

The command ``sloserve explain`` runs as a process of the lowest priority, so that a replay takes no time of the event
loop and gives way to the server's processes. There is one at a time in each API process, with bounds on its time, its
CPU time and its output, and it gets neither keys nor the key of the recording's hashes.
"""

import asyncio
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import parse_qsl

from sloserve.core.errors import ConfigError, EngineError, QueueFull
from sloserve.engine.recording.folder import engine_stem, recordings_folder
from sloserve.engine.recording.run import present_run
from sloserve.scheduler.settings import PluginSettings

LIMIT_S: Final = 300.0
"""Most seconds that an explanation may take; beside a busy engine it gets little of the processors."""
CPU_LIMIT_S: Final = 120
"""Most seconds of CPU time."""
MOST_BYTES: Final = 1 << 24
"""Most bytes that the command may print; a list has 400 for each late request."""
MOST_LISTED: Final = 100
"""Most late requests in a list, the last ones."""
LOWEST_PRIORITY: Final = 19
_MOST_WORDS: Final = 1 << 16
"""Most bytes that are read of what it complains of."""
COMMAND: Final = (sys.executable, "-m", "sloserve.cli", "explain", "--json")

_REQUEST: Final = re.compile(r"([0-9]{1,6})-([0-9]{1,15})")
_PASSED_ON: Final = ("PATH", "HOME", "LANG", "TMPDIR", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "XDG_STATE_HOME")
"""Variables of the environment that the command gets; keys are not among them."""
_WRONG, _NOT_TRUSTED = 2, 3
"""Exit statuses of the command, for a mistake, and for a replay that is not to be trusted, which it says."""


class Explaining:
    """Explains requests of the running server, one at a time."""

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        """Create it.

        Args:
            command: Command that explains.
        """
        self._command = command
        self._running: subprocess.Popen[bytes] | None = None
        self._is_busy = self._is_closed = False

    async def answer(self, settings: PluginSettings, query: bytes, now_s: float) -> Any:
        """Return why the request that a query names was late, or else the late requests of the first engine.

        Args:
            settings: Settings of the server, which records.
            query: Query of the route's address: ``request=RANK-NUMBER``, or ``rank=RANK`` for the list.
            now_s: The present time, in epoch seconds.

        Raises: ConfigError for a request that cannot be explained; QueueFull while another one is explained;
            EngineError if the command fails.
        """
        rank, number = _asked(query)
        which = ["--late"] if number is None else [f"{rank}-{number}"]
        place = ["--recording", engine_stem(present_run(now_s).name, rank)]
        place += ["--folder", str(recordings_folder(settings.record_folder))]
        if self._is_busy:
            raise QueueFull("explain: another request is being explained; retry when it is done", 5, "")
        if self._is_closed:
            raise EngineError("explain: the server stops; run `sloserve explain` on its recording")
        self._is_busy = True
        explained = asyncio.ensure_future(asyncio.to_thread(self._run, [*which, *place]))
        explained.add_done_callback(lambda done: done.cancelled() or done.exception())  # where the client has left
        found = await asyncio.shield(explained)
        return found if number is not None else {**found, "late": found["late"][-MOST_LISTED:]}

    def close(self) -> None:
        """End what runs, and begin nothing more: the server stops."""
        self._is_closed = True
        process = self._running
        if process is not None:
            process.kill()

    def _run(self, arguments: Sequence[str]) -> Any:
        """Return what the command says; it takes as long as the command, in a thread.

        The thread goes on where the client has left, so that it says itself when it is done.
        """
        try:
            return self._said(arguments)
        finally:
            self._is_busy = False

    def _said(self, arguments: Sequence[str]) -> Any:
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as complaints:
            self._running = process = subprocess.Popen(
                [*self._command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=complaints,
                env={**environment, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
            )
            try:
                if self._is_closed:  # it was closed between the look at that and the start
                    process.kill()
                _restrain(process.pid)
                status = process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                raise EngineError(
                    f"explain: took longer than {LIMIT_S:.0f} s and was ended; run `sloserve explain` elsewhere"
                ) from None
            finally:
                self._running = None
                process.kill()
                process.wait()
            output.seek(0)
            complaints.seek(0)
            said, words = output.read(MOST_BYTES), complaints.read(_MOST_WORDS).decode(errors="replace")
        if status not in (0, _NOT_TRUSTED):
            last = words.strip().rpartition("\n")[2][:500].removeprefix("sloserve: ")
            raise ConfigError(last) if status == _WRONG else EngineError(f"explain: failed ({status}): {last}")
        return json.loads(said)


def recorded(settings: PluginSettings | None) -> PluginSettings:
    """Return the settings of a server that records. Raises: ConfigError for one that does not.

    Args:
        settings: Settings of the server; ``None`` for an engine without sloserve's scheduler.
    """
    if settings is None or not settings.record_mib:
        raise ConfigError("explain: this server records nothing; start it with --record-mib 64")
    return settings


def _asked(query: bytes) -> tuple[int, int | None]:
    """Return the rank and the number that a query names; the number is ``None`` for a list."""
    try:
        fields = dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=1))
    except ValueError:  # more than one field
        fields = {"": ""}
    if fields.keys() - {"request", "rank"}:
        raise ConfigError("explain: the query is request=RANK-NUMBER, or rank=RANK to list the late ones")
    if "request" in fields:
        named = _REQUEST.fullmatch(fields["request"])
        if named is None:
            raise ConfigError(
                f"request: {fields['request'][:40]!r} is not RANK-NUMBER, such as 0-206, as the live page names it"
            )
        return int(named[1]), int(named[2])
    rank = fields.get("rank", "0")
    if re.fullmatch("[0-9]{1,6}", rank) is None:
        raise ConfigError(f"rank: {rank[:40]!r} is not the number of an engine, such as 0")
    return int(rank), None


def _restrain(pid: int) -> None:
    """Give a process the lowest priority, and limits on CPU time and output, which hold also if this process dies."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, LOWEST_PRIORITY)
    if hasattr(resource, "prlimit"):
        with suppress(OSError):
            resource.prlimit(pid, resource.RLIMIT_CPU, (CPU_LIMIT_S, CPU_LIMIT_S))
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (MOST_BYTES, MOST_BYTES))
