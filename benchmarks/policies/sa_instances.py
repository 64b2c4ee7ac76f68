"""Several instances: which request goes where, by remaining memory, and then the order of each instance.

Source: SLO-aware scheduling by simulated annealing, Algorithm 2.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.kernels.anneal import BatchPlan, BatchRequests, Cooling, anneal
from sloserve.fleet.planning.annealed import assign_instances


@dataclass(frozen=True, slots=True, eq=False)
class InstancePlan:
    """members: the instance's requests, as indices into all of them. plan: of these, its order indexing ``members``."""

    members: IntArray
    plan: BatchPlan


def plan_instances(
    requests: BatchRequests,
    kv_tokens: FloatArray,
    free_tokens: Sequence[int],
    max_batch: int,
    *,
    cooling: Cooling | None = None,
    seed: int = 0,
) -> list[InstancePlan]:
    """Algorithm 2: assigns the requests, then anneals each instance's by itself.

    Raises: ValueError as :func:`assign_instances` and :func:`sloserve.core.kernels.anneal.anneal`.
    """
    instance = assign_instances(kv_tokens, free_tokens)
    plans = []
    for i in range(len(free_tokens)):
        members = np.flatnonzero(instance == i)
        own = BatchRequests(np.ascontiguousarray(requests.columns[:, members]))
        plans.append(InstancePlan(members, anneal(own, max_batch, cooling=cooling, seed=seed + i)))
    return plans
