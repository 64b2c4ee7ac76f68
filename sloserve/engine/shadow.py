"""Shadow mode: a second policy gets the same events, plans for the same snapshots, and is only scored.

Its plans pass the same check and guards as the plans of the policy in charge, are compared with them (see
:mod:`sloserve.engine.plan_score`) and thrown away. It has a planning budget of its own, and whatever it raises stays
here. It plans only where the policy in charge has just planned, so that both saw the same.
"""

from collections.abc import Callable
from typing import Any

from sloserve.core.arrays import IntArray
from sloserve.core.rows import Rows
from sloserve.engine.containment import ErrorLog
from sloserve.engine.guards import PlanBudget
from sloserve.engine.plan_score import NEEDS, AdmissionRate, admission_order, agreement, own_order, predicted_gain
from sloserve.estimator.planning_cost import PlanningCost
from sloserve.scheduler.policy import Plan, Policy, Snapshot, check_plan


class Shadow:
    """A policy with plans that are not carried out, and the sums of its scores.

    ``figures`` are plans made and errors; agreement and predicted gain, each as a sum over the plans that have one and
    their number.

    Args:
        cost: Cost of its plans in virtual time; ``None`` to measure it.
    """

    def __init__(self, policy: Policy, share: float, cost: PlanningCost | None = None) -> None:
        self.policy = policy
        self.needs = policy.needs | NEEDS
        self.rate = AdmissionRate()
        names = ("plans", "errors", "agreement_sum", "agreement_count", "gain_sum", "gain_count")
        self.figures = dict.fromkeys(names, 0.0)
        self._budget = PlanBudget(share)
        self._cost = cost
        self._errors = ErrorLog()

    def notify(self, event: str, rows: Rows, *args: Any) -> None:
        """Report an event: ``arrived``, ``progressed`` or ``finished``."""
        try:
            getattr(self.policy, event)(rows, *args)
        except Exception as error:
            self._count_error(error)

    def is_due(self, monotonic_s: float) -> bool:
        """Return whether the budget allows another plan."""
        return self._budget.allows(monotonic_s)

    def charged_s(self, snapshot: Snapshot) -> float | None:
        """Return the seconds that a plan for ``snapshot`` costs in virtual time; ``None`` where it is measured."""
        return None if self._cost is None else self._cost.plan.seconds(snapshot.running.size, snapshot.waiting.size)

    def consider(
        self,
        main: Plan,
        snapshot: Snapshot,
        guarded: Callable[[Plan, Snapshot], Plan],
        queue: Callable[[], IntArray],
        now_s: float,
        monotonic_s: float,
    ) -> float:
        """Plan for ``snapshot`` and compare with ``main``; return what that took, in seconds.

        Args:
            main: The plan that is carried out.
            snapshot: The engine's state for which it was made.
            guarded: Function that returns what the guards leave of a plan.
            queue: Function that returns slots in the order of the engine's queue, from which ``main`` starts.
            now_s: The present time, in epoch seconds.
            monotonic_s: The present time of a monotonic clock, in seconds.
        """
        self._budget.start()
        try:
            self._score(main, snapshot, guarded, queue, now_s)
        except Exception as error:
            self._count_error(error)
        finally:
            cost_s = self._budget.stop(monotonic_s, charged_s=self.charged_s(snapshot))
        return cost_s

    def _score(
        self,
        main: Plan,
        snapshot: Snapshot,
        guarded: Callable[[Plan, Snapshot], Plan],
        queue: Callable[[], IntArray],
        now_s: float,
    ) -> None:
        plan = self.policy.plan(snapshot, now_s)
        check_plan(plan, snapshot)
        plan = guarded(plan, snapshot)
        self.figures["plans"] += 1
        main_order = admission_order(main, snapshot, queue())
        order = admission_order(plan, snapshot, own_order(snapshot))
        self._add("agreement", agreement(main, main_order, plan, order, snapshot))
        self._add("gain", predicted_gain(main_order, order, snapshot, self.rate.per_s, now_s))

    def _add(self, name: str, score: float | None) -> None:
        if score is not None:
            self.figures[f"{name}_sum"] += score
            self.figures[f"{name}_count"] += 1

    def _count_error(self, error: Exception) -> None:
        self.figures["errors"] += 1
        self._errors.caught(error, f"shadow policy {type(self.policy).__name__} failed; it decides nothing")
