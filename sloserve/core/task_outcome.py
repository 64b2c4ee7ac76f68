"""The outcome of one task of many calls, as the client that sent its calls saw it."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """One task. Times are in seconds from the start of the run.

    Args:
        key: Name of the task.
        kind: Name of its kind; empty where there is only one.
        arrival_s: Time at which its first call was sent or due.
        due_s: Time by which the task should have ended; infinite for a task without a deadline.
        ended_s: Time at which its last call ended; ``None`` for an unfinished task, one of which a call did not
            complete.
        calls: Number of calls of the whole task.
        completed_calls: Number of calls that completed.
        requests: Ids of the calls that were sent, in the order of the calls.
        tools_s: Seconds from its arrival to the end of its last call in which no call was under way: tools ran, or a
            user read and typed.
    """

    key: str
    kind: str
    arrival_s: float
    due_s: float
    ended_s: float | None
    calls: int
    completed_calls: int
    requests: tuple[str, ...]
    tools_s: float

    @property
    def latency_s(self) -> float | None:
        """The seconds from the arrival of the task to its end; ``None`` if it is unfinished."""
        return None if self.ended_s is None else self.ended_s - self.arrival_s

    @property
    def in_time(self) -> bool | None:
        """Whether the task ended by its deadline; ``None`` for a task without a deadline."""
        if self.due_s == math.inf:
            return None
        return self.ended_s is not None and self.ended_s <= self.due_s
