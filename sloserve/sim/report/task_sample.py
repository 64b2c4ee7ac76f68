"""What is kept of the tasks of one run for its figure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sloserve.core.arrays import FloatArray
from sloserve.core.task_outcome import TaskOutcome


@dataclass(frozen=True, slots=True, eq=False)
class TaskSample:
    """The tasks of one run.

    Args:
        policy: Name of the run.
        load: Place of the run on the load axis.
        tasks: Number of tasks, finished or not.
        latency_s: Latency of the finished tasks in seconds, ``[finished tasks]``.
    """

    policy: str
    load: float
    tasks: int
    latency_s: FloatArray


def task_sample(policy: str, load: float, tasks: Sequence[TaskOutcome]) -> TaskSample:
    """Return the sample of the run of ``policy`` at ``load``."""
    latency_s = [task.latency_s for task in tasks if task.latency_s is not None]
    return TaskSample(policy, load, len(tasks), np.array(latency_s))
