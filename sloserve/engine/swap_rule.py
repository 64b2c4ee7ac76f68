"""Asked for each victim at the moment it is preempted, by plan or by the engine alike: recompute it, or swap it?

Beside :mod:`sloserve.lso.swapping`, which compares the two, it keeps what only time tells: how long preempted requests
wait for their turn.
"""

from typing import Literal

from sloserve.estimator.step_time.latency import StepLoad
from sloserve.estimator.step_time.running_fit import RunningMean
from sloserve.lso.plan import EngineFacts
from sloserve.lso.swapping import recompute_s, swap_worth_s


class SwapRule:
    """One engine's rule. Times are seconds of one clock.

    swapping: ``cost`` swaps where that takes less of the engine's time than computing again; ``always`` swaps.
    """

    def __init__(self, swapping: Literal["cost", "always"]) -> None:
        self._always = swapping == "always"
        self._since_s: dict[str, float] = {}
        self._wait = RunningMean()

    @property
    def wait_s(self) -> float:
        """How long preempted requests of late waited for their turn, on average; 0 before the first had its turn."""
        return self._wait.value or 0.0

    def worth_s(
        self, request_id: str, tokens: int, running: StepLoad, engine: EngineFacts, now_s: float
    ) -> float | None:
        """A request is preempted: the engine seconds that it takes to compute it again; ``None``: it shall be.

        What the pool keeps is ranked by these seconds a block.

        Args:
            tokens: of the request that have KV.
            running: decodes that run beside, see :class:`~sloserve.engine.step_clock.StepClock`.
            engine: with ``swap``, whose ``wait_s`` is this rule's.
        """
        self._since_s[request_id] = now_s
        if engine.swap is None or tokens <= 0:
            return None
        if not self._always and swap_worth_s(tokens, running, engine) <= 0.0:
            return None
        return recompute_s(tokens, running, engine)

    def has_turn(self, request_id: str, now_s: float) -> None:
        """A request is admitted, or its KV begins to load; of one that was never preempted nothing is noted."""
        since_s = self._since_s.pop(request_id, None)
        if since_s is not None:
            self._wait.add(max(now_s - since_s, 0.0))

    def ended(self, request_id: str) -> None:
        """The request will not come back."""
        self._since_s.pop(request_id, None)
