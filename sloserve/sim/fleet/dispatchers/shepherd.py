"""``shepherd``: static batches, assigned to instances by a linear program, as where a batch takes a known time.

Requests of a model that came one after another form a batch, which an instance runs to its end before it takes the
next: no request joins or leaves it. Whenever an instance is idle, a linear program shares the batches among all
instances so that the busiest ends first, with swaps and what it still serves counted; each serves what is most its own
by deadline.

Source: SHEPHERD (NSDI 2023), as QLM, Sec. 8, compares with it. Differs: its preemption of whole batches is left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog

from sloserve.core.arrays import FloatArray
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.sim.fleet.dispatcher import Dispatcher, FleetView, Give, InstanceView, Operation, Switch, WaitingRequest

_MOST = 48
"""Batches that are shared at once, those that are due first."""


@dataclass(frozen=True, slots=True)
class _Batch:
    model: str
    requests: tuple[WaitingRequest, ...]

    @property
    def due_s(self) -> float:
        return min(request.due_s for request in self.requests)


class Shepherd(Dispatcher):
    """batch: requests in a full one; what is left when an instance is idle goes in a smaller one."""

    def __init__(self, batch: float = 32) -> None:
        self._size = max(int(batch), 1)
        self._waiting: dict[str, list[WaitingRequest]] = {}

    def begin(self, view: FleetView) -> Sequence[Switch]:
        return ()

    def arrived(self, request: WaitingRequest, view: FleetView) -> None:
        self._waiting.setdefault(request.model, []).append(request)

    def tick(self, view: FleetView) -> Sequence[Operation]:
        idle = [i for i in view.instances if i.serving and not i.num_in_flight]
        batches = self._batches() if idle else []
        if not batches:
            return []
        takes_s = np.array([[_takes_s(b, i, view) for i in view.instances] for b in batches])
        share = shares(takes_s, np.array([_until_idle_s(i, view) for i in view.instances]))
        operations: list[Operation] = []
        for place, instance in enumerate(view.instances):
            own = [b for b, of in zip(batches, share, strict=True) if of[place] > 0.0 and of[place] == of.max()]
            if instance not in idle or not own:
                continue
            batch = own[0]  # in the order of deadlines
            if batch.model != instance.active:
                if instance.can_switch():
                    operations.append(Switch(instance.name, batch.model))
                continue
            operations += [Give(request.request_id, instance.name) for request in batch.requests]
            rest = self._waiting[batch.model]
            self._waiting[batch.model] = [request for request in rest if request not in batch.requests]
            share[batches.index(batch)] = 0.0
        return operations

    def _batches(self) -> list[_Batch]:
        found = [
            _Batch(model, tuple(waiting[k : k + self._size]))
            for model, waiting in self._waiting.items()
            for k in range(0, len(waiting), self._size)
        ]
        return sorted(found, key=lambda batch: batch.due_s)[:_MOST]


def shares(takes_s: FloatArray, until_idle_s: FloatArray) -> FloatArray:
    """The part of each batch that goes to each instance, ``[batches, instances]``, so that the busiest ends first.

    takes_s: how long the batch takes there, ``[batches, instances]``; inf where it cannot run. until_idle_s: how long
    what each instance has already still takes, ``[instances]``.
    """
    batches, instances = takes_s.shape
    can = np.isfinite(takes_s)
    cost = np.where(can, takes_s, 0.0)
    # Variables: the parts, batch after batch, then the time by which all have ended. Among equals, the least work.
    objective = np.append(cost.ravel() * 1e-3, 1.0)
    ends = np.zeros((instances, batches * instances + 1))
    whole = np.zeros((batches, batches * instances + 1))
    for b in range(batches):
        whole[b, b * instances : (b + 1) * instances] = 1.0
        ends[range(instances), range(b * instances, (b + 1) * instances)] = cost[b]
    ends[:, -1] = -1.0
    bounds = [(0.0, 1.0 if one else 0.0) for one in can.ravel()] + [(0.0, None)]
    found = linprog(objective, ends, -until_idle_s, whole, np.ones(batches), bounds, method="highs")
    parts: FloatArray = found.x[:-1].reshape(batches, instances)
    return parts


def _takes_s(batch: _Batch, instance: InstanceView, view: FleetView) -> float:
    """How long the batch takes on an idle instance, until its last request has ended, with the swap to its model."""
    if batch.model not in instance.models:
        return float("inf")
    prompt = sum(request.prompt_tokens for request in batch.requests) / len(batch.requests)
    longest = max(view.expected_output(request)[0] for request in batch.requests)
    swap_s = 0.0 if batch.model == instance.active else instance.swap_s(batch.model)
    prefill_s = instance.profile(batch.model).step_s(StepLoad.of([(max(int(prompt), 1), 0)], []))
    return swap_s + prefill_s + _decode_s(instance, batch.model, len(batch.requests), prompt, longest)


def _until_idle_s(instance: InstanceView, view: FleetView) -> float:
    """Until a switch in progress is over and the longest reply in flight has ended."""
    switch_s = max(instance.ready_s - view.now_s, 0.0)
    running = instance.in_flight
    if not running or instance.active is None:
        return switch_s
    generated = [instance.generated(request.request_id) for request in running]
    longest = max(view.expected_output(r, n)[0] for r, n in zip(running, generated, strict=True))
    context = sum(r.prompt_tokens - r.generated_tokens + n for r, n in zip(running, generated, strict=True))
    return switch_s + _decode_s(instance, instance.active, len(running), context / len(running), longest)


def _decode_s(instance: InstanceView, model: str, size: int, context: float, tokens: float) -> float:
    """How long ``size`` requests of ``context`` tokens each decode until each has ``tokens`` more."""
    tokens_in_all = size * int(context + tokens / 2.0)
    load = StepLoad(decode_seqs=size, decode_context_tokens=tokens_in_all)
    return tokens * instance.profile(model).step_s(load)
