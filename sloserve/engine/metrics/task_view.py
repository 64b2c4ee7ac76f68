"""The tasks of a server as watchers see them: the ones with the nearest deadlines, by a part of their number."""

from collections.abc import Sequence
from typing import Any, Final

from sloserve.engine.metrics.task_page import KnownTask, OpenTasks

MOST_SHOWN: Final = 20
"""Tasks in a view; the others are counted."""
_NAME_BITS: Final = 32


def tasks_now(found: OpenTasks, classes: Sequence[str], at_s: float, now_s: float) -> dict[str, Any]:
    """Return the tasks that have not ended, the one that is due first at the front.

    A task of which all calls that its client expects have ended is ``called``, and comes after the others: it waits for
    no deadline, since usually no call follows.

    ``tasks`` holds a row for each task of ``found``, ``open_tasks`` the number of all.

    Args:
        found: The tasks.
        classes: Names of the service classes.
        at_s: The present time in epoch seconds.
        now_s: The present time by the monotonic clock, in seconds.
    """

    def row(key: int, task: KnownTask) -> dict[str, Any]:
        return {
            "name": f"{key >> _NAME_BITS:08x}",
            "class": classes[task.class_id],
            "calls": task.calls,
            "expected": task.hint,
            "open": task.open,
            "began_s": round(at_s - (now_s - task.began_s), 1),
            "due_s": None if task.due_s is None else round(at_s + (task.due_s - now_s), 1),
            "tools_s": round(task.tools_s, 1),
            "called": task.hint is not None and task.calls >= task.hint and not task.open,
            "engine_s": round(task.engine_s, 3),
            "kv_s": round(task.kv_s, 3),
        }

    rows = [row(key, task) for key, task in found.least_slack.items()]
    return {
        "tasks": sorted(rows, key=lambda one: bool(one["called"])),
        "open_tasks": sum(found.of_class),
    }
