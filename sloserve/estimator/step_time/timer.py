"""Durations of steps, also when the next step is scheduled before the output of the last one is available.

The rule is this. An engine runs its steps one after another, in the order in which they were scheduled, and at most one
is being computed at a time. So a step's time runs from when it could start, the later of its own scheduling and the
output of the step before it, to its own output. Between scheduling and output alone lie up to two steps when two are in
flight, which would count each step about twice; between outputs alone lies also the time in which the engine had
nothing to do.

What this measures is the pace of the engine: if scheduling takes longer than the model does, an output is only seen
once the next step is scheduled, and the step is charged for that, as are the requests that wait for it. The times of
successive steps add up to the time that passed while any step was in flight. So that this holds for vLLM, a step is
scheduled when ``schedule()`` is entered, and its output is there when ``update_from_output()`` has returned.

Some outputs are read late. Where a step is launched by the same thread, kernel by kernel or graph by graph (prompts,
without a CUDA graph for the whole step), launching takes longer than many a step before it computes: that step's output
is there and is not read. The rule alone would charge a decode step before a prompt for launching the prompt, and the
prompt's step would be nearly free (on an H100 2.7 ms of 13). Such an output was there at once, within a share of the
time in which the next step was launched; then the step before is taken to have ended when it was predicted to, within
what is known: not before the next was scheduled, and not after its output was seen. A time that follows from its
prediction teaches nothing, and is not reported. An output that was waited for came when its step ended, however long
launching took.
"""

from collections import deque

from sloserve.estimator.step_time.latency import StepLoad

_AT_ONCE = 0.25
"""An output that is read within this share of the time that launching the next step took was there already. Sampling is
launched, and the output worked in, meanwhile: 1 to 3 ms beside launches of 8 to 27 (Llama 3 8B on an H100).
"""


class StepTimer:
    """A timer of steps: it receives the events of steps in order, and returns their durations.

    Times are in seconds of one clock.
    """

    def __init__(self) -> None:
        self._in_flight: deque[tuple[StepLoad, float]] = deque()
        self._last_output_s = float("-inf")

    @property
    def in_flight(self) -> int:
        """Number of steps that were scheduled and have no output yet."""
        return len(self._in_flight)

    @property
    def started_s(self) -> float | None:
        """Time at which the oldest step in flight could start; ``None`` if nothing is in flight."""
        return max(self._in_flight[0][1], self._last_output_s) if self._in_flight else None

    def scheduled(self, load: StepLoad, now_s: float) -> None:
        """Record that a step was scheduled at ``now_s``; also one without tokens, since it has an output too."""
        self._in_flight.append((load, now_s))

    def output(
        self, now_s: float, launched_s: float | None = None, predicted_s: float = 0.0
    ) -> tuple[StepLoad, float] | None:
        """Record the output of the oldest step in flight; return the step's load and duration in seconds.

        The result is ``None`` for a step that teaches nothing: one without tokens, one that was scheduled before this
        timer existed, one during which the clock was set back, or one that may well have taken as long as predicted.

        Args:
            now_s: Time of the output.
            launched_s: Time at which the engine had launched the step that was scheduled last; ``None`` if it is not
                known.
            predicted_s: Seconds that the step was expected to take.
        """
        if not self._in_flight:
            return None
        load, scheduled_s = self._in_flight.popleft()
        start_s, end_s = max(scheduled_s, self._last_output_s), now_s
        is_informative = load.tokens > 0
        if launched_s is not None and self._in_flight:
            next_s = self._in_flight[-1][1]
            if now_s - launched_s < _AT_ONCE * (launched_s - next_s):
                end_s = min(max(start_s + predicted_s, next_s), now_s)
                is_informative = is_informative and end_s != start_s + predicted_s
        self._last_output_s = end_s
        return (load, end_s - start_s) if is_informative and end_s > start_s else None

    def forget(self) -> None:
        """Forget the steps in flight, which will have no output: the engine was reset."""
        self._in_flight.clear()
