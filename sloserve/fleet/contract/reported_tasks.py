"""What gateways tell each other of a task through an agent's report, so that it begins and is due once for all of them.

A gateway that sends a call of a task states the task in ``x-sloserve-task: KEY=VALUE``. The agent reports it for a few
seconds without reading the value, and every gateway remembers what it has read. The key is a hash that is made with the
fleet's secret, so that no text of a client is in it.
"""

import re
from dataclasses import dataclass
from typing import Final

TASK_HEADER: Final = "x-sloserve-task"
_STATED: Final = re.compile(r"([0-9a-f]{16})=([0-9.,]{1,80})")


@dataclass(frozen=True, slots=True)
class ReportedTask:
    """A task as of one of its calls.

    Args:
        generation: Number of tasks of the same name that had ended before, as far as the gateway knows.
        call_s: When the call arrived, in epoch seconds.
        began_s: When the first call of the task arrived, in epoch seconds.
        due_s: Deadline of the task in epoch seconds; ``None`` for none.
        last: Whether the call is stated to be the last.
    """

    generation: int
    call_s: float
    began_s: float
    due_s: float | None
    last: bool


def stated_task(key: int, task: ReportedTask) -> str:
    """Return the value of ``x-sloserve-task``.

    Args:
        key: Number of the task, from 1 to 2**64 - 1.
        task: The task.
    """
    due = "" if task.due_s is None else f"{max(task.due_s, 0.0):.3f}"
    return f"{key:016x}={task.generation},{task.call_s:.3f},{task.began_s:.3f},{due},{int(task.last)}"


def task_in(text: str) -> tuple[str, str] | None:
    """Return key and value in a value of ``x-sloserve-task``; ``None`` for a text of another form."""
    found = _STATED.fullmatch(text)
    return None if found is None else (found[1], found[2])


def reported_task(key: str, value: str) -> tuple[int, ReportedTask] | None:
    """Return the number and the task of an entry in a report; ``None`` for an entry of another form."""
    parts = value.split(",")
    if len(parts) != 5:
        return None
    try:
        number = int(key, 16)
        generation, call_s, began_s, last = int(parts[0]), float(parts[1]), float(parts[2]), parts[4] == "1"
        due_s = float(parts[3]) if parts[3] else None
    except ValueError:
        return None
    if not 0 < number < 2**64 or generation >= 2**53:
        return None
    return number, ReportedTask(generation, call_s, began_s, due_s, last)
