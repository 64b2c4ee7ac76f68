"""Prediction of when a task will end, by the habits of its class and tenant, calibrated by earlier predictions."""

from bisect import bisect_right
from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from typing import Final

from sloserve.core.predicted import LEVELS, MEDIAN, Quantiles
from sloserve.engine.metrics.task_page import KnownTask
from sloserve.engine.metrics.task_table import EndedTask, StartedCall
from sloserve.estimator.conformal import ConformalQuantiles, Prediction
from sloserve.estimator.tasks import TaskHabits

MOST_GROUPS: Final = 256
"""Most combinations of class and tenant that are learned apart; the idlest goes first."""
_STAGES: Final = (2, 5, 17)
"""Numbers of calls from which predictions are calibrated apart: they are surer, the less of a task is left."""


@dataclass(slots=True)
class _Group:
    """What the tasks of one class and tenant do."""

    habits: TaskHabits = field(default_factory=TaskHabits)
    calibrations: defaultdict[int, ConformalQuantiles] = field(
        default_factory=lambda: defaultdict(lambda: ConformalQuantiles(LEVELS))
    )


@dataclass(frozen=True, slots=True)
class _OpenPrediction:
    """A prediction of the rest of a task, made at ``at_s``, that its end will judge."""

    calibration: ConformalQuantiles
    prediction: Prediction
    at_s: float


class TaskPredictions:
    """Predictions of the times that tasks take, in one API process.

    Args:
        most: Most tasks of which predictions are kept to be judged.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._groups: OrderedDict[tuple[int, str | None], _Group] = OrderedDict()
        self._open: OrderedDict[tuple[int, int], dict[int, _OpenPrediction]] = OrderedDict()

    def call_begins(
        self, started: StartedCall, tenant: str | None, now_s: float, of_call: Quantiles | None
    ) -> Quantiles | None:
        """Learn from a call that begins; return how long its task takes from its first call to its end.

        Args:
            started: The call.
            tenant: Tenant of the call.
            now_s: The present time.
            of_call: Predicted time from the arrival of the call to its end; ``None`` if it is not known.

        Returns: ``None`` before enough tasks of its class and tenant have ended.
        """
        task, group = started.task, self._group(started.task.class_id, tenant)
        if started.tool_s is not None:
            group.habits.next_call(task.calls - 1, started.tool_s)
        rest = group.habits.rest_s(task.calls - 1, (MEDIAN,), calling=True)
        of_rest = None
        if rest is not None and rest.quantiles[MEDIAN] > 0.0:
            of_rest = self._predict(started, group, rest.quantiles[MEDIAN], now_s)
        found = of_call if task.is_last else of_rest
        passed_s = max(now_s - task.began_s, 0.0)
        return None if found is None else Quantiles(*(passed_s + at_s for at_s in found.each))

    def _predict(self, started: StartedCall, group: _Group, rest_s: float, now_s: float) -> Quantiles | None:
        """Return calibrated quantiles of the rest of a task, which the end of the task will judge."""
        stage = bisect_right(_STAGES, started.task.calls)
        calibration = group.calibrations[stage]
        prediction = calibration.predict(rest_s)
        of_task = self._open.setdefault((started.key, started.task.generation), {})
        of_task.setdefault(stage, _OpenPrediction(calibration, prediction, now_s))
        if len(self._open) > self._most:
            self._open.popitem(last=False)
        return None if prediction.quantiles is None else Quantiles(*(prediction.quantiles[level] for level in LEVELS))

    def call_ended(self, task: KnownTask, tenant: str | None, number: int, call_s: float) -> None:
        """Learn from a call that has ended.

        Args:
            task: Task of the call.
            tenant: Tenant of the call.
            number: Number of the call in its task, from 1.
            call_s: Seconds that it took.
        """
        self._group(task.class_id, tenant).habits.call_ended(number, call_s)

    def task_ended(self, ended: EndedTask) -> None:
        """Learn from a task that has ended, and judge the predictions of its end."""
        self._group(ended.task.class_id, ended.tenant).habits.task_ended(ended.task.calls)
        for one in self._open.pop((ended.key, ended.task.generation), {}).values():
            one.calibration.observe(one.prediction, max(ended.task.ended_s - one.at_s, 0.0))

    def _group(self, class_id: int, tenant: str | None) -> _Group:
        key = class_id, tenant
        found = self._groups.get(key)
        if found is None:
            if len(self._groups) >= MOST_GROUPS:
                self._groups.popitem(last=False)
            found = self._groups[key] = _Group()
        self._groups.move_to_end(key)
        return found
