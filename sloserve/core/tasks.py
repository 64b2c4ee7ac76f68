"""What a request states of its task: several calls with tools or a user between them, of which the last is awaited.

An agent that calls a model, runs a tool and calls again sends such a task. Its user waits for the task, not for a call,
so that the task may have one deadline for all of its calls.
"""

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Final

MOST_CALLS: Final = 100_000
"""Largest number of calls that a client may state for one task."""
MOST_TASKS: Final = 4096
"""Tasks that are known at a time; the one without a call for the longest time is forgotten first."""


@dataclass(frozen=True, slots=True)
class TaskCall:
    """The task of a request, as of this call.

    Args:
        key: Name of the task; no two tenants of a deployment have tasks of the same key.
        due_s: Time in seconds at which the last call of the task should have ended: epoch seconds, or seconds from the
            start of a run in virtual time; ``None`` if the task has no deadline.
        calls: Number of calls that the client expects the whole task to make; ``None`` if it does not say.
        last: Whether the client says that no further call follows.
    """

    key: str
    due_s: float | None = None
    calls: int | None = None
    last: bool = False

    def later(self, seconds: float) -> "TaskCall":
        """Return the call with its deadline by a clock that is ahead by ``seconds``, such as the start of a run."""
        return self if self.due_s is None else replace(self, due_s=self.due_s + seconds)


class TaskNumbers:
    """Numbers of tasks by key, from 1 in the order of their first calls; no number is given twice."""

    def __init__(self) -> None:
        self._number_of: OrderedDict[str, int] = OrderedDict()
        self._next = 1

    def number_of(self, call: TaskCall | None) -> int:
        """Return the number of the task that a new request is a call of; 0 for a request that is no part of a task."""
        if call is None:
            return 0
        number = self._number_of.get(call.key)
        if number is None:
            number, self._next = self._next, self._next + 1
            if len(self._number_of) == MOST_TASKS:
                self._number_of.popitem(last=False)
            self._number_of[call.key] = number
        self._number_of.move_to_end(call.key)
        return number
