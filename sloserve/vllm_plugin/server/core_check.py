"""Check whether the engine's core still responds: vLLM's own health only knows of a death that was reported to it.

A request for the server's health (``/health``, ``/ready``) has the core asked as well, one question at a time; without
such requests the core is not asked. The core responds between two steps, also when it is idle, paused or asleep; so a
question that stays open for longer than any step may take shows that the core is suspended or never comes back from a
step. A fleet's agent looks closer, and sooner: see :mod:`sloserve.fleet.agent.pulse`.

Each API process of a server asks for itself, and a call of one that keeps the core busy keeps it from responding to
all: so each publishes on its board for how long it does (:mod:`sloserve.engine.metrics.process_page`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from sloserve.engine.metrics.process_page import Boards

logger = logging.getLogger(__name__)

_AGAIN_S: Final = 1.0
"""Seconds for a response that is here and not read yet: a process that was stopped itself finds the time over first."""
CONTROL_LIMITS: Final = 12
"""Longest silence within control, in limits of a response: an hour by default.

In that time the weights of the largest models are read from a slow disk. Without an end, a call to a core that hangs
would hide the hang for ever.
"""
CONTROL: Final = ("sleep", "wake_up", "collective_rpc")
"""Methods of ``AsyncLLM`` that keep the core busy for long, such as to read weights."""


class CoreCheck:
    """Finds out whether the engine core of one client hangs. It works in one event loop."""

    def __init__(self, limit_s: float, boards: Boards) -> None:
        """Build the check of one engine client.

        Args:
            limit_s: Seconds that a response may take.
            boards: Boards on which each API process publishes when it keeps the core busy.
        """
        self._limit_s = limit_s
        self._boards = boards
        self._question: asyncio.Task[None] | None = None
        self._asked_s = 0.0
        self._controlled_before_s = 0.0
        self._controls = 0

    async def hangs(self, ask: Callable[[], Awaitable[Any]]) -> bool:
        """Return whether the core has not responded for too long. Call this again and again.

        Args:
            ask: Returns once every rank has responded.
        """
        now_s = asyncio.get_running_loop().time()
        if self._question is None or self._question.done():
            self._question, self._asked_s = asyncio.create_task(_answer(ask)), now_s
            self._controlled_before_s = self._boards.controlled_s(now_s)
            return False
        # The time of a process's calls goes with the process.
        controlled_s = max(self._boards.controlled_s(now_s) - self._controlled_before_s, 0.0)
        silent_s = now_s - self._asked_s - controlled_s
        if silent_s < self._limit_s and controlled_s < CONTROL_LIMITS * self._limit_s:
            return False
        await asyncio.wait({self._question}, timeout=_AGAIN_S)
        if self._question.done():
            return False
        logger.error("the engine's core hangs: it has not responded for %.0f s", now_s - self._asked_s)
        return True

    @contextmanager
    def controlling(self) -> Iterator[None]:
        """Exclude the time of a call that may keep the core busy from the core's silence, up to a limit.

        This holds in all of the server's API processes. The silence before the call does count: a core that hung when
        the call came still hangs.
        """
        own = self._boards.own
        if not self._controls:
            own.controls_since(asyncio.get_running_loop().time())
        self._controls += 1
        try:
            yield
        finally:
            self._controls -= 1
            if not self._controls:
                own.controlled(asyncio.get_running_loop().time())


async def _answer(ask: Callable[[], Awaitable[Any]]) -> None:
    try:
        await ask()
    except Exception as error:  # it counts as a response: vLLM itself reports what is dead
        logger.debug("the engine's core responds to a check with %r", error)
