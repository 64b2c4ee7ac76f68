"""An agent as a child of this process; it dies with the process."""

import asyncio
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from sloserve.core.json_lines import lines_of
from sloserve.fleet.launcher.plain import kill_group, start

CONFIG_ERROR: Final = 2
"""Exit status of an agent that finds a wrong setting."""
KILL_S: Final = 20.0
"""Seconds after the order to end when an agent is killed: what it serves has 5 s, its engines the rest."""
_HURRY_S: Final = 10.0
"""Seconds before an agent is killed when it is ordered a second time to end, and waits for no stream any more."""
_BETWEEN_ORDERS_S: Final = 1.0
"""Seconds between two orders to end, which a process would take as one if they came together."""


class AgentChild:
    """One process of an agent.

    Args:
        command: a module and its arguments.
        log: File to which the output is appended.
        environment: Variables added to this process's environment.
    """

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self._command, self._environment = command, environment
        self.log: Final = log
        self.is_ending = False
        """Whether the agent was ordered to end."""
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start the process, once. Raises: OSError: no memory for another process, or no room for its log."""
        self._process = await start(self._command, self.log, self._environment, stdin=None, stdout=None)

    async def wait(self) -> int:
        """Return its exit status once it, and all that it started, have ended."""
        assert self._process is not None, "start() comes first"
        status = await self._process.wait()
        kill_group(self._process.pid)
        return status

    @property
    def pid(self) -> int | None:
        """The id of its process; ``None`` while none runs."""
        return None if self._process is None or self._process.returncode is not None else self._process.pid

    def reload(self) -> None:
        """Have the process read its file again (SIGHUP), if it runs."""
        self._signal(signal.SIGHUP)

    async def stop(self, *, at_once: bool, within_s: float = KILL_S) -> None:
        """End the agent; what it runs goes back into the queue, unless ``at_once``.

        It gets a second order at once, or shortly before ``within_s`` seconds are over, and then is killed: its engines
        outlive an agent that is killed.
        """
        self.is_ending = True
        self._signal(signal.SIGTERM)
        first_s = _BETWEEN_ORDERS_S if at_once else max(within_s - _HURRY_S, within_s / 2.0)
        if not await self._has_ended_in(first_s):
            self._signal(signal.SIGTERM)
            await self._has_ended_in(max(within_s - first_s, 0.0))
        if self._process is not None and self._process.returncode is None:
            kill_group(self._process.pid)

    def _signal(self, number: int) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _has_ended_in(self, seconds: float) -> bool:
        if self._process is None:
            return True
        try:
            async with asyncio.timeout(seconds):
                await self._process.wait()
        except TimeoutError:
            return False
        return True

    def end_of_log(self, lines: int = 5) -> str:
        """Return the last lines of the log."""
        return "\n".join(lines_of(self.log.read_text(encoding="utf-8", errors="replace"))[-lines:])
