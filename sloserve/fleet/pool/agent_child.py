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
_KILL_S: Final = 20.0
"""Seconds after the order to end when an agent is killed: what it serves has 5 s, its engines the rest."""


_HURRY_S: Final = 10.0
"""The same, of an agent that is not to wait for what it serves."""
_AGAIN_S: Final = 0.2
"""Seconds between signals to an agent that is not to wait."""


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

    def hang_up(self) -> None:
        """Have the agent read the fleet's file again."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGHUP)

    async def stop(self, *, at_once: bool) -> None:
        """End the agent; what it runs goes back into the queue, unless ``at_once``."""
        self.is_ending = True
        if self._process is None or self._process.returncode is not None:
            return
        waiting = asyncio.create_task(self._process.wait())
        try:
            async with asyncio.timeout(_HURRY_S if at_once else _KILL_S):
                # It ends its engines, which would outlive an agent that is killed.
                while self._process.returncode is None:
                    with suppress(ProcessLookupError):
                        self._process.send_signal(signal.SIGTERM)
                    await asyncio.wait({waiting}, timeout=_AGAIN_S if at_once else None)
                await waiting
        except TimeoutError:
            kill_group(self._process.pid)

    def end_of_log(self, lines: int = 5) -> str:
        """Return the last lines of the log."""
        return "\n".join(lines_of(self.log.read_text(encoding="utf-8", errors="replace"))[-lines:])
