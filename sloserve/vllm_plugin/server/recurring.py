"""Look at something again and again in the server's event loop, as long as there is something to look at."""

import asyncio
from collections.abc import Callable
from typing import Final

from sloserve.engine.containment import ErrorLog

AFTER_FAULT_S: Final = 1.0


class Recurring:
    """Calls a function some time later, and again as long as it returns ``True``.

    A call that raises is logged, and tried again later. Outside of an event loop nothing is called.

    Args:
        look: Function to call. It returns whether to call it again.
        every_s: Seconds before each call.
        after_fault_s: Least seconds between a call that raises and the next one: a fault may last.
    """

    def __init__(self, look: Callable[[], bool], every_s: float, after_fault_s: float = AFTER_FAULT_S) -> None:
        self._look, self._every_s, self._after_fault_s = look, every_s, after_fault_s
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
        self._call_after(loop, self._every_s)

    def _call_after(self, loop: asyncio.AbstractEventLoop, after_s: float) -> None:
        loop.call_later(after_s, self._call)
        self._is_set = True

    def _call(self) -> None:
        self._is_set = False
        try:
            goes_on = self._look()
        except Exception as error:
            self._errors.caught(error, "sloserve failed at what it does regularly in the server; it tries again")
            if not self._is_set:
                self._call_after(asyncio.get_running_loop(), max(self._every_s, self._after_fault_s))
            return
        if goes_on:
            self.begin()
