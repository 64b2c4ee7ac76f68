"""The arrivals and the deadlines of tasks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sloserve.sim.workloads.seeding import stream
from sloserve.sim.workloads.tasks.plan import TaskPlan


@dataclass(frozen=True, slots=True)
class TaskDeadline:
    """The rule for deadlines: a multiple of the task's latency on an idle engine, and seconds on top.

    Args:
        slowdown: Factor on the latency on an idle engine; 0 for deadlines that do not depend on it.
        plus_s: Seconds on top.
    """

    slowdown: float = 2.0
    plus_s: float = 5.0

    def within_s(self, unloaded_s: float) -> float:
        """Return the seconds that a task has which takes ``unloaded_s`` on an idle engine."""
        return self.plus_s + (self.slowdown * unloaded_s if self.slowdown else 0.0)


NO_DEADLINE = TaskDeadline(0.0, math.inf)
"""The rule of tasks without a deadline."""


def arriving(
    plans: Sequence[TaskPlan],
    seed: int,
    rate: float,
    unloaded_s: Sequence[float],
    deadline: TaskDeadline = TaskDeadline(),
) -> list[TaskPlan]:
    """Return ``plans`` with Poisson arrivals of ``rate`` tasks a second and their deadlines.

    Arrivals of a seed at several rates differ by a factor alone.

    Args:
        plans: The tasks.
        seed: Seed of the arrivals.
        rate: Tasks per second.
        unloaded_s: Latency of each task on an idle engine, in seconds.
        deadline: The rule for deadlines.
    """
    arrivals_s = stream(seed, "agent-tasks/arrivals").exponential(1.0, len(plans)).cumsum() / rate
    return [
        replace(plan, arrival_s=at_s, due_s=at_s + deadline.within_s(alone_s))
        for plan, at_s, alone_s in zip(plans, arrivals_s.tolist(), unloaded_s, strict=True)
    ]
