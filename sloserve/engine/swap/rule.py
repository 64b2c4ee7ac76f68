"""The rule that decides for each victim at the moment it is preempted whether it is recomputed or swapped.

It is asked by plan and by the engine alike. Beside :mod:`sloserve.lso.swapping`, which compares the two, it keeps what
only time shows: how long preempted requests wait for their turn.
"""

from typing import Literal

from sloserve.estimator.step_time.latency import StepLoad
from sloserve.estimator.step_time.running_fit import RunningMean
from sloserve.lso.plan import EngineFacts
from sloserve.lso.swapping import recompute_s, swap_worth_s


class SwapRule:
    """One engine's rule. Times are seconds of one clock.

    Args:
        swapping: ``cost`` swaps where that takes less of the engine's time than computing again; ``always`` swaps.
    """

    def __init__(self, swapping: Literal["cost", "always"]) -> None:
        self._always = swapping == "always"
        self._since_s: dict[str, float] = {}
        self._since_sum_s = 0.0
        self._had_turn = RunningMean()

    def wait_s(self, now_s: float) -> float:
        """Return the mean seconds that recently preempted requests wait for their turn; 0 before the first one.

        Requests that still wait count with the time so far: where victims come last, none may have had its turn yet.
        """
        had, waiting = self._had_turn, len(self._since_s)
        if not waiting:
            return had.value or 0.0
        waited_s = had.total + max(waiting * now_s - self._since_sum_s, 0.0)
        return waited_s / (had.weight + waiting)

    def worth_s(
        self, request_id: str, tokens: int, running: StepLoad, engine: EngineFacts, now_s: float
    ) -> float | None:
        """Return the engine seconds that recomputing a preempted request takes, or ``None`` to recompute it.

        What the pool keeps is ranked by these seconds a block.

        Args:
            request_id: Id of the request that is preempted.
            tokens: Tokens of the request that have KV.
            running: Decodes that run beside, see :class:`~sloserve.engine.step_clock.StepClock`.
            engine: What the engine can do; its ``swap`` has the ``wait_s`` of this rule.
            now_s: The present time, in seconds.
        """
        self.ended(request_id)
        self._since_s[request_id] = now_s
        self._since_sum_s += now_s
        if engine.swap is None or tokens <= 0:
            return None
        if not self._always and swap_worth_s(tokens, running, engine) <= 0.0:
            return None
        return recompute_s(tokens, running, engine)

    def has_turn(self, request_id: str, now_s: float) -> None:
        """Record that a request is admitted, or its KV begins to load; one that was never preempted is ignored."""
        since_s = self._left(request_id)
        if since_s is not None:
            self._had_turn.add(max(now_s - since_s, 0.0))

    def ended(self, request_id: str) -> None:
        """Record that the request will not come back."""
        self._left(request_id)

    def _left(self, request_id: str) -> float | None:
        """Remove a request that does not wait for its turn any more; return when it was preempted, or ``None``."""
        since_s = self._since_s.pop(request_id, None)
        if since_s is not None:
            # Rounding errors end with the last request that waits.
            self._since_sum_s = self._since_sum_s - since_s if self._since_s else 0.0
        return since_s
