"""Earliest deadline first over a fleet: each group goes where it ends first. The fall-back, and a rival.

Source: QLM, App. A.3.
"""

import numpy as np

from sloserve.core.kernels.fleet import FleetProblem


def edf_queues(problem: FleetProblem) -> list[list[int]]:
    """Queues of indices of groups, by the deadline of each group's last request."""
    instances = range(problem.kind.size)
    queues: list[list[int]] = [[] for _ in instances]
    time_s, leaves_s = problem.ready_s.copy(), np.maximum(problem.drained_s, problem.ready_s)
    active = problem.active.copy()
    for g in np.argsort(problem.last_due_s, kind="stable").tolist():
        model = problem.model[g]
        swap_s = problem.swap_s[instances, active, model]  # model -1 is the last row
        served = problem.swap_s[instances, model, model] == 0.0
        start_s = np.where(active == model, time_s, np.maximum(time_s, leaves_s) + swap_s)
        end_s = np.where(served, start_s + problem.work_s[problem.kind, g], np.inf)
        i = int(end_s.argmin())
        if active[i] != model:
            leaves_s[i], active[i] = start_s[i] + problem.min_active_s, model
        time_s[i] = end_s[i]
        leaves_s[i] = max(leaves_s[i], end_s[i] + problem.own_s[problem.kind[i], g])
        queues[i].append(g)
    return queues
