"""Launchers of engines by the code that they run: a process that forks engines has imported the code as it was."""

import asyncio
import logging
from collections.abc import Callable

from sloserve.fleet.agent.engine_spec import EngineProcess, EngineSpec, Launcher

logger = logging.getLogger(__name__)


class LaunchersByCode:
    """Starts engines with the installed code; a launcher of earlier code is closed once its last engine has ended.

    Args:
        made: Function that makes a launcher, which may import the code at once.
    """

    def __init__(self, made: Callable[[], Launcher]) -> None:
        self._made, self._code = made, ""
        self._current = made()
        self._engines: dict[Launcher, int] = {self._current: 0}
        """Number of running engines of each launcher."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def launch(self, spec: EngineSpec, code: str) -> EngineProcess:
        """Start an engine.

        Args:
            spec: The engine.
            code: Digest of the installed code.

        Raises: OSError.
        """
        if self._code not in ("", code):
            logger.info("the installed code has changed: engines are started with the code as it is now")
            earlier, self._current = self._current, self._made()
            self._engines[self._current] = 0
            await self._close_unused(earlier)
        self._code, launcher = code, self._current
        self._engines[launcher] += 1
        try:
            process = await launcher.launch(spec)
        except BaseException:
            self._engines[launcher] -= 1
            raise
        task = asyncio.create_task(self._ended(process, launcher))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return process

    async def close(self) -> None:
        """End all engines."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*(launcher.close() for launcher in self._engines))

    async def _ended(self, process: EngineProcess, launcher: Launcher) -> None:
        await process.wait()
        self._engines[launcher] -= 1
        await self._close_unused(launcher)

    async def _close_unused(self, launcher: Launcher) -> None:
        if launcher is not self._current and not self._engines[launcher]:
            del self._engines[launcher]
            await launcher.close()
