"""Signals to a process of a fleet: to stop, or to read its file again."""

import asyncio
import logging
import signal
from collections.abc import Callable
from typing import Final

from sloserve.core.errors import ConfigError

logger = logging.getLogger(__name__)

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Stopping:
    """An event that SIGINT or SIGTERM sets, in the event loop in which it was made."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._event.set)

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    async def wait(self) -> None:
        """Return once the process shall end."""
        await self._event.wait()

    def again(self) -> None:
        """Forget the signals up to now: the next one counts as the first."""
        self._event.clear()


class HungUp:
    """SIGHUP, in the event loop in which this was made: the process is to follow its file as it is now.

    Args:
        check: Function that checks the file as a whole; it runs in a thread. Raises: ConfigError.
    """

    def __init__(self, check: Callable[[], None]) -> None:
        self._check, self._event = check, asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._event.set)

    async def wait(self) -> None:
        """Return after a signal with which the file is right; one with faults is logged, and changes nothing."""
        while True:
            await self._event.wait()
            self._event.clear()
            try:
                await asyncio.to_thread(self._check)
                return
            except ConfigError as error:
                logger.error("SIGHUP: nothing changes, since the fleet's file has faults:\n%s", error)
