"""Virtual queues of a fleet by local search: which instance serves which request groups, in which order.

The arithmetic of a plan is in csrc/include/sloserve/fleet_queues.h, the search in fleet_search.h. Seconds from now.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.kernels import _csrc


@dataclass(frozen=True, slots=True, eq=False)
class FleetProblem:
    """What a plan of n groups on i instances is judged by; m models, k kinds of instances that take equally long.

    Args:
        model: of each group, ``[n]``.
        first_due_s, last_due_s: of the requests that are served first and last, ``[n]``; inf for none.
        weight: of a second of lateness of all its requests, ``[n]``.
        work_s: how long what comes behind the group waits for it, ``[k, n]``.
        judged_s: from the start of one request's service to the token that its deadline is about, ``[k, n]``.
        own_s: from the start of one request's service to its end, ``[k, n]``.
        kind: of each instance, ``[i]``.
        active: its active model, -1 for none, ``[i]``.
        ready_s: when it could serve more of that model, ``[i]``.
        drained_s: when that model may leave, ``[i]``.
        swap_s: from the model of the row, the last row for none, to that of the column, ``[i, m + 1, m]``; 0 from a
            model to itself, inf in the row and column of a model that the instance cannot serve.
        min_active_s: a model stays at least so long once it has come.
        swap_price: what a second of swapping costs, in weighted seconds of lateness.
    """

    model: IntArray
    first_due_s: FloatArray
    last_due_s: FloatArray
    weight: FloatArray
    work_s: FloatArray
    judged_s: FloatArray
    own_s: FloatArray
    kind: IntArray
    active: IntArray
    ready_s: FloatArray
    drained_s: FloatArray
    swap_s: FloatArray
    min_active_s: float = 0.0
    swap_price: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class FleetQueues:
    """queues: of each instance, indices of groups. cost: weighted lateness and the price of swaps; late: the former.

    start_cost, start_late: of the queues that the search was given, with the groups put in that they lacked.
    """

    queues: list[list[int]]
    cost: float
    late: float
    start_cost: float
    start_late: float


def fleet_search(
    problem: FleetProblem, last: Sequence[Sequence[int]] = (), *, moves: int = 0, seed: int = 0
) -> FleetQueues:
    """Queues of low cost: never above that of ``last``, queues of indices of groups, with the others put in greedily.

    A function of its arguments, on every platform. moves: 0 to have ``last`` completed and judged alone.

    Raises: ValueError for values out of range, and for a group whose model no instance serves.
    """
    last = last or [()] * problem.kind.size
    models = problem.swap_s.shape[-1]
    order, sizes, cost, late, start_cost, start_late = _csrc.fleet_search(
        problem.model,
        np.stack([problem.first_due_s, problem.last_due_s, problem.weight]),
        np.ascontiguousarray(problem.work_s),
        np.ascontiguousarray(problem.judged_s),
        np.ascontiguousarray(problem.own_s),
        np.stack([problem.kind, problem.active]),
        np.stack([problem.ready_s, problem.drained_s]),
        np.ascontiguousarray(problem.swap_s.reshape(-1, models)),
        problem.min_active_s,
        problem.swap_price,
        np.array([group for queue in last for group in queue], np.int64),
        np.array([len(queue) for queue in last], np.int64),
        moves,
        seed,
    )
    ends = np.cumsum(sizes)[:-1]
    return FleetQueues([queue.tolist() for queue in np.split(order, ends)], cost, late, start_cost, start_late)
