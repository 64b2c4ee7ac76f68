"""Several instances: which request goes where, by remaining memory, and then the order of each instance.

Source: SLO-aware scheduling by simulated annealing, Algorithm 2.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.kernels.anneal import BatchPlan, BatchRequests, Cooling, anneal


def assign_instances(kv_tokens: FloatArray, free_tokens: Sequence[int]) -> IntArray:
    """The instance of each request, ``[n]``: in turn, the one with the most memory left; ties to the first.

    When that cannot hold the request, a round is over, and memory counts from ``free_tokens`` again. kv_tokens: what
    each request fills in the end, ``[n]``.

    Raises: ValueError without instances, or for a request that fits into none.
    """
    if not len(free_tokens):
        raise ValueError("free_tokens: no instance to assign requests to")
    largest = max(free_tokens)
    if kv_tokens.size and kv_tokens.max() > largest:
        raise ValueError(
            f"kv_tokens: a request of {kv_tokens.max():g} tokens fits into no instance of {largest} or less"
        )
    left = np.array(free_tokens, np.float64)
    instance = np.empty(kv_tokens.size, np.int64)
    for i, needed in enumerate(kv_tokens):
        if left.max() < needed:
            left[:] = free_tokens
        instance[i] = int(np.argmax(left))
        left[instance[i]] -= needed
    return instance


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

    Raises: ValueError as :func:`assign_instances` and :func:`sloserve.kernels.anneal.anneal`.
    """
    instance = assign_instances(kv_tokens, free_tokens)
    plans = []
    for i in range(len(free_tokens)):
        members = np.flatnonzero(instance == i)
        own = BatchRequests(np.ascontiguousarray(requests.columns[:, members]))
        plans.append(InstancePlan(members, anneal(own, max_batch, cooling=cooling, seed=seed + i)))
    return plans
