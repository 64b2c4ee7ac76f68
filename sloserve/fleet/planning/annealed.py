"""Simulated annealing over several instances: groups go where most memory is left, each instance anneals its own order.

Source: SLO-aware scheduling by simulated annealing, Algorithm 2; Eq. 20, tokens of the memory that is left, is the KV
cache that the engine reports, less what it holds and will hold. Differs: a request group stands for a request, since a
fleet's plan orders groups; a group larger than any memory that is left counts as exactly that memory.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.kernels.anneal import BatchRequests, BatchTimes, anneal
from sloserve.estimator.completion.group_time import Serving
from sloserve.scheduler.virtual_queues.contract import InstanceState
from sloserve.scheduler.virtual_queues.qlm_planner import Foreseen


def assign_instances(kv_tokens: FloatArray, free_tokens: Sequence[int]) -> IntArray:
    """Assign each request ``[n]`` in turn to the instance with the most memory left; ties go to the first.

    When that instance cannot hold the request, a round is over, and memory counts from ``free_tokens`` again.

    Args:
        kv_tokens: KV tokens that each request fills in the end, ``[n]``.
        free_tokens: Free KV tokens of each instance.

    Raises:
        ValueError: There is no instance, or a request fits into none.
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


def annealed_shares(
    foreseen: Foreseen,
    serving: Mapping[tuple[str, str], Serving],
    waiting: Sequence[int],
    having: Sequence[InstanceState],
    *,
    seed: int,
) -> list[list[int]]:
    """Return the queue of each instance, as indices of groups.

    Args:
        foreseen: State and problem that the planner expects.
        serving: Profile and engine size by model and kind of device.
        waiting: Indices of the waiting groups of one model, by arrival.
        having: Instances that serve that model.
        seed: Seed of the random search.
    """
    problem, groups = foreseen.problem, foreseen.groups
    assert problem is not None
    model = groups[waiting[0]].model
    capacity = [serving[model, instance.device].engine.kv_tokens for instance in having]
    free = [
        tokens - instance.running.context_tokens - instance.running.output_tokens
        for tokens, instance in zip(capacity, having, strict=True)
    ]
    left = [round(max(tokens, 0.0)) for tokens in free] if max(free) >= 1.0 else capacity
    needed = np.array([groups[k].prompt_tokens + groups[k].output_tokens for k in waiting])
    at = assign_instances(np.minimum(needed, max(left)), left)
    now_s, queues = foreseen.state.now_s, []
    for i, instance in enumerate(having):
        own = np.array(waiting, np.int64)[at == i]
        kind = problem.kind[foreseen.state.instances.index(instance)]
        waited_s = np.array([max(now_s - groups[k].first_arrival_s, 0.0) for k in own.tolist()])
        requests = BatchRequests.of(
            BatchTimes(problem.work_s[kind, own]), waited_s=waited_s, e2e_s=problem.last_due_s[own] + waited_s
        )
        queues.append(own[anneal(requests, 1, seed=seed).order].tolist() if own.size else [])
    return queues
