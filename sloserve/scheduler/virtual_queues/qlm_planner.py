"""The plan generator: keeps the last plan while it meets all deadlines, and searches when one would be missed.

Source: QLM, Sec. 7. Differs: the solver is a local search of a fixed number of moves (csrc/include/sloserve/
fleet_search.h), which plans hundreds of thousands of requests in under a second; a benchmark holds it against the
mixed-integer program. What is late whatever is planned does not count as a plan's fault.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from sloserve.core.kernels.fleet import FleetProblem, FleetQueues, fleet_search
from sloserve.estimator.completion.group_time import Serving
from sloserve.scheduler.virtual_queues.contract import FleetPlan, FleetState, GroupSums
from sloserve.scheduler.virtual_queues.idle_instances import use_idle
from sloserve.scheduler.virtual_queues.problem import PlanSettings, ProblemMaker, Times

_TRIALS = 5
"""Sizes of the fleet that are tried for a scale-up signal."""
_SLACK_S = 1.0
"""Lateness of a request that is taken for none in a scale-up signal; the estimate is not surer."""


@dataclass(frozen=True, slots=True, eq=False)
class Foreseen:
    """A state, and the facts by which a plan for it is judged; ``None`` if there are no groups to plan.

    Args:
        unserved: References of groups that no instance serves.
    """

    state: FleetState
    groups: list[GroupSums]
    unserved: tuple[int, ...]
    problem: FleetProblem | None


class QLMPlanner:
    """Planner of which instance serves which groups, in which order, by local search.

    Args:
        serving: Serving figures of each model on each kind of device that can serve it.
        settings: Weights of plans, and limits of the search.
        seed: Seed of the search.
    """

    def __init__(
        self,
        serving: Mapping[tuple[str, str], Serving],
        settings: PlanSettings | None = None,
        *,
        seed: int = 0,
    ) -> None:
        self._maker = ProblemMaker(serving, settings or PlanSettings())
        self._seed = seed

    def plan(self, state: FleetState) -> FleetPlan:
        """Return the plan: the last one, unless a missed deadline is foreseen that another plan avoids.

        Call it when a group or an instance comes or goes, and every few seconds. Times are foreseen again in each call.
        """
        return self.search(self.foresee(state))

    def times(self, state: FleetState) -> Times:
        """Return how long groups take: the first part of :meth:`foresee`, for callers with little time at once."""
        groups, _ = servable(state, self._maker)
        return self._maker.times(state, groups)

    def foresee(self, state: FleetState, times: Times | None = None) -> "Foreseen":
        """Return the facts by which a plan is judged: the first half of :meth:`plan`.

        Args:
            state: The state of the fleet.
            times: Times of the same state, if they are known.
        """
        groups, unserved = servable(state, self._maker)
        return Foreseen(state, groups, unserved, self._maker.problem(state, groups, times) if groups else None)

    def search(self, foreseen: "Foreseen") -> FleetPlan:
        """Search the order of the groups: the second half of :meth:`plan`."""
        state, groups, unserved, problem = foreseen.state, foreseen.groups, foreseen.unserved, foreseen.problem
        if problem is None:
            return FleetPlan({instance.name: () for instance in state.instances}, unserved, solver="kept")
        last = last_queues(state, groups, problem)
        settings = self._maker.settings
        kept = fleet_search(problem, last)
        unavoidable = unavoidable_s(problem)
        if state.last is not None and kept.late <= unavoidable:
            return as_plan(state, groups, self._use_idle(foreseen, kept), unserved, "kept")
        moves = settings.moves(len(groups))
        found = fleet_search(problem, last, moves=moves, seed=self._seed)
        known = state.last is not None and any(last)
        solver = "search"
        if known and found.cost >= found.start_cost * (1.0 - settings.least_gain):
            found, solver = kept, "kept"
        plan = as_plan(state, groups, self._use_idle(foreseen, found), unserved, solver)
        if not settings.scale_up or found.late <= unavoidable + _SLACK_S * float(problem.weight.sum()):
            return plan
        return replace(plan, instances_needed=instances_needed(problem, unavoidable))

    def _use_idle(self, foreseen: "Foreseen", found: FleetQueues) -> FleetQueues:
        if not self._maker.settings.use_idle or foreseen.problem is None:
            return found
        return use_idle(foreseen.state, foreseen.groups, foreseen.problem, found)


def servable(state: FleetState, maker: ProblemMaker) -> tuple[list[GroupSums], tuple[int, ...]]:
    """Return the groups that an instance of the state can serve, and the references of the others."""
    can = {model for instance in state.instances for model in instance.models if maker.serves(model, instance.device)}
    groups = [group for group in state.groups if group.model in can]
    return groups, tuple(group.ref for group in state.groups if group.model not in can)


def last_queues(state: FleetState, groups: list[GroupSums], problem: FleetProblem) -> list[list[int]]:
    """Return the last plan in indices, without groups and instances that are gone."""
    at = {group.ref: k for k, group in enumerate(groups)}
    found: list[list[int]] = [[] for _ in state.instances]
    if state.last is None:
        return found
    for i, instance in enumerate(state.instances):
        for ref in state.last.queues.get(instance.name, ()):
            k = at.get(ref)
            if k is not None and problem.swap_s[i, problem.model[k], problem.model[k]] == 0.0:
                found[i].append(k)
                del at[ref]
    return found


def as_plan(
    state: FleetState, groups: list[GroupSums], found: FleetQueues, unserved: tuple[int, ...], solver: str
) -> FleetPlan:
    """Return a plan with references in the place of indices."""
    queues = {
        instance.name: tuple(groups[k].ref for k in queue)
        for instance, queue in zip(state.instances, found.queues, strict=True)
    }
    return FleetPlan(queues, unserved, late_s=found.late, solver=solver)


def unavoidable_s(problem: FleetProblem) -> float:
    """Return the lateness of the groups if each were served alone, at once, where it is fastest: no plan has less."""
    used = np.unique(problem.kind)
    served = np.zeros((used.size, problem.model.size), np.bool_)
    for k, kind in enumerate(used):
        for i in np.flatnonzero(problem.kind == kind):
            served[k] |= problem.swap_s[i, problem.model, problem.model] == 0.0
    first = np.where(served, problem.judged_s[used], np.inf).min(axis=0)
    last = np.where(served, problem.judged_s[used] + problem.work_s[used], np.inf).min(axis=0)
    late = np.maximum(first - problem.first_due_s, 0.0) + np.maximum(last - problem.last_due_s, 0.0)
    return float(0.5 * (problem.weight * late).sum()) * (1.0 + 1e-9)


def instances_needed(problem: FleetProblem, unavoidable: float) -> int | None:
    """Return the scale-up signal: how many instances would keep all deadlines, to a second a request.

    The result is ``None`` if four times as many are not enough. The instances that are added are copies of the one that
    serves most models, empty. The first guess is the work that is due by each deadline over the time until then; where
    greedy queues miss deadlines, half as many again are tried.
    """
    present = problem.kind.size
    models = np.isfinite(np.diagonal(problem.swap_s, axis1=1, axis2=2)).sum(axis=1)
    copied = int(models.argmax())
    by_due = np.argsort(problem.last_due_s, kind="stable")
    demand = np.cumsum(problem.work_s[problem.kind[copied]][by_due])
    share = demand / np.maximum(problem.last_due_s[by_due], problem.own_s[problem.kind[copied]][by_due])
    extra = max(math.ceil(float(share.max())) - present, 1)
    slack = unavoidable + _SLACK_S * float(problem.weight.sum())
    for _ in range(_TRIALS):
        if extra > 3 * present + 4:
            return None
        if fleet_search(with_copies(problem, copied, extra)).late <= slack:
            return present + extra
        extra += max(extra // 2, 1)
    return None


def with_copies(problem: FleetProblem, copied: int, count: int) -> FleetProblem:
    """Return the problem with ``count`` idle copies of an instance added, each without a model."""

    return replace(
        problem,
        kind=np.append(problem.kind, [problem.kind[copied]] * count),
        active=np.append(problem.active, [-1] * count),
        ready_s=np.append(problem.ready_s, [0.0] * count),
        drained_s=np.append(problem.drained_s, [0.0] * count),
        swap_s=np.concatenate((problem.swap_s, np.repeat(problem.swap_s[copied : copied + 1], count, axis=0))),
    )
