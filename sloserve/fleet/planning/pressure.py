"""How full a fleet is, class by class: the input of an autoscaler."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from sloserve.core.arrays import FloatArray
from sloserve.core.kernels.fleet import FleetProblem
from sloserve.fleet.planning.waiting_groups import Group
from sloserve.scheduler.virtual_queues.contract import FleetPlan
from sloserve.scheduler.virtual_queues.qlm_planner import Foreseen

MOST: Final = 100.0
"""Largest pressure: the pressure of a deadline that has passed, or nearly so."""


def slo_pressure(foreseen: Foreseen, plan: FleetPlan, groups: Mapping[int, Group]) -> dict[str, float]:
    """Return the pressure of each class that has requests waiting.

    It is the largest, among the groups of the class, of the expected time until the first or last token over the time
    that the deadline leaves. At 1 the fleet is full; above it deadlines are missed.
    """
    if foreseen.problem is None:
        return {}
    at = {group.ref: k for k, group in enumerate(foreseen.groups)}
    queues = [[at[ref] for ref in plan.queues.get(i.name, ()) if ref in at] for i in foreseen.state.instances]
    problem = foreseen.problem
    first_s, last_s = expected_ends_s(problem, queues)
    found: dict[str, float] = {}
    for k, group in enumerate(foreseen.groups):
        pairs = (first_s[k], problem.first_due_s[k]), (last_s[k], problem.last_due_s[k])
        full = max(MOST if left_s <= 0.0 else min(float(end_s / left_s), MOST) for end_s, left_s in pairs)
        slo_class = groups[group.ref].slo_class
        found[slo_class] = max(found.get(slo_class, 0.0), round(full, 4))
    return found


def expected_ends_s(problem: FleetProblem, queues: Sequence[Sequence[int]]) -> tuple[FloatArray, FloatArray]:
    """Return the seconds until each group's first and last requests reach the token with the deadline, both ``[n]``.

    They are 0 for groups in no queue.

    Args:
        problem: The planning problem.
        queues: Indices of the groups in the queue of each instance.
    """
    first_s, last_s = np.zeros(problem.model.size), np.zeros(problem.model.size)
    for i, queue in enumerate(queues):
        kind, active, time_s = problem.kind[i], int(problem.active[i]), float(problem.ready_s[i])
        leaves_s = max(float(problem.drained_s[i]), time_s)
        for g in queue:
            model = int(problem.model[g])
            if model != active:
                time_s = max(time_s, leaves_s) + float(problem.swap_s[i, active, model])
                active, leaves_s = model, time_s + problem.min_active_s
            first_s[g] = time_s + float(problem.judged_s[kind, g])
            time_s += float(problem.work_s[kind, g])
            leaves_s = max(leaves_s, time_s + float(problem.own_s[kind, g]))
            last_s[g] = time_s + float(problem.judged_s[kind, g])
    return first_s, last_s
