"""Time as a dependency: code that needs the time is handed a clock.

A clock tells two times. ``now_s`` counts seconds since the epoch, as vLLM's ``arrival_time`` does, so that deadlines
compare across processes of one host; it may be set back or forward at any moment. ``monotonic_s`` counts from anywhere
and only ever grows: how long something took or how old it is follows from this one alone. Policies get ``now_s`` as an
argument and never hold a clock.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """What time is it, in seconds since the epoch, and how long has it been, in seconds?"""

    def now_s(self) -> float: ...

    def monotonic_s(self) -> float: ...


class SystemClock:
    """The host's clocks."""

    def now_s(self) -> float:
        return time.time()

    def monotonic_s(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that moves only when told: virtual time in the simulator and in tests.

    Starts at an arbitrary epoch offset rather than at zero, so that code which reads the host's clock by mistake is off
    by years and fails loudly; ``monotonic_s`` starts at zero, so that code which takes one time for the other is too.
    """

    EPOCH_OFFSET_S = 1_000_000.0

    def __init__(self, start_s: float = EPOCH_OFFSET_S) -> None:
        self._now_s = self._start_s = start_s

    def now_s(self) -> float:
        return self._now_s

    def monotonic_s(self) -> float:
        return self._now_s - self._start_s

    def advance_to(self, now_s: float) -> None:
        """Moves the clock forward to ``now_s``.

        Raises: ValueError if that lies in the past.
        """
        if now_s < self._now_s:
            raise ValueError(f"a clock does not run backwards: now {self._now_s}, asked for {now_s}")
        self._now_s = now_s

    def set_wall(self, now_s: float) -> None:
        """Sets the time since the epoch, forward or back, as an operator or NTP does; no time passes."""
        self._start_s += now_s - self._now_s
        self._now_s = now_s
