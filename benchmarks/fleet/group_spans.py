"""When the groups of a plan begin and end, as the plan generator predicts: for reports and for tests."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.kernels.fleet import FleetProblem


@dataclass(frozen=True, slots=True, eq=False)
class GroupSpans:
    """Where each group is served, from when, and when what is behind it begins; ``[groups]`` each, seconds from now."""

    instance: IntArray
    start_s: FloatArray
    end_s: FloatArray


def group_spans(problem: FleetProblem, queues: Sequence[Sequence[int]]) -> GroupSpans:
    """queues: of indices of groups, each in one of them, once."""
    instance = np.zeros(problem.model.size, np.int64)
    start_s, end_s = np.zeros(problem.model.size), np.zeros(problem.model.size)
    for i, queue in enumerate(queues):
        kind, active = problem.kind[i], problem.active[i]
        time_s = problem.ready_s[i]
        leaves_s = max(problem.drained_s[i], time_s)
        for g in queue:
            model = problem.model[g]
            if model != active:
                time_s = max(time_s, leaves_s) + problem.swap_s[i, active, model]  # -1, none, is the last row
                leaves_s, active = time_s + problem.min_active_s, model
            instance[g], start_s[g] = i, time_s
            time_s = end_s[g] = time_s + problem.work_s[kind, g]
            leaves_s = max(leaves_s, time_s + problem.own_s[kind, g])
    return GroupSpans(instance, start_s, end_s)
