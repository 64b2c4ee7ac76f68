"""Look at something again and again in the server's event loop, as long as there is something to look at."""

import asyncio
from collections.abc import Callable

from sloserve.engine.containment import ErrorLog


class Recurring:
    """Calls a function some time later, and again as long as it returns ``True``.

    A call that raises is logged, and followed by the next one. Outside of an event loop nothing is called.

    Args:
        look: Function to call. It returns whether to call it again.
        every_s: Seconds before each call.
    """

    def __init__(self, look: Callable[[], bool], every_s: float) -> None:
        self._look, self._every_s = look, every_s
        self._is_set = False
        self._errors = ErrorLog()

    def begin(self) -> None:
        """Have the function called, unless its next call is set already."""
        if self._is_set:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # there is no server, as in the virtual engine
            return
        loop.call_later(self._every_s, self._call)
        self._is_set = True

    def _call(self) -> None:
        self._is_set = False
        try:
            goes_on = self._look()
        except Exception as error:
            self._errors.caught(error, "sloserve failed at what it does regularly in the server; it tries again")
            goes_on = True
        if goes_on:
            self.begin()
