"""What a request states of its task: several calls, with tools or a user between them, of which somebody awaits the last.

An agent that calls a model, runs a tool and calls again sends such a task. Its user waits for the task, not for a call,
so that the task may have one deadline for all of its calls.
"""

from dataclasses import dataclass, replace
from typing import Final

MOST_CALLS: Final = 100_000
"""Largest number of calls that a client may state for one task."""


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

    def from_start(self, start_s: float) -> "TaskCall":
        """Return the call with its deadline in epoch seconds, of a run that starts at ``start_s``."""
        return self if self.due_s is None else replace(self, due_s=start_s + self.due_s)
