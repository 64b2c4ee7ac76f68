"""An agent that is started again when it ends, also while no pool looks after it.

The actor of a node runs it. The pool that looks after it asks for it again and again, and may be another process each
time: it may die, or be replaced by a newer one, and the agent and its engines go on. An agent after which no pool has
looked for a long time ends by itself, or a fleet that has no operator any more would hold its devices forever.
"""

import asyncio
import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from sloserve.core.clock import Clock, SystemClock
from sloserve.fleet.pool.agent_child import KILL_S, AgentChild
from sloserve.fleet.pool.backoff import Backoff

logger = logging.getLogger(__name__)

LOOK_S: Final = 5.0
"""Seconds after which a pool that looks after an agent gets a report even if nothing has happened."""
_CHECK_S: Final = 1.0
"""Seconds between checks whether a pool has looked after the agent."""
_DIGEST: Final = "shipped.digest"


def digest_of(files: Mapping[str, str], release: str) -> str:
    """Return a value that differs where the files of an agent or the release of sloserve differ."""
    text = json.dumps([sorted(files.items()), release])
    return hashlib.sha256(text.encode()).hexdigest()


def start_digest(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return a value that differs where what an agent is started with differs."""
    return hashlib.sha256(json.dumps([list(command), sorted(environment.items())]).encode()).hexdigest()


class AgentFolder:
    """The folder on a node that keeps an agent's files, state and log."""

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        path.mkdir(mode=0o700, parents=True, exist_ok=True)

    @property
    def digest(self) -> str | None:
        """The digest of the files that are there; ``None`` if there are none."""
        path = self.path / _DIGEST
        return path.read_text(encoding="utf-8") if path.exists() else None

    def write(self, files: Mapping[str, str], release: str) -> None:
        """Write the files, each in one step: a process that reads one meanwhile has it whole."""
        for name, text in {**files, _DIGEST: digest_of(files, release)}.items():
            scratch = self.path / f".{name}.new"
            scratch.write_text(text, encoding="utf-8")
            scratch.replace(self.path / name)


class KeptAgent:
    """Runs the process of one agent until it is ordered to end, or no pool looks after it.

    Args:
        folder: Folder with its files; its log is ``agent.log``.
        command: Module and arguments of the agent.
        environment: Variables added to this process's environment.
        unattended_s: Seconds for which it goes on without a pool.
        drain_s: Seconds for the agent to end in order.
        started: Called at each start.
    """

    def __init__(
        self,
        folder: AgentFolder,
        command: Sequence[str],
        environment: Mapping[str, str],
        unattended_s: float,
        *,
        drain_s: float = KILL_S,
        started: Callable[[], None] = lambda: None,
        clock: Clock | None = None,
    ) -> None:
        self._folder, self._started, self._clock = folder, started, clock or SystemClock()
        self._drain_s = drain_s
        self._command, self._environment = command, environment
        self._unattended_s, self._attended_s = unattended_s, self._clock.monotonic_s()
        self._child = self._new_child()
        self.was_unattended = False
        """Whether the agent ends because no pool looks after it."""
        self._ends = 0
        self._what = ""
        self._status: int | None = None
        self._must_end, self._changed = asyncio.Event(), asyncio.Condition()

    async def run(self) -> None:
        """Run until the agent has ended for good; start it again after each other end."""
        attendance = asyncio.create_task(self._attendance())
        backoff = Backoff(self._clock)
        try:
            while not self._must_end.is_set():
                backoff.begun()
                await self._one_life()
                if not self._must_end.is_set():
                    logger.warning("the agent %s; it is started again", self._what)
                    await self._pause(backoff.pause_s())
        finally:
            attendance.cancel()
            await asyncio.gather(attendance, return_exceptions=True)

    async def looked_after(self, seen: int, unattended_s: float, wait_s: float = LOOK_S) -> dict[str, Any]:
        """Note that a pool looks after the agent; wait until it has ended more than ``seen`` times, then report.

        Args:
            seen: The number of ends that the pool knows.
            unattended_s: New limit of the seconds for which the agent goes on without a pool.
            wait_s: Seconds after which this returns anyway.
        """
        self._attended_s, self._unattended_s = self._clock.monotonic_s(), unattended_s
        try:
            async with asyncio.timeout(wait_s), self._changed:
                await self._changed.wait_for(lambda: self._ends > seen)
        except TimeoutError:
            pass
        self._attended_s = self._clock.monotonic_s()
        return self.report()

    def report(self) -> dict[str, Any]:
        """Return what is known of the agent, as plain values: the reader may be of another release."""
        return {
            "pid": self._child.pid,
            "ends": self._ends,
            "what": self._what,
            "status": self._status,
            "digest": self._folder.digest,
            "is_ending": self._must_end.is_set(),
            "unattended_s": round(self._clock.monotonic_s() - self._attended_s, 1),
        }

    def change(self, files: Mapping[str, str], release: str) -> None:
        """Write other files, and have the agent read them (SIGHUP)."""
        self._folder.write(files, release)
        logger.info("the agent reads its file again: the file or the release of sloserve has changed")
        self._child.reload()

    async def stop(self, within_s: float) -> None:
        """End the agent within ``within_s`` seconds; what it runs goes back into the queue."""
        self._must_end.set()
        await self._child.stop(at_once=False, within_s=within_s)

    def end_of_log(self) -> str:
        """Return the last lines of the agent's log."""
        return self._child.end_of_log()

    async def check_attendance(self) -> None:
        """End the agent if no pool has looked after it for too long."""
        unattended_s = self._clock.monotonic_s() - self._attended_s
        if unattended_s > self._unattended_s and not self._must_end.is_set():
            logger.warning("no pool has looked after the agent for %.0f s: it ends", unattended_s)
            self.was_unattended = True
            await self.stop(self._drain_s)

    async def _attendance(self) -> None:
        while True:
            await asyncio.sleep(_CHECK_S)
            await self.check_attendance()

    async def _one_life(self) -> None:
        self._child = self._new_child()
        self._started()
        try:
            await self._child.start()
            if self._must_end.is_set():  # ordered while it was started
                await self._child.stop(at_once=True)
            self._status = await self._child.wait()
            self._what = f"has ended with status {self._status}; its log on that node is {self._child.log}"
        except OSError as error:
            self._status, self._what = None, f"cannot be started: {error}"
        async with self._changed:
            self._ends += 1
            self._changed.notify_all()

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._must_end.wait()
        except TimeoutError:
            pass

    def _new_child(self) -> AgentChild:
        return AgentChild(self._command, self._folder.path / "agent.log", self._environment)
