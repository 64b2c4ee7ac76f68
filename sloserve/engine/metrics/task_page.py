"""The page on which an API process publishes the tasks that it has served calls of.

Each of several API processes writes its own page and reads the others'. A row belongs to one task, under a number that
is made of its name with a key, and holds what this process has seen of the task. What all processes have seen together
is the sum of their rows (:func:`task_of`). A row becomes visible with its number, which is written last.
"""

import math
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sloserve.core.arrays import FloatArray
from sloserve.core.clock import Clock
from sloserve.core.slo import MAX_TARGET_S
from sloserve.engine.metrics.page_folder import TASKS, PageFile
from sloserve.engine.metrics.page_memory import PageMemory, found

REFRESH_S = 1.0
"""Seconds after which a process notices a started or ended API process."""


class TaskColumn(IntEnum):
    """The columns of a row; times are of the host's monotonic clock, in seconds.

    Attributes:
        BEGAN: When the first call of the task arrived, as far as this process knew at its own first call.
        DUE: Deadline of the task, nan for none; stated by a call that arrived at STATED, nan for none.
        HINT: Number of calls that its client expects, 0 if the client does not say.
        CALLS: Calls that began here, of which OPEN have not ended.
        TOOLS: Seconds before calls here in which no call of the task was open.
        ACTIVE: When a call began or ended here last.
        ENDED: When a call ended here last, 0 for never.
        LAST: Whether a call here was stated to be the last.
        OVER: Whether the task has ended.
        GENERATION: Number of tasks of the same name that had ended before.
        CLASS: Index of the class of its first call here.
        LATE: Whether it was counted as late here.
        BROKEN: Whether the call that ended here last was not completed.
        COUNTED: Whether it was counted as begun here.
        ENGINE: Seconds of the engine that its calls here used.
        KV: Seconds of the whole KV cache that its calls here used.
    """

    BEGAN = 0
    DUE = 1
    STATED = 2
    HINT = 3
    CALLS = 4
    OPEN = 5
    TOOLS = 6
    ACTIVE = 7
    ENDED = 8
    LAST = 9
    OVER = 10
    GENERATION = 11
    CLASS = 12
    LATE = 13
    BROKEN = 14
    COUNTED = 15
    ENGINE = 16
    KV = 17


class KnownTask(NamedTuple):
    """One task, as all API processes together have seen it.

    Args:
        generation: Number of tasks of the same name that had ended before.
        class_id: Index of the class of its first call.
        began_s: When its first call arrived, in seconds of the host's monotonic clock.
        due_s: Deadline of the task by the same clock; ``None`` for none.
        hint: Number of calls that its client expects; ``None`` if the client does not say.
        calls: Number of its calls so far.
        open: Calls that have not ended.
        tools_s: Seconds before its calls in which none of them was open.
        active_s: When a call began or ended last.
        ended_s: When a call ended last; 0 if none has.
        is_last: Whether a call was stated to be the last.
        is_over: Whether it has ended.
        is_late: Whether it was counted as late.
        is_broken: Whether the call that ended last was not completed.
        is_counted: Whether it was counted as begun.
        engine_s: Seconds of the engine that its ended calls used.
        kv_s: Seconds of the whole KV cache that its ended calls used.
    """

    generation: int
    class_id: int
    began_s: float
    due_s: float | None
    hint: int | None
    calls: int
    open: int
    tools_s: float
    active_s: float
    ended_s: float
    is_last: bool
    is_over: bool
    is_late: bool
    is_broken: bool
    is_counted: bool
    engine_s: float = 0.0
    kv_s: float = 0.0


class TaskPage:
    """The page of one process, as its writer or a reader has it.

    Attributes:
        keys: Number of the task of each row, 0 for a free row.
        rows: The rows, ``[size, len(TaskColumn)]``.
    """

    def __init__(self, size: int, memory: PageMemory | None = None) -> None:
        """Create a page of ``size`` rows, in memory of this process alone unless ``memory`` is given."""
        self.memory = memory
        self.keys: NDArray[np.uint64] = np.zeros(size, np.uint64) if memory is None else memory.words
        self.rows: FloatArray = (
            np.zeros((size, len(TaskColumn))) if memory is None else memory.floats.reshape(size, len(TaskColumn))
        )

    @staticmethod
    def published(size: int, rank: int, folder: Path | None = None) -> "TaskPage":
        """Create the page of this process, for the others to read. Raises: OSError when no file can be made."""
        floats = size * len(TaskColumn)
        memory = PageMemory.create(TASKS, rank, {"size": size}, floats=floats, words=size, scratch=0, folder=folder)
        return TaskPage(size, memory)

    @staticmethod
    def read(file: PageFile) -> "TaskPage":
        """Read the page in a file. Raises: OSError, or ValueError for a file that is no page of this version."""
        memory = PageMemory.open(file)
        return TaskPage(int(memory.facts["size"]), memory)

    def row(self, key: int) -> FloatArray | None:
        """Return the row of a task; ``None`` if it has none."""
        at = np.flatnonzero(self.keys == np.uint64(key))
        return self.rows[at[0]] if at.size else None

    def close(self) -> None:
        """Withdraw the page from the other processes; a second call has no effect."""
        if self.memory is not None:
            self.memory.close()


class TaskPages:
    """The pages of all API processes of this server, as one of them sees them."""

    def __init__(
        self, own: TaskPage, clock: Clock, folder: Path | None = None, *, heard: Sequence[TaskPage] = ()
    ) -> None:
        """Create the pages as this process sees them.

        Args:
            own: Page of this process; if it is not published, no other process of this host counts.
            clock: Clock of this process.
            folder: Folder of the pages; ``None`` for the usual one.
            heard: Pages of reported tasks that processes of other hosts serve.
        """
        self.own = own
        self._clock, self._folder, self._heard = clock, folder, heard
        self._others: list[TaskPage] = []
        self._looked_s: float | None = None

    @property
    def others(self) -> Sequence[TaskPage]:
        """Pages of the other processes, as of up to :data:`REFRESH_S` ago; their contents are of now."""
        memory = self.own.memory
        if memory is None:
            return self._heard
        now_s = self._clock.monotonic_s()
        if self._looked_s is None or now_s - self._looked_s >= REFRESH_S:
            self._looked_s = now_s
            known = {page.memory.path: page for page in self._others if page.memory is not None}

            def read(file: PageFile) -> TaskPage | None:
                is_other = file.path != memory.path and file.is_alive
                return (known.get(file.path) or TaskPage.read(file)) if is_other else None

            try:
                self._others = [page for page in found(TASKS, read, self._folder) if page is not None]
            except OSError:
                self._others = []
        return [*self._others, *self._heard]

    def every(self) -> list[TaskPage]:
        """Return all pages, this process' own first."""
        return [self.own, *self.others]

    def task(self, key: int) -> KnownTask | None:
        """Return the task with a number; ``None`` if no process has seen it."""
        rows = [row for page in self.every() if (row := page.row(key)) is not None]
        return task_of(rows) if rows else None

    def of_generation(self, key: int, generation: int) -> KnownTask | None:
        """Return one of the tasks of a name, which may have ended; ``None`` if no process has a row of it."""
        rows = [row for page in self.every() if (row := page.row(key)) is not None]
        rows = [row for row in rows if row[TaskColumn.GENERATION] == generation]
        return task_of(rows) if rows else None

    def open_tasks(self, now_s: float, idle_s: float, most: int = 0) -> "OpenTasks":
        """Return the tasks that have not ended.

        Args:
            now_s: The present time by the host's monotonic clock.
            idle_s: Seconds without a call after which a task has ended.
            most: Most tasks to return one by one.
        """
        pages = self.every()
        keys = np.concatenate([page.keys for page in pages])
        rows = np.concatenate([page.rows for page in pages])
        is_over = rows[:, TaskColumn.OVER] > 0
        age_s = now_s - rows[:, TaskColumn.ACTIVE]
        is_young = (age_s <= idle_s) | ((now_s <= rows[:, TaskColumn.DUE]) & (age_s <= MAX_TARGET_S))
        runs = ~is_over & ((rows[:, TaskColumn.OPEN] > 0) | is_young) & (keys > 0)
        ended = set(zip(keys[is_over].tolist(), rows[is_over, TaskColumn.GENERATION].tolist(), strict=True))
        for at in np.flatnonzero(runs & np.isin(keys, keys[is_over])).tolist():  # another process saw its end
            runs[at] = (int(keys[at]), float(rows[at, TaskColumn.GENERATION])) not in ended
        keys, rows = keys[runs], rows[runs]
        order = np.lexsort((rows[:, TaskColumn.BEGAN], np.nan_to_num(rows[:, TaskColumn.DUE], nan=np.inf)))
        keys, rows = keys[order], rows[order]
        _, first = np.unique(keys, return_index=True)
        classes = np.bincount(rows[first, TaskColumn.CLASS].astype(np.int64))
        shown: dict[int, KnownTask] = {}
        for at in np.sort(first)[:most].tolist():
            key = int(keys[at])
            task = self.task(key)
            if task is not None and is_running(task, now_s, idle_s):
                shown[key] = task
        return OpenTasks(classes.tolist(), shown)


class OpenTasks(NamedTuple):
    """The tasks that have not ended.

    Args:
        of_class: Number of them by the index of their class; classes after the last index have none.
        least_slack: Some of them by their number, the one that is due first at the front, and last those without a
            deadline.
    """

    of_class: list[int]
    least_slack: dict[int, KnownTask]


def is_running(task: KnownTask, now_s: float, idle_s: float) -> bool:
    """Return whether a task has ended neither by its client's word nor by its age.

    Its deadline prolongs it, but not beyond the largest target of a request after its last call: a deadline may lie in
    any future.
    """
    age_s = now_s - task.active_s
    is_young = age_s <= idle_s or (task.due_s is not None and now_s <= task.due_s and age_s <= MAX_TARGET_S)
    return not task.is_over and (task.open > 0 or is_young)


def task_of(rows: Sequence[FloatArray]) -> KnownTask:
    """Return the task of which ``rows`` are the parts of one or several processes; the latest of its name counts."""
    parts: list[list[float]] = [row.tolist() for row in rows]
    if len(parts) > 1:
        latest = max(part[TaskColumn.GENERATION] for part in parts)
        parts = [part for part in parts if part[TaskColumn.GENERATION] == latest]
    # Few numbers of few processes: Python is faster here than an array.
    (began, due, stated, hint, calls, running, tools, active, ended, last, over, generation, class_id, late, broken,
     counted, engine, kv) = zip(*parts, strict=True)  # fmt: skip
    first, final = began.index(min(began)), ended.index(max(ended))
    dated = [(at_s, due_s) for at_s, due_s in zip(stated, due, strict=True) if not math.isnan(at_s)]
    return KnownTask(
        generation=int(generation[0]),
        class_id=int(class_id[first]),
        began_s=began[first],
        due_s=max(dated)[1] if dated else None,
        hint=int(max(hint)) or None,
        calls=int(sum(calls)),
        open=int(sum(running)),
        tools_s=sum(tools),
        active_s=max(active),
        ended_s=ended[final],
        is_last=any(last),
        is_over=any(over),
        is_late=any(late),
        is_broken=bool(broken[final]),
        is_counted=any(counted),
        engine_s=sum(engine),
        kv_s=sum(kv),
    )
