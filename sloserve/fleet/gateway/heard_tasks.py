"""The tasks of which other gateways serve calls, as the reports of agents name them."""

from collections import OrderedDict
from collections.abc import Mapping

import numpy as np

from sloserve.core.clock import Clock
from sloserve.engine.metrics.task_page import TaskColumn, TaskPage
from sloserve.fleet.contract.reported_tasks import ReportedTask, reported_task


class HeardTasks:
    """A page of tasks as another process of this host would write it; the one not heard of for longest goes first.

    Args:
        size: Most tasks.
        clock: Clock of this process.
    """

    def __init__(self, size: int, clock: Clock) -> None:
        self.page = TaskPage(size)
        self._clock = clock
        self._place_of: OrderedDict[int, int] = OrderedDict()
        self._read: dict[str, str] = {}  # the last entry of each task, so that it is read once
        self._own: dict[int, tuple[int, float]] = {}  # generation and time of the last call through this gateway

    def heard(self, tasks: Mapping[str, str]) -> None:
        """Take in the tasks in the report of an instance."""
        for key, value in tasks.items():
            if self._read.get(key) == value:
                continue
            found = reported_task(key, value)
            if found is not None:
                self._write(*found)
            self._note(key, value)

    def known(self, text: str) -> None:
        """Note what this gateway itself states of a task, which it will hear again and knows better.

        Where its calls go to several instances, their reports name earlier calls beside the last one.

        Args:
            text: Value of ``x-sloserve-task``.
        """
        key, _, value = text.partition("=")
        self._note(key, value)
        found = reported_task(key, value)
        if found is not None:
            number, task = found
            self._own.pop(number, None)
            self._own[number] = task.generation, task.call_s
            if len(self._own) > self.page.keys.size:
                del self._own[next(iter(self._own))]

    def _note(self, key: str, value: str) -> None:
        self._read[key] = value
        if len(self._read) > 2 * self.page.keys.size:
            del self._read[next(iter(self._read))]

    def _write(self, number: int, task: ReportedTask) -> None:
        if (task.generation, task.call_s) <= self._own.get(number, (-1, 0.0)):
            return
        page, place = self.page, self._place_of.get(number)
        ahead_s = self._clock.now_s() - self._clock.monotonic_s()
        call_s = task.call_s - ahead_s
        if place is not None and _is_older(call_s, task.generation, page.rows[place]):
            return
        if place is None:
            full = len(self._place_of) == page.keys.size
            place = self._place_of.popitem(last=False)[1] if full else len(self._place_of)
            self._place_of[number] = place
        row = page.rows[place]
        page.keys[place] = 0
        row[:] = 0.0
        row[TaskColumn.BEGAN] = task.began_s - ahead_s
        row[TaskColumn.DUE] = row[TaskColumn.STATED] = np.nan
        if task.due_s is not None:
            row[TaskColumn.DUE], row[TaskColumn.STATED] = task.due_s - ahead_s, call_s
        row[TaskColumn.CALLS] = 1.0
        row[TaskColumn.ACTIVE] = row[TaskColumn.ENDED] = call_s
        row[TaskColumn.LAST] = row[TaskColumn.OVER] = task.last
        row[TaskColumn.GENERATION] = task.generation
        page.keys[place] = number
        self._place_of.move_to_end(number)


def _is_older(call_s: float, generation: int, row: np.ndarray) -> bool:
    """Return whether a report is of an earlier call than the row of its task."""
    known = int(row[TaskColumn.GENERATION])
    return generation < known or (generation == known and call_s < row[TaskColumn.ACTIVE])
