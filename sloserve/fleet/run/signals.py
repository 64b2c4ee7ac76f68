"""Stops a process of a fleet on a signal."""

import asyncio
import signal
from typing import Final

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
