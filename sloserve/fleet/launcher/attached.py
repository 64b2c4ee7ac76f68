"""An engine that others started: it is watched, and never started, put to sleep or ended."""

import asyncio
from typing import Final

import aiohttp

from sloserve.fleet.agent.engine_spec import EngineSpec

LOOK_S: Final = 1.0
LOST_S: Final = 5.0
"""Seconds without a healthy response after which a server is assumed to have died."""


class AttachedEngine:
    """A watch on the server at ``url``. It ends when the server is silent, or is released."""

    pid, is_forked = 0, True

    def __init__(self, url: str) -> None:
        self._watching = asyncio.create_task(self._watch(url))

    async def wait(self) -> int:
        await asyncio.wait({self._watching})
        return 1

    def kill(self) -> None:
        """Release the server, which continues to serve its other clients."""
        self._watching.cancel()

    async def _watch(self, url: str) -> None:
        loop, is_there = asyncio.get_running_loop(), False
        seen_s = loop.time()
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=LOST_S)) as session:
            while not is_there or loop.time() - seen_s < LOST_S:
                try:
                    async with session.get(f"{url}/health") as answer:
                        if answer.status == 200:
                            is_there, seen_s = True, loop.time()
                except (aiohttp.ClientError, OSError, TimeoutError):
                    pass
                await asyncio.sleep(LOOK_S)


class AttachingLauncher:
    """Attaches to a running server; see :class:`~sloserve.fleet.agent.engine_spec.Launcher`.

    Args:
        url: Base URL of the server.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._engines: list[AttachedEngine] = []

    async def launch(self, spec: EngineSpec) -> AttachedEngine:
        self._engines.append(AttachedEngine(self._url))
        return self._engines[-1]

    async def close(self) -> None:
        for engine in self._engines:
            engine.kill()
        await asyncio.gather(*(engine.wait() for engine in self._engines))
