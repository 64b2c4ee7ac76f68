"""Time as a dependency: code that needs the time is given a clock.

A clock tells two times. ``now_s`` is seconds since the epoch, as vLLM's ``arrival_time`` is, so that deadlines can be
compared between processes of one host; the host's clock may be set at any moment. ``monotonic_s`` has an arbitrary
start and never goes back: durations and ages are computed from it alone. An engine's scheduler compares times on a
:class:`SteadyClock`. Policies get ``now_s`` as an argument and never hold a clock.
"""

import time
from typing import Final, Protocol


class Clock(Protocol):
    """The time: seconds since the epoch, and seconds on a clock that only measures durations."""

    def now_s(self) -> float: ...

    def monotonic_s(self) -> float: ...


class SystemClock:
    """The host's clocks."""

    def now_s(self) -> float:
        return time.time()

    def monotonic_s(self) -> float:
        return time.monotonic()


_NOT_SET_S: Final = 1e-3
"""The host's two clocks are read one after the other: when neither was set they differ by less than this."""


class SteadyClock:
    """Epoch seconds that are never set: the host's time at the start plus the seconds that have passed since then.

    Every time that a process compares (ages, deadlines, when something happened) is of this clock, so that setting the
    host's clock changes no decision. Times that were stamped with the host's clock are converted by :meth:`of_host`.
    """

    def __init__(self, host: Clock) -> None:
        self._host = host
        self._start_s = host.now_s() - host.monotonic_s()

    def now_s(self) -> float:
        return self._start_s + self._host.monotonic_s()

    def monotonic_s(self) -> float:
        return self._host.monotonic_s()

    def of_host(self, stamped_s: float) -> float:
        """Return the time on this clock at which the host's clock said ``stamped_s``, a moment ago.

        That is ``stamped_s`` itself unless the host's clock has been set. If it has, the time that has passed since the
        stamp counts, and the result is the present time at the latest. If the host's clock was set within that moment,
        the result is off by as much.
        """
        ahead_s = self.host_ahead_s
        return min(stamped_s - ahead_s, self.now_s()) if ahead_s else stamped_s

    @property
    def host_ahead_s(self) -> float:
        """Seconds by which the host's clock is ahead of this one since it was set; 0 if it has not been set."""
        ahead_s = self._host.now_s() - self.now_s()
        return 0.0 if abs(ahead_s) < _NOT_SET_S else ahead_s


class ManualClock:
    """A clock that moves only when its methods are called: virtual time in the simulator and in tests.

    It starts at an arbitrary epoch offset rather than at zero, so that code which reads the host's clock by mistake is
    off by years and fails loudly. ``monotonic_s`` starts at zero, so that code which mixes up the two times fails as
    well.
    """

    EPOCH_OFFSET_S = 1_000_000.0

    def __init__(self, start_s: float = EPOCH_OFFSET_S) -> None:
        self._now_s = self._start_s = start_s

    def now_s(self) -> float:
        return self._now_s

    def monotonic_s(self) -> float:
        return self._now_s - self._start_s

    def advance_to(self, now_s: float) -> None:
        """Move the clock forward to ``now_s``.

        Raises: ValueError if that lies in the past.
        """
        if now_s < self._now_s:
            raise ValueError(f"a clock does not run backwards: now {self._now_s}, asked for {now_s}")
        self._now_s = now_s

    def set_wall(self, now_s: float) -> None:
        """Set the time since the epoch, forward or back, as an operator or NTP does; no time passes."""
        self._start_s += now_s - self._now_s
        self._now_s = now_s
