"""The tasks of a server: when each began, by when it is due, its calls so far, and how it ended.

A task begins with its first call that is let in. It ends when the call that its client says is the last has ended and
no other call of it is open; else when it has been idle for a time and its deadline, if it has one, has passed, and then
it ended with its last call. The next call of the same name begins another task.

Each of several API processes keeps what it has seen on its own page (:mod:`sloserve.engine.metrics.task_page`) and
reads the pages of the others, so that a task begins once and is due at one time whichever process serves its calls. Two
calls that begin a task in two processes in the same instant both begin it; from then on the earlier of the two times
counts. The process that served the latest call, or that begins the next task of the name, counts the end of a
task, once; the others see that it is over.

The table is bounded. If it is full, the task that was idle for the longest time has ended, and without any idle task
the new one is not known. Times are arguments, in seconds of the host's monotonic clock; the table must be used from one
thread.
"""

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from sloserve.core.arrays import FloatArray
from sloserve.core.served import UNUSED, InEngine
from sloserve.engine.metrics.task_page import KnownTask, OpenTasks, TaskColumn, TaskPages, is_running, task_of

IN_TIME, LATE, NO_DEADLINE, INCOMPLETE = "in_time", "late", "no_deadline", "incomplete"
OUTCOMES: Final = (IN_TIME, LATE, NO_DEADLINE, INCOMPLETE)
"""How a task ended: by its deadline, after it, without one, or with a last call that was not completed."""


@dataclass(frozen=True, slots=True)
class StartedCall:
    """A call of a task that has begun.

    Args:
        key: Number of the task.
        task: The task, with this call in it.
        tenant: Tenant of the call.
        arrival_s: When the call arrived.
        says_last: Whether it was stated to be the last.
        tool_s: Seconds since the end of the call before, if no other call is open; ``None`` for a first call.
    """

    key: int
    task: KnownTask
    tenant: str | None
    arrival_s: float
    says_last: bool
    tool_s: float | None

    @property
    def is_first(self) -> bool:
        """Whether the task began with it."""
        return self.task.calls == 1


@dataclass(frozen=True, slots=True)
class EndedTask:
    """A task that has ended.

    Args:
        key: Number of the task.
        task: The task as it ended.
        tenant: Tenant of the task.
        outcome: One of :data:`OUTCOMES`.
    """

    key: int
    task: KnownTask
    tenant: str | None
    outcome: str

    @property
    def seconds(self) -> float:
        """Seconds from its first call to the end of its last."""
        return max(self.task.ended_s - self.task.began_s, 0.0)


class TaskListener(Protocol):
    """What is called for tasks that begin, become late, and end."""

    def task_started(self, class_id: int, tenant: str | None) -> None:
        """Note that a task began; called once for a task, when a call of it ends, so that refused calls begin none."""

    def task_late(self, class_id: int, tenant: str | None) -> None:
        """Note, once for a task, that a call of it began or ended after its deadline."""

    def task_ended(self, ended: EndedTask) -> None:
        """Note that a task ended."""


class TaskTable:
    """The tasks that one API process knows, together with what the others have seen of them."""

    def __init__(self, pages: TaskPages, idle_s: float, listener: TaskListener) -> None:
        """Create an empty table.

        Args:
            pages: The pages of all processes.
            idle_s: Seconds without a call after which a task has ended.
            listener: What is called for tasks that begin, become late and end.
        """
        self._pages, self._idle_s, self._listener = pages, idle_s, listener
        self._place_of: dict[int, int] = {}
        self._free = list(range(pages.own.keys.size - 1, -1, -1))
        self._tenant_of: dict[int, str | None] = {}
        self._places_of: defaultdict[str | None, set[int]] = defaultdict(set)

    def __len__(self) -> int:
        return len(self._place_of)

    def running(self, key: int, now_s: float) -> KnownTask | None:
        """Return the task with a number, if it has begun and not ended."""
        task = self._seen(key)
        return task if task is not None and is_running(task, now_s, self._idle_s) else None

    def call_begins(
        self,
        key: int,
        now_s: float,
        *,
        class_id: int,
        tenant: str | None,
        e2e_s: float | None = None,
        due_s: float | None = None,
        hint: int | None = None,
        is_last: bool = False,
    ) -> StartedCall | None:
        """Record that a call begins; ``None`` if the table is full of tasks with open calls.

        Args:
            key: Number of the task.
            now_s: When the call arrived.
            class_id: Index of its class.
            tenant: Tenant of the call.
            e2e_s: Seconds from the task's first call to its deadline, if the call states them.
            due_s: The deadline by the host's monotonic clock, if the call states it.
            hint: Number of calls that the client expects, if the call states it.
            is_last: Whether the call is stated to be the last.
        """
        before = self._seen(key)
        goes_on = before is not None and is_running(before, now_s, self._idle_s)
        row = self._row(key, before, now_s, class_id, tenant, goes_on=goes_on)
        if row is None:
            return None
        if before is not None and not goes_on and not before.is_over:
            self._ended(key, before, tenant)
        tool_s = None
        if before is not None and goes_on and before.calls and not before.open:
            tool_s = max(now_s - before.ended_s, 0.0)
            row[TaskColumn.TOOLS] += tool_s
        if e2e_s is not None:
            due_s = float(row[TaskColumn.BEGAN]) + e2e_s
        if due_s is not None:
            row[TaskColumn.DUE], row[TaskColumn.STATED] = due_s, now_s
        row[TaskColumn.HINT] = row[TaskColumn.HINT] if hint is None else hint
        row[TaskColumn.LAST] = row[TaskColumn.LAST] or is_last
        row[TaskColumn.CALLS] += 1.0
        row[TaskColumn.OPEN] += 1.0
        self._touch(key, row, now_s)
        task = self._known(key)
        if self._becomes_late(row, task, tenant, now_s):
            task = task._replace(is_late=True)
        return StartedCall(key, task, tenant, now_s, is_last, tool_s)

    def call_ends(
        self, call: StartedCall, now_s: float, *, completed: bool, used: InEngine = UNUSED
    ) -> KnownTask | None:
        """Record that a call has ended; return its task as of now, or ``None`` if the table has forgotten it.

        Args:
            call: The call.
            now_s: When it ended.
            completed: Whether its output is complete.
            used: What it used of the engine.
        """
        place = self._place_of.get(call.key)
        row = None if place is None else self._pages.own.rows[place]
        if row is None or row[TaskColumn.GENERATION] != call.task.generation or not row[TaskColumn.OPEN]:
            return None
        tenant = self._tenant_of[call.key]
        row[TaskColumn.OPEN] -= 1.0
        self._touch(call.key, row, now_s)
        row[TaskColumn.ENDED] = row[TaskColumn.ACTIVE]
        row[TaskColumn.BROKEN] = not completed
        row[TaskColumn.ENGINE] += used.engine_s
        row[TaskColumn.KV] += used.kv_s
        task = self._known(call.key)
        if not task.is_counted:
            row[TaskColumn.COUNTED] = 1.0
            self._listener.task_started(task.class_id, tenant)
        if self._becomes_late(row, task, tenant, now_s):
            task = task._replace(is_late=True)
        if task.is_last and not task.open and not task.is_over:
            row[TaskColumn.OVER] = 1.0
            self._ended(call.key, task, tenant)
        return task

    def call_withdrawn(self, call: StartedCall) -> None:
        """Take back that a call began, since it was refused after all."""
        place = self._place_of.get(call.key)
        row = None if place is None else self._pages.own.rows[place]
        if row is None or row[TaskColumn.GENERATION] != call.task.generation or not row[TaskColumn.OPEN]:
            return
        row[TaskColumn.OPEN] -= 1.0
        row[TaskColumn.CALLS] -= 1.0
        row[TaskColumn.TOOLS] -= call.tool_s or 0.0
        row[TaskColumn.LAST] = row[TaskColumn.LAST] and not call.says_last
        if not row[TaskColumn.CALLS]:
            self._forget(call.key)

    def sweep(self, now_s: float) -> None:
        """End the tasks that were idle for too long, and forget the tasks that have ended."""
        rows = self._pages.own.rows
        for key, place in list(self._place_of.items()):
            if rows[place, TaskColumn.OPEN] or now_s - rows[place, TaskColumn.ACTIVE] <= self._idle_s:
                continue
            if is_running(self._own(key), now_s, self._idle_s):
                continue
            if not self._end_by_age(key) or all(page.row(key) is None for page in self._pages.others):
                self._forget(key)

    def open_tasks(self, now_s: float, most: int = 0) -> OpenTasks:
        """Return the tasks of all processes that have not ended, and at most ``most`` of them one by one."""
        return self._pages.open_tasks(now_s, self._idle_s, most)

    def _seen(self, key: int) -> KnownTask | None:
        """Return the latest task of a name; ``None`` if no process has a row of one."""
        place = self._place_of.get(key)
        rows = [] if place is None else [self._pages.own.rows[place]]
        rows += [row for page in self._pages.others if (row := page.row(key)) is not None]
        return task_of(rows) if rows else None

    def _known(self, key: int) -> KnownTask:
        """Return the latest task of a name that has a row on this process' page."""
        found = self._seen(key)
        assert found is not None
        return found

    def _own(self, key: int) -> KnownTask:
        """Return the task of which this process' page has a row, also where a later one of its name has begun."""
        row = self._pages.own.rows[self._place_of[key]]
        return self._pages.of_generation(key, int(row[TaskColumn.GENERATION])) or task_of([row])

    def _row(
        self, key: int, before: KnownTask | None, now_s: float, class_id: int, tenant: str | None, *, goes_on: bool
    ) -> FloatArray | None:
        """Return this process' row of the task of which a call begins; ``None`` if there is no room for it."""
        place, generation = self._place_of.get(key), 0
        if before is not None:
            generation = before.generation + (not goes_on)
        page = self._pages.own
        if place is not None and page.rows[place, TaskColumn.GENERATION] == generation:
            found: FloatArray = page.rows[place]
            return found
        if place is not None:
            self._forget(key)
        elif not self._free and not self._forget_idlest():
            return None
        place = self._free.pop()
        row: FloatArray = page.rows[place]
        row[:] = 0.0
        row[TaskColumn.BEGAN] = before.began_s if before is not None and goes_on else now_s
        row[TaskColumn.DUE] = row[TaskColumn.STATED] = np.nan
        row[TaskColumn.ACTIVE] = now_s
        row[TaskColumn.GENERATION], row[TaskColumn.CLASS] = generation, class_id
        page.keys[place] = key
        self._place_of[key], self._tenant_of[key] = place, tenant
        self._places_of[tenant].add(place)
        return row

    def _becomes_late(self, row: FloatArray, task: KnownTask, tenant: str | None, now_s: float) -> bool:
        if task.due_s is None or now_s <= task.due_s or task.is_late or task.is_over or not task.ended_s:
            return False
        row[TaskColumn.LATE] = 1.0
        self._listener.task_late(task.class_id, tenant)
        return True

    def _end_by_age(self, key: int) -> bool:
        """Record the end of a task that is idle, unless another process has served its latest call.

        Where another task of its name has begun, the process that began it has recorded the end.

        Returns: Whether this process has counted the end of the task, now or before.
        """
        row, task = self._pages.own.rows[self._place_of[key]], self._own(key)
        if self._known(key).generation > task.generation:
            return False
        if not task.is_over and row[TaskColumn.ACTIVE] == task.active_s:
            row[TaskColumn.OVER] = 1.0
            self._ended(key, task, self._tenant_of[key])
        return bool(row[TaskColumn.OVER])

    def _touch(self, key: int, row: FloatArray, now_s: float) -> None:
        """Record that a call begins or ends, after all that other processes have recorded of the task."""
        others = (
            float(found[TaskColumn.ACTIVE]) for page in self._pages.others if (found := page.row(key)) is not None
        )
        row[TaskColumn.ACTIVE] = max(now_s, math.nextafter(max(others, default=-math.inf), math.inf))

    def _ended(self, key: int, task: KnownTask, tenant: str | None) -> None:
        if task.is_late:
            outcome = LATE
        elif task.is_broken:
            outcome = INCOMPLETE
        elif task.due_s is None:
            outcome = NO_DEADLINE
        else:
            outcome = IN_TIME if task.ended_s <= task.due_s else LATE
        self._listener.task_ended(EndedTask(key, task, tenant, outcome))

    def _forget_idlest(self) -> bool:
        """Make room for a task, and return whether there is room.

        A task that has ended goes first, and then one of the tenant that has most of the tasks, so that no tenant can
        displace the tasks of the others.
        """
        rows = self._pages.own.rows
        idle = rows[:, TaskColumn.OPEN] == 0
        places = np.flatnonzero(idle & (rows[:, TaskColumn.OVER] > 0))
        if not places.size:
            most = max(self._places_of.values(), key=lambda of_tenant: len(of_tenant))
            of_most = np.fromiter(most, np.int64, len(most))
            places = of_most[idle[of_most]]
        if not places.size:
            places = np.flatnonzero(idle)
        if not places.size:
            return False
        key = int(self._pages.own.keys[places[rows[places, TaskColumn.ACTIVE].argmin()]])
        self._end_by_age(key)
        self._forget(key)
        return True

    def _forget(self, key: int) -> None:
        place, tenant = self._place_of.pop(key), self._tenant_of.pop(key)
        self._pages.own.keys[place] = 0
        self._free.append(place)
        self._places_of[tenant].discard(place)
        if not self._places_of[tenant]:
            del self._places_of[tenant]
