"""Simple rules instead of the planner's search, for fleets that need no more, and for comparison.

An instance serves the model that it has until another takes it. A model that waits takes an instance that is idle:
nothing runs there, and nothing waits for its model. Rules differ in which model is first, and in when a model may take
an instance that is busy:

- ``on-demand``: first come, first served. A model that is active nowhere takes one at once.
- ``collate``: first come, first served. A model takes one when its oldest request has waited for ``max_wait_s``.
- ``edf``: earliest deadline first. A model takes one when its first request must begin to be in time, and nothing that
  waits for the instance's model is due sooner.
- ``sa``: as ``on-demand``. Instances of one model share its groups by free memory, and each anneals its own order
  (simulated annealing, Algorithm 2); under the other rules they take turns.

What does not have its turn yet is in no queue. Streams that are only expected hold nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from sloserve.estimator.completion.group_time import Serving
from sloserve.fleet.planner_rule import SA, Rule
from sloserve.fleet.planning.annealed import annealed_shares
from sloserve.scheduler.virtual_queues.contract import FleetPlan, GroupSums, InstanceState
from sloserve.scheduler.virtual_queues.problem import PlanSettings
from sloserve.scheduler.virtual_queues.qlm_planner import Foreseen, QLMPlanner

Share = Callable[[Sequence[int], Sequence[InstanceState]], list[list[int]]]
"""A function that divides groups, in the rule's order, among instances of their model into the queue of each."""


def in_turn(waiting: Sequence[int], having: Sequence[InstanceState]) -> list[list[int]]:
    """Deal the groups to the instances, one after another."""
    return [list(waiting[i :: len(having)]) for i in range(len(having))]


class RulePlanner(QLMPlanner):
    """A planner by a rule: a :class:`QLMPlanner` without its search."""

    def __init__(
        self, serving: Mapping[tuple[str, str], Serving], settings: PlanSettings, rule: Rule, *, seed: int = 0
    ) -> None:
        super().__init__(serving, settings, seed=seed)
        self._rule, self._serving, self._min_active_s = rule, serving, settings.min_active_s

    def search(self, foreseen: Foreseen) -> FleetPlan:
        turns = _Turns(self._rule, foreseen, self._serving, self._min_active_s)
        if self._rule.name == SA:
            return turns.plan(partial(annealed_shares, foreseen, self._serving, seed=self._seed))
        return turns.plan(in_turn)


class _Turns:
    """Makes one plan by a rule: it decides which instance switches to which model."""

    def __init__(
        self, rule: Rule, foreseen: Foreseen, serving: Mapping[tuple[str, str], Serving], min_active_s: float
    ) -> None:
        self._rule, self._foreseen, self._serving = rule, foreseen, serving
        self._state = state = foreseen.state
        self._waiting: dict[str, list[int]] = {}
        groups = foreseen.groups
        for k in sorted(range(len(groups)), key=lambda k: (rule.key(groups[k]), groups[k].ref)):
            self._waiting.setdefault(groups[k].model, []).append(k)
        self._free = [
            i
            for i in state.instances
            if i.ready_s <= state.now_s and state.now_s - i.activated_s >= min_active_s and not self._comes(i)
        ]

    def plan(self, share: Share) -> FleetPlan:
        state, groups = self._state, self._foreseen.groups
        coming = {i.name: model for i in state.instances if (model := self._comes(i)) is not None}
        for model in self._waiting:
            taken = self._taken(model, coming)
            if taken is not None:
                self._free.remove(taken)
                coming[taken.name] = model
        queues: dict[str, list[int]] = {i.name: [] for i in state.instances}
        for model, waiting in self._waiting.items():
            having = [i for i in state.instances if coming.get(i.name, i.active) == model]
            for instance, own in zip(having, share(waiting, having) if having else (), strict=True):
                queues[instance.name] = [groups[k].ref for k in own]
        named = {name: tuple(queue) for name, queue in queues.items()}
        return FleetPlan(named, self._foreseen.unserved, solver=self._rule.name)

    def _comes(self, instance: InstanceState) -> str | None:
        """Return the model to which the last plan switches the instance, while it is coming and still needed."""
        last = self._state.last
        head = next(iter(last.queues.get(instance.name, ())), None) if last is not None else None
        model = next((group.model for group in self._foreseen.groups if group.ref == head), None)
        return model if model != instance.active else None

    def _taken(self, model: str, coming: Mapping[str, str]) -> InstanceState | None:
        """Return the instance that switches to the model now, or ``None`` if none does."""
        state, head = self._state, self._waiting[model][0]
        having = [i for i in state.instances if i.active == model and i.name not in coming]
        if model in coming.values() or any(i.ready_s > state.now_s or self._has_room(i) for i in having):
            return None
        can = [i for i in self._free if model in i.models and i.active != model]
        idle = [i for i in can if not i.running.requests and i.active not in self._waiting]
        groups = self._foreseen.groups
        taken = idle or [
            i
            for i in can
            if self._rule.may_take(
                groups[head], self._first_of(i), state.now_s, self._served_s(i, head), is_active=bool(having)
            )
        ]
        return min(taken, key=lambda i: self._dearness(i, head), default=None)

    def _first_of(self, instance: InstanceState) -> GroupSums | None:
        waiting = self._waiting.get(instance.active or "")
        return None if waiting is None else self._foreseen.groups[waiting[0]]

    def _has_room(self, instance: InstanceState) -> bool:
        serving = self._serving.get((instance.active or "", instance.device))
        return serving is not None and instance.running.requests < serving.engine.max_num_seqs

    def _served_s(self, instance: InstanceState, group: int) -> float:
        problem, at = self._foreseen.problem, self._state.instances.index(instance)
        assert problem is not None
        return self._swap_s(instance, group) + float(problem.own_s[problem.kind[at], group])

    def _swap_s(self, instance: InstanceState, group: int) -> float:
        problem, at = self._foreseen.problem, self._state.instances.index(instance)
        assert problem is not None
        return float(problem.swap_s[at, problem.active[at], problem.model[group]])

    def _dearness(self, instance: InstanceState, group: int) -> tuple[float, ...]:
        """Return a sort key, least for the best instance to switch: fast, of a common model, with little to do."""
        of_model = sum(i.active == instance.active for i in self._state.instances)
        groups: Sequence[int] = self._waiting.get(instance.active or "", ())
        waiting = sum(self._foreseen.groups[k].requests for k in groups)
        return self._swap_s(instance, group), -of_model, waiting, instance.running.requests


def planner_of(
    text: str, serving: Mapping[tuple[str, str], Serving], settings: PlanSettings, seed: int = 0
) -> QLMPlanner:
    """Return the planner that the name in a fleet's file means. Raises: ConfigError."""
    rule = Rule.parse(text, settings.tail_max_wait_s)
    return QLMPlanner(serving, settings, seed=seed) if rule is None else RulePlanner(serving, settings, rule, seed=seed)
