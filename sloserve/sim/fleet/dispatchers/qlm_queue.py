"""QLM's operations: what one instance does for its virtual queue.

It pulls from its head group while that is of the active model, then from the next of the same model. When the head
changes, running requests that are due much later give way to it. When the head is of another model, the instance turns
to that: streams drain or are parked, whatever costs less. Models further back are kept in host memory.

Source: QLM, Sec. 5.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sloserve.estimator.completion.group_time import Serving, group_times
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.lso.draining import drain_s, later_s
from sloserve.lso.fleet_operations import FleetOperations, Queued, fleet_operations
from sloserve.scheduler.qlm.contract import GroupSums, ModelState, RunningSums
from sloserve.scheduler.qlm.groups import Groups, Member
from sloserve.sim.fleet.contract import (
    Drop,
    FleetView,
    Give,
    Held,
    InstanceView,
    Operation,
    Preempt,
    Switch,
    Warm,
)
from sloserve.sim.fleet.dispatchers.prefixes import Router
from sloserve.sim.fleet.dispatchers.room import Room

_PREEMPT_MARGIN_S = 30.0
_MAX_PREEMPTIONS = 3
"""As policy ``edf`` has them: who gives way is due later by so much, and a request gives way no more often."""


@dataclass(frozen=True, slots=True)
class Operations:
    """Which of QLM's operations there are; each can be left out, to see what it is worth.

    pull: instances take no more than they can admit; else all that their queue has of the active model. preempt:
    running requests give way to a new head. swap: KV of requests that give way or are parked is kept. warm: weights are
    kept in host memory. balance: the planner assigns groups to instances; else any instance is as good. park: streams
    leave with their model where that costs less than to wait for their ends (lso/draining.py); else they drain.
    prefixes: expected hits in prefix caches count.
    """

    pull: bool = True
    preempt: bool = True
    swap: bool = True
    warm: bool = True
    balance: bool = True
    park: bool = False
    prefixes: bool = True


@dataclass(slots=True)
class Taken:
    """A request that was taken from its group ``ref``. preempted: how often it came back."""

    ref: int
    member: Member
    preempted: int = 0


@dataclass(slots=True)
class VirtualQueue:
    """One instance's. taken: of all instances, by request."""

    operations: Operations
    groups: Groups
    taken: dict[str, Taken]
    serving: Mapping[tuple[str, str], Serving]
    router: Router | None = None
    last_head: int | None = None
    gives_way: frozenset[int] = frozenset()

    def serve(self, instance: InstanceView, view: FleetView, queue: Sequence[GroupSums], room: Room) -> list[Operation]:
        """What the instance does now. queue: its groups, the head first."""
        asked = self._asked(instance, view, queue)
        drop = asked.drop if self.operations.warm else _warm(instance)
        operations: list[Operation] = [Drop(instance.name, model) for model in drop]
        cold = [model for model in asked.warm if instance.models[model] is ModelState.COLD]
        operations += [Warm(instance.name, model) for model in cold[:1]]
        if asked.activate is None:
            return operations + self._pull(instance, asked.pull, room)
        if instance.can_switch():
            operations.append(self._switch(instance, view, asked.activate, queue))
        return operations

    def _asked(self, instance: InstanceView, view: FleetView, queue: Sequence[GroupSums]) -> FleetOperations:
        head = queue[0].ref if queue else None
        asked = fleet_operations(
            [Queued(group.ref, group.model, group.first_due_s) for group in queue],
            active=instance.active,
            last_head=self.last_head,
            running=self._running(instance) if head is not None and head != self.last_head else (),
            warm=_warm(instance),
            weights_bytes={model: view.swaps[model, instance.device].weights_bytes for model in instance.models},
            host_bytes=instance.host_bytes if self.operations.warm else 0,
        )
        if head != self.last_head:
            self.last_head, self.gives_way = head, frozenset(asked.preempt)
        return asked

    def _running(self, instance: InstanceView) -> list[Queued]:
        """Groups that it runs requests of."""
        dues: dict[int, float] = {}
        for request in instance.in_flight:
            ref = self.taken[request.request_id].ref
            dues[ref] = max(dues.get(ref, request.due_s), request.due_s)
        return [Queued(ref, str(instance.active), due_s) for ref, due_s in dues.items()]

    def _pull(self, instance: InstanceView, refs: Sequence[int], room: Room) -> list[Operation]:
        operations: list[Operation] = []
        for ref in refs:
            while members := self.groups.head(ref, 1):
                (member,) = members
                elsewhere = None if self.router is None else self.router.elsewhere(member, instance)
                if elsewhere is None and self.operations.pull and not room.takes(int(member.prompt_tokens)):
                    give_way = self._make_room(instance, member, room) if ref == self.last_head else []
                    if not give_way:
                        return operations
                    operations += give_way
                self.groups.remove(member.request)
                before = self.taken.get(str(member.request))
                self.taken[str(member.request)] = Taken(ref, member, before.preempted if before else 0)
                taker = elsewhere or instance
                if self.router is not None:
                    self.router.given(member, taker)
                operations.append(Give(str(member.request), taker.name))
        return operations

    def _make_room(self, instance: InstanceView, member: Member, room: Room) -> list[Operation]:
        """Running requests that give way to one of the head group; none where they would not make room for it."""
        if not self.operations.preempt or not self.gives_way:
            return []
        found: list[Operation] = []
        candidates = [
            request
            for request in instance.in_flight
            if request.due_s >= member.due_s + _PREEMPT_MARGIN_S
            and self.taken[request.request_id].ref in self.gives_way
            and self.taken[request.request_id].preempted < _MAX_PREEMPTIONS
            and request.request_id not in room.leaving
        ]
        for request in sorted(candidates, key=lambda r: (-r.due_s, -r.arrival_s)):
            room.leaves(request.request_id, _context_tokens(instance, request))
            found.append(Preempt(request.request_id, instance.name, self.operations.swap))
            if room.takes(int(member.prompt_tokens)):
                return found
        return []

    def _switch(self, instance: InstanceView, view: FleetView, model: str, queue: Sequence[GroupSums]) -> Switch:
        """Streams of the active model drain for as long as that costs less than to park them."""
        copied_s, computed_s = self._move_s(instance)
        keep_kv = copied_s < computed_s
        if not self.operations.park:
            return Switch(instance.name, model, keep_kv=keep_kv)
        streams = Streams.of(instance, view)
        run = [group for group in queue if group.model == model]
        times = group_times(
            self.serving[model, instance.device],
            *(np.array([getattr(g, name) for g in run], float) for name in _SUMS),
        )
        comes_s = instance.swap_s(model)
        limit_s = drain_s(
            streams.remaining_s,
            streams.slack_s,
            streams.context_tokens * min(copied_s, computed_s),
            away_s=max(streams.away_s(instance, view, model), comes_s + float(times.work_s.sum())),
            waiting=np.array([float(group.requests) for group in run]),
            waiting_slack_s=np.array([group.first_due_s for group in run])
            - (view.now_s + comes_s + np.cumsum(times.work_s) - times.work_s + times.own_s),
        )
        return Switch(instance.name, model, limit_s, keep_kv)

    def _move_s(self, instance: InstanceView) -> tuple[float, float]:
        """What a token of a parked request costs of the engine's time, in seconds: two copies, or its computation."""
        model = str(instance.active)
        profile, limits = instance.profile(model), instance.limits(model)
        chunk = limits.max_num_batched_tokens
        computed_s = profile.step_s(StepLoad.of([(chunk, 0)], [])) / chunk
        if not (self.operations.swap and limits.swap_space_gib):
            return math.inf, computed_s
        return 2.0 * profile.kv_bytes_per_token / profile.link_bandwidth_gb_per_s / 1e9, computed_s


_SUMS = ("requests", "prompt_tokens", "output_tokens", "output_tokens2")


def _warm(instance: InstanceView) -> Sequence[str]:
    return [model for model, state in instance.models.items() if state is ModelState.WARM]


def _context_tokens(instance: InstanceView, request: Held) -> int:
    return request.prompt_tokens + instance.generated(request.request_id) - request.generated_tokens


@dataclass(slots=True)
class Streams:
    """What an instance has in flight, with what is expected of it; arrays ``[requests]``.

    remaining_s: until each ends, as fast as now. slack_s: by which it is then in time.
    """

    requests: Sequence[Held]
    generated: np.ndarray
    context_tokens: np.ndarray
    output_mean: np.ndarray
    output_sd: np.ndarray
    remaining_s: np.ndarray
    slack_s: np.ndarray

    @classmethod
    def of(cls, instance: InstanceView, view: FleetView) -> "Streams":
        requests = instance.in_flight
        generated = np.array([instance.generated(request.request_id) for request in requests])
        expected = [view.expected_output(r, int(n)) for r, n in zip(requests, generated, strict=True)]
        mean, sd = np.array(expected).reshape(-1, 2).T
        context = np.array([_context_tokens(instance, request) for request in requests])
        step_s = 0.0
        if requests:
            load = StepLoad(decode_seqs=len(requests), decode_context_tokens=int(context.sum()))
            step_s = instance.profile(requests[0].model).step_s(load)
        remaining_s = mean * step_s
        # One that is due at its first token and has it must not stand still at all.
        due_s = np.array(
            [
                -np.inf if r.until_first_token and n else r.due_s
                for r, n in zip(requests, generated.tolist(), strict=True)
            ]
        )
        return cls(requests, generated, context, mean, sd, remaining_s, due_s - view.now_s - remaining_s)

    def away_s(self, instance: InstanceView, view: FleetView, model: str | None = None) -> float:
        """The least time that one which is parked stands still, if ``model`` comes, or any other."""
        active = str(instance.active)
        back = view.swaps[active, instance.device]
        others = [other for other in instance.models if other != active] if model is None else [model]
        comes_s = min(instance.swap_s(other) for other in others)
        goes_s = min(back.seconds(view.swaps[other, instance.device], warm=True) for other in others)
        return comes_s + max(view.switching.max_wait_s, view.switching.min_active_s) + goes_s

    def sums(self, instance: InstanceView, view: FleetView, *, park: bool) -> RunningSums:
        """As a planner sees it. park: streams that lose nothing if they are parked do not keep their model."""
        if not self.requests:
            return RunningSums()
        new = self.generated <= np.array([request.generated_tokens for request in self.requests])
        keeps = np.ones(len(self.requests), np.bool_)
        if park and len(instance.models) > 1:
            keeps = later_s(self.slack_s, self.away_s(instance, view)) > 0.0
        return RunningSums(
            len(self.requests),
            float(self.context_tokens[new].sum()),
            float(self.context_tokens[~new].sum()),
            float(self.output_mean.sum()),
            float((self.output_mean**2 + self.output_sd**2).sum()),
            float(self.output_mean[keeps].max(initial=0.0)),
        )
