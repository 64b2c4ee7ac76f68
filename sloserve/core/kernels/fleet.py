"""Virtual queues of a fleet by local search: which instance serves which request groups, in which order.

The arithmetic of a plan is in csrc/include/sloserve/fleet_queues.h, the search in fleet_search.h. Times are in seconds
from now.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.kernels import _csrc


@dataclass(frozen=True, slots=True, eq=False)
class FleetProblem:
    """The facts by which a plan of n groups on i instances is judged; m models, k kinds of instances of equal speed.

    Args:
        model: Index of each group's model, ``[n]``.
        first_due_s: Deadline of the request of each group that is served first, in seconds from now, ``[n]``; inf for
            none.
        last_due_s: Deadline of the request of each group that is served last, in seconds from now, ``[n]``; inf for
            none.
        weight: Weight of a second of lateness of all requests of the group, ``[n]``.
        work_s: Seconds for which the next group waits for this one, ``[k, n]``.
        judged_s: Seconds from the start of one request's service to the token that its deadline is about, ``[k, n]``.
        own_s: Seconds from the start of one request's service to its end, ``[k, n]``.
        kind: Kind of each instance, ``[i]``.
        active: Index of each instance's active model, -1 for none, ``[i]``.
        ready_s: Seconds until each instance could serve more of that model, ``[i]``.
        drained_s: Seconds until that model may leave each instance, ``[i]``.
        swap_s: Seconds to swap the model of the row, the last row for none, for the model of the column, ``[i, m + 1,
            m]``; 0 from a model to itself, inf in the row and column of a model that the instance cannot serve.
        min_active_s: Least seconds for which a model stays once it has come.
        swap_price: Cost of a second of swapping, in weighted seconds of lateness.
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
    """A plan of virtual queues, and its cost.

    Args:
        queues: Indices of groups in order of service, for each instance.
        cost: Weighted lateness plus the price of swaps, in weighted seconds of lateness.
        late: Weighted lateness alone, in weighted seconds.
        start_cost: Cost of the queues that the search was given, with the groups put in that they lacked.
        start_late: Weighted lateness of those starting queues.
    """

    queues: list[list[int]]
    cost: float
    late: float
    start_cost: float
    start_late: float


def fleet_search(
    problem: FleetProblem, last: Sequence[Sequence[int]] = (), *, moves: int = 0, seed: int = 0
) -> FleetQueues:
    """Return queues of low cost, never above the cost of ``last`` with the groups that it lacks put in greedily.

    The result is a function of the arguments, on every platform.

    Args:
        problem: The facts by which a plan is judged.
        last: Queues to start from: for each instance indices of groups, in order of service.
        moves: Number of moves that the search tries; 0 to have ``last`` completed and judged alone.
        seed: Seed of the search.

    Raises: ValueError for values out of range, and for a group with a model that no instance serves.
    """
    last = last or [()] * problem.kind.size
    models = problem.swap_s.shape[-1]
    order, sizes, cost, late, start_cost, start_late = _csrc.fleet_search(
        model=problem.model,
        first_due_s=np.ascontiguousarray(problem.first_due_s),
        last_due_s=np.ascontiguousarray(problem.last_due_s),
        weight=np.ascontiguousarray(problem.weight),
        work_s=np.ascontiguousarray(problem.work_s),
        judged_s=np.ascontiguousarray(problem.judged_s),
        own_s=np.ascontiguousarray(problem.own_s),
        kind=np.ascontiguousarray(problem.kind),
        active=np.ascontiguousarray(problem.active),
        ready_s=np.ascontiguousarray(problem.ready_s),
        drained_s=np.ascontiguousarray(problem.drained_s),
        swap_s=np.ascontiguousarray(problem.swap_s.reshape(-1, models)),
        min_active_s=problem.min_active_s,
        swap_price=problem.swap_price,
        order=np.array([group for queue in last for group in queue], np.int64),
        sizes=np.array([len(queue) for queue in last], np.int64),
        moves=moves,
        seed=seed,
    )
    ends = np.cumsum(sizes)[:-1]
    return FleetQueues([queue.tolist() for queue in np.split(order, ends)], cost, late, start_cost, start_late)
