"""Idle instances get work that waits elsewhere, if that costs no deadline and a swap pays back.

A plan that keeps all deadlines would otherwise stay as it is for hours, with an instance that came later empty beside a
long queue. QLM does not have this: its search minimises lateness alone.
"""

from typing import Final, NamedTuple

import numpy as np

from sloserve.core.kernels.fleet import FleetProblem, FleetQueues, fleet_search
from sloserve.scheduler.virtual_queues.contract import FleetState, GroupSums

_TIMES_PAID: Final = 2.0
"""Multiple of the swap and one output by which a group must be done sooner.

Before another model can come back, what was begun ends, and a swap takes place again. (With the swap alone, 487
requests that one instance would have served in 6 s were done 8 s later.)
"""


class _Move(NamedTuple):
    gain_s: float
    group: int
    queue: int


def use_idle(state: FleetState, groups: list[GroupSums], problem: FleetProblem, found: FleetQueues) -> FleetQueues:
    """Return the queues with one group more for each idle instance that a swap pays for, else ``found`` itself.

    An instance is idle if it runs nothing, has nothing in its queue, and serves no model that is waited for: an
    instance that serves such a model helps the other instances of the model by itself.
    """
    waited_for, has = set(problem.model.tolist()), problem.active.tolist()
    for i, instance in enumerate(state.instances):
        runs = instance.running.requests or instance.ready_s > state.now_s or problem.drained_s[i] > 0.0
        # The last instance of a model stays: its next request would wait for a swap, and for what runs.
        is_last = has[i] >= 0 and has.count(has[i]) == 1
        if runs or found.queues[i] or has[i] in waited_for or is_last:
            continue
        taken = _best(groups, problem, found.queues, i)
        if taken is None:
            continue
        queues = [list(queue) for queue in found.queues]
        queues[taken.queue].remove(taken.group)
        queues[i].append(taken.group)
        moved = fleet_search(problem, queues)
        if moved.late <= found.late + 1e-9:
            found, has[i] = moved, int(problem.model[taken.group])
    return found


def _best(groups: list[GroupSums], problem: FleetProblem, queues: list[list[int]], idle: int) -> _Move | None:
    """Return the group that gains most by going there, among the groups with a gain that pays for the swap."""
    swap_s = problem.swap_s[idle, problem.active[idle]]
    moves = []
    for j, queue in enumerate(queues):
        active, time_s = int(problem.active[j]), float(problem.ready_s[j])
        for place, g in enumerate(queue):
            if groups[g].comes_over_s:  # streams that are only expected: none of them waits
                continue
            model = int(problem.model[g])
            time_s += float(problem.swap_s[j, active, model])
            active, work_s = model, float(problem.work_s[problem.kind[j], g])
            there_s = float(swap_s[model] + problem.work_s[problem.kind[idle], g])
            # Both serve the head, since an instance with room helps others of its model.
            done_s = there_s if place else (swap_s[model] + work_s) / 2.0
            gain_s = time_s + work_s - done_s
            time_s += work_s
            least_s = _TIMES_PAID * float(swap_s[model] + problem.own_s[problem.kind[idle], g])
            if np.isfinite(there_s) and gain_s >= least_s:
                moves.append(_Move(gain_s, -g, j))
    best = max(moves, default=None)
    return None if best is None else best._replace(group=-best.group)
