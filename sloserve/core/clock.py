"""Time as a dependency: whoever needs the time is handed a clock.

Every clock counts seconds since the epoch (vLLM's ``arrival_time`` does too), so deadlines compare across processes of
one host. Policies get ``now_s`` as an argument and never hold a clock.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """Answers one question: what time is it, in seconds since the epoch?"""

    def now_s(self) -> float: ...


class SystemClock:
    """The host's wall clock."""

    def now_s(self) -> float:
        return time.time()


class ManualClock:
    """A clock that moves only when told: virtual time in the simulator and in tests.

    Starts at an arbitrary epoch offset rather than at zero, so that code which reads the host's clock by mistake is off
    by years and fails loudly.
    """

    EPOCH_OFFSET_S = 1_000_000.0

    def __init__(self, start_s: float = EPOCH_OFFSET_S) -> None:
        self._now_s = start_s

    def now_s(self) -> float:
        return self._now_s

    def advance_to(self, now_s: float) -> None:
        """Moves the clock forward to ``now_s``.

        Raises: ValueError if that lies in the past.
        """
        if now_s < self._now_s:
            raise ValueError(f"a clock does not run backwards: now {self._now_s}, asked for {now_s}")
        self._now_s = now_s
