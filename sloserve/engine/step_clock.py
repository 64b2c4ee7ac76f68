"""A clock of an engine's steps, which predicts when the steps in flight will end.

It is notified of each step when the step is scheduled and when its output is there, and times the steps (see
:mod:`sloserve.estimator.step_time.timer` for how time is divided between them). It corrects what is known of their
times, and predicts from that when the engine will be free for the next one.

An event is noted, and worked in when a figure is read, else a few steps at once: after the first of them the code and
data are in the processor's caches, where each step alone would find them cold.
"""

from collections import deque

from sloserve.engine.step_shares import StepShares
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.estimator.step_time.online import OnlineLatency
from sloserve.estimator.step_time.profile import Profile
from sloserve.estimator.step_time.timer import StepTimer

_MOST_IN_FLIGHT = 64
"""More than any engine has in flight: outputs were lost, and what waits for one is forgotten."""
_MOST_NOTED = 16
"""Events that are worked in at once: eight steps', some ten microseconds each."""


class StepClock:
    """Times of one engine's steps, in seconds of one clock that never goes back.

    Args:
        profile: What is known of the engine before its first step; ``None`` for nothing.

    Attributes:
        shares: How the time of the steps divides between requests, without the events that are noted.
    """

    def __init__(self, profile: Profile | None = None) -> None:
        self.profile = profile
        self.shares = StepShares()
        self._latency = OnlineLatency(profile)
        self._decodes = StepLoad()
        self._timer = StepTimer()
        self._predicted_s: deque[float] = deque()
        # Steps scheduled, and ``None`` for an output, with when the last step had been launched by then.
        self._noted: deque[tuple[StepLoad | None, float, float | None]] = deque()
        self._launched_s: float | None = None

    @property
    def latency(self) -> OnlineLatency:
        """How long the engine's steps take, as observed until now."""
        self._catch_up()
        return self._latency

    @property
    def decodes(self) -> StepLoad:
        """Return the decodes of the step that was scheduled last."""
        self._catch_up()
        return self._decodes

    def scheduled(self, load: StepLoad, now_s: float) -> None:
        """Record that a step was scheduled, to run after the steps in flight.

        A step without tokens is recorded as well, since it has an output too.
        """
        self._launched_s = None
        self._note(load, now_s)

    def launched(self, now_s: float) -> None:
        """Record that the engine has handed the whole step that was scheduled last to its device."""
        self._launched_s = now_s

    def output(self, now_s: float) -> None:
        """Record that the oldest step in flight gave its output."""
        self._note(None, now_s)

    def _note(self, load: StepLoad | None, now_s: float) -> None:
        self._noted.append((load, now_s, self._launched_s))
        if len(self._noted) >= _MOST_NOTED:
            self._catch_up()

    def _catch_up(self) -> None:
        while self._noted:
            load, now_s, launched_s = self._noted.popleft()
            if load is None:
                self._ended(now_s, launched_s)
            else:
                self._began(load, now_s)

    def _began(self, load: StepLoad, now_s: float) -> None:
        if self._timer.in_flight >= _MOST_IN_FLIGHT:
            self._timer.forget()
            self._predicted_s.clear()
        self._decodes = load.decodes
        predicted_s = self._latency.step_s(load)
        self.shares.add(load, predicted_s, self._latency)
        self._timer.scheduled(load, now_s)
        self._predicted_s.append(predicted_s)
        while len(self._predicted_s) != self._timer.in_flight:  # an exception came between the two
            if len(self._predicted_s) > self._timer.in_flight:
                self._predicted_s.popleft()
            else:
                self._predicted_s.append(predicted_s)

    def _ended(self, now_s: float, launched_s: float | None) -> None:
        predicted_s = self._predicted_s.popleft() if self._predicted_s else 0.0
        timed = self._timer.output(now_s, launched_s, predicted_s)
        if timed is not None:
            self._latency.observe(*timed)

    def busy_s(self, now_s: float) -> float:
        """Return the seconds until the steps in flight are predicted to end, from the last output; never negative.

        The result is 0 if nothing is in flight. A step that takes longer than predicted is expected to end at any
        moment.
        """
        self._catch_up()
        started_s = self._timer.started_s
        if started_s is None or not self._predicted_s:
            return 0.0
        first_s, *others_s = self._predicted_s
        return max(started_s + first_s - now_s, 0.0) + sum(others_s)
