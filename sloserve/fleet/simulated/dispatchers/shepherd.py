"""``shepherd``: static batches, assigned to instances by a linear program, as where a batch takes a known time.

Batches are formed from requests of one model by deadline, with late requests last. An instance runs a batch to its end
before it takes the next: no request joins it. Whenever an instance is idle, a linear program shares the batches among
all instances so that the busiest ends first, with swaps and running work counted; of the batches that go mostly to it,
each instance serves the first by deadline. The rest of a batch gives way as a whole where another has more than
PREEMPT_FACTOR times as many requests in time; its requests go back to the queue, and their KV is computed again.

Source: SHEPHERD (NSDI 2023), as QLM, Sec. 8, compares with it. Differs: outputs take their expected time, since the
time of a batch is not known; requests that are late are served, not dropped; the factor is this package's own.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.optimize import linprog

from sloserve.core.arrays import FloatArray
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.fleet.simulated.dispatcher import (
    Dispatcher,
    Give,
    InstanceView,
    Operation,
    Preempt,
    SimulatedView,
    Switch,
    WaitingRequest,
)

PREEMPT_FACTOR: Final = 3.0
"""Factor of this package's own, since QLM names none: far enough above 1 that two batches do not take turns."""
_LOOK_S: Final = 0.5
"""Seconds between two looks for a batch that is worth a preemption: steps are shorter, outputs longer."""
_MOST = 48
"""Number of batches that are shared at once: the ones that are due first."""


@dataclass(frozen=True, slots=True)
class _Batch:
    """Requests that run as one batch.

    Args:
        is_late: Whether no request of it can be in time any more.
    """

    model: str
    requests: tuple[WaitingRequest, ...]
    is_late: bool

    @property
    def due_s(self) -> float:
        return min(request.due_s for request in self.requests)


class Shepherd(Dispatcher):
    """A dispatcher of static batches.

    Args:
        batch: Number of requests in a full batch; an idle instance may also take a smaller rest.
        preempt: Whether a batch may give way.
    """

    def __init__(self, batch: float = 32, *, preempt: bool = True) -> None:
        self._size, self._preempts = max(int(batch), 1), preempt
        self._waiting: dict[str, list[WaitingRequest]] = {}
        self._next: dict[str, _Batch] = {}  # by instance, the batch for which its model changes
        self._looked_s = -math.inf

    def begin(self, view: SimulatedView) -> Sequence[Switch]:
        return ()

    def arrived(self, request: WaitingRequest, view: SimulatedView) -> None:
        self._waiting.setdefault(request.model, []).append(request)

    def tick(self, view: SimulatedView) -> Sequence[Operation]:
        idle = [i for i in view.instances if i.serving and not i.num_in_flight and i.name not in self._next]
        operations = [*self._promised(view), *self._shared(idle, view)]
        if self._preempts and view.now_s >= self._looked_s + _LOOK_S:
            self._looked_s = view.now_s
            for instance in view.instances:
                if instance.serving and instance.num_in_flight:
                    operations += self._preempted(instance, view)
        return operations

    def _promised(self, view: SimulatedView) -> list[Operation]:
        """Give out the batches for which a model has come."""
        operations: list[Operation] = []
        for instance in view.instances:
            batch = self._next.get(instance.name)
            if batch is not None and instance.serving and instance.active == batch.model:
                del self._next[instance.name]
                operations += _given(batch, instance)
        return operations

    def _shared(self, idle: Sequence[InstanceView], view: SimulatedView) -> list[Operation]:
        """Share the batches, and return what the idle instances serve."""
        batches = self._batches(view.now_s) if idle else []
        if not batches:
            return []
        takes_s = np.array([[_takes_s(b, i, view) for i in view.instances] for b in batches])
        share = shares(takes_s, np.array([self._until_idle_s(i, view) for i in view.instances]))
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
            operations += _given(self._take(batch), instance)
            share[batches.index(batch)] = 0.0
        return operations

    def _preempted(self, instance: InstanceView, view: SimulatedView) -> list[Operation]:
        """Make the running batch give way to the one with most requests in time, if that is worth it."""
        least = PREEMPT_FACTOR * max(_running_in_time(instance, view), 1)
        able = [
            _Batch(model, tuple(timely[: self._size]), is_late=False)
            for model, waiting in self._waiting.items()
            if model in instance.models and (model == instance.active or instance.can_switch())
            if len(timely := [r for r in _by_deadline(waiting) if r.due_s > view.now_s]) > least
        ]
        if not able:
            return []
        values = [_in_time(batch, instance, view) for batch in able]
        if max(values) <= least:
            return []
        batch = self._take(able[int(np.argmax(values))])
        operations: list[Operation] = [Preempt(r.request_id, instance.name, keep_kv=False) for r in instance.in_flight]
        if batch.model == instance.active:
            return operations + _given(batch, instance)
        self._next[instance.name] = batch
        return [*operations, Switch(instance.name, batch.model)]

    def _take(self, batch: _Batch) -> _Batch:
        """Remove the requests of the batch from the waiting ones, and return the batch."""
        taken = {request.request_id for request in batch.requests}
        self._waiting[batch.model] = [r for r in self._waiting[batch.model] if r.request_id not in taken]
        return batch

    def _batches(self, now_s: float) -> list[_Batch]:
        found = []
        for model, waiting in self._waiting.items():
            ordered = _by_deadline(waiting)
            late = [request for request in ordered if request.due_s <= now_s]
            for of, is_late in ((ordered[len(late) :], False), (late, True)):
                found += [_Batch(model, tuple(of[k : k + self._size]), is_late) for k in range(0, len(of), self._size)]
        return sorted(found, key=lambda batch: (batch.is_late, batch.due_s))[:_MOST]

    def _until_idle_s(self, instance: InstanceView, view: SimulatedView) -> float:
        """Return the seconds until the instance is idle.

        It is idle when a switch in progress is over, with the batch that it is for, and the longest output in flight
        has ended.
        """
        promised = self._next.get(instance.name)
        switch_s = max(instance.ready_s - view.now_s, 0.0)
        if promised is not None:
            return switch_s + _takes_s(promised, instance, view)
        return switch_s + max((left_s for _, left_s in _running_s(instance, view)), default=0.0)


def shares(takes_s: FloatArray, until_idle_s: FloatArray) -> FloatArray:
    """Return each instance's part of each batch, ``[batches, instances]``, so that the busiest ends first.

    Args:
        takes_s: Seconds that the batch takes there, ``[batches, instances]``; inf where it cannot run.
        until_idle_s: Seconds of work that each instance still has, ``[instances]``.
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


def _by_deadline(waiting: Sequence[WaitingRequest]) -> list[WaitingRequest]:
    return sorted(waiting, key=lambda request: (request.due_s, request.arrival_s))


def _given(batch: _Batch, instance: InstanceView) -> list[Operation]:
    return [Give(request.request_id, instance.name) for request in batch.requests]


def _takes_s(batch: _Batch, instance: InstanceView, view: SimulatedView) -> float:
    """Return the seconds until the batch's last request ends on an idle instance, with the swap to its model."""
    if batch.model not in instance.models:
        return math.inf
    begins_s, token_s = _pace(batch, instance, view)
    return begins_s + token_s * max(view.expected_output(request)[0] for request in batch.requests)


def _in_time(batch: _Batch, instance: InstanceView, view: SimulatedView) -> int:
    """Return how many requests of the batch are in time if the instance begins with it now."""
    begins_s, token_s = _pace(batch, instance, view)
    begins_s += view.now_s
    return sum(begins_s + token_s * view.expected_output(r)[0] <= r.due_s for r in batch.requests)


def _pace(batch: _Batch, instance: InstanceView, view: SimulatedView) -> tuple[float, float]:
    """Return the seconds until the batch decodes on an idle instance, swap included, and seconds per later token."""
    size = len(batch.requests)
    prompt = sum(request.prompt_tokens for request in batch.requests) / size
    swap_s = 0.0 if batch.model == instance.active else instance.swap_s(batch.model)
    prefill_s = instance.profile(batch.model).step_s(StepLoad.of([(max(int(prompt), 1), 0)], []))
    longest = max(view.expected_output(request)[0] for request in batch.requests)
    return swap_s + prefill_s, _token_s(instance, batch.model, size, prompt, longest)


def _running_s(instance: InstanceView, view: SimulatedView) -> list[tuple[WaitingRequest, float]]:
    """Return the requests in flight, and the seconds that each still takes."""
    running = instance.in_flight
    if not running or instance.active is None:
        return []
    generated = [instance.generated(request.request_id) for request in running]
    left = [view.expected_output(r, n)[0] for r, n in zip(running, generated, strict=True)]
    context = sum(r.prompt_tokens - r.generated_tokens + n for r, n in zip(running, generated, strict=True))
    token_s = _token_s(instance, instance.active, len(running), context / len(running), max(left))
    return [(request, token_s * tokens) for request, tokens in zip(running, left, strict=True)]


def _running_in_time(instance: InstanceView, view: SimulatedView) -> int:
    """Return how many requests in flight are in time if they continue."""
    return sum(view.now_s + left_s <= request.due_s for request, left_s in _running_s(instance, view))


def _token_s(instance: InstanceView, model: str, size: int, context: float, tokens: float) -> float:
    """Return the seconds of a step that decodes ``size`` requests of ``context`` tokens with ``tokens`` to come."""
    tokens_in_all = size * int(context + tokens / 2.0)
    return instance.profile(model).step_s(StepLoad(decode_seqs=size, decode_context_tokens=tokens_in_all))
