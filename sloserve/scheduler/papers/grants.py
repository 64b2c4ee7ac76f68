"""The grant of each generation task and its group: what EconoServe remembers between two plans, by row index."""

from collections import Counter

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray, grown
from sloserve.scheduler.policy import NO_SLOTS

NO_GROUP = 0


class Grants:
    """Goals and groups of generation tasks.

    Attributes:
        goal: Predicted prompt and output tokens; 0 before the first prediction.
        rest: Tokens of the goal that were still to come when it was set; tasks are grouped by it.
        group: The group with which the goal was granted; ``NO_GROUP`` while the task waits.
        group_ended: Whether a group has lost its last member since this was set to false.
        first_left: Tokens still to come by the first prediction, 0 before it.
        first_output: Output tokens at the time of the first prediction.
    """

    def __init__(self) -> None:
        self.goal: IntArray = NO_SLOTS
        self.rest: IntArray = NO_SLOTS
        self.group: IntArray = NO_SLOTS
        self.first_left: FloatArray = np.empty(0)
        self.first_output: IntArray = NO_SLOTS
        self.group_ended = False
        self._members: Counter[int] = Counter()
        self._next_group = NO_GROUP + 1

    def __len__(self) -> int:
        """Return how many requests have a grant."""
        return self._members.total()

    def enter(self, slot: int, capacity: int) -> None:
        """Add a new request, without a grant.

        Args:
            slot: Slot of the request.
            capacity: Capacity of the request table, in slots.
        """
        if capacity > self.goal.size:
            self.goal, self.rest, self.group = (grown(one, capacity) for one in (self.goal, self.rest, self.group))
            self.first_left, self.first_output = grown(self.first_left, capacity), grown(self.first_output, capacity)
        self.goal[slot] = self.rest[slot] = 0
        self.first_left[slot] = 0.0
        self.group[slot] = NO_GROUP

    def predicted(self, slots: IntArray, left: FloatArray, output: IntArray) -> None:
        """Note that ``left`` tokens were predicted after ``output``; only the first prediction of each is kept."""
        new = self.first_left[slots] == 0.0
        self.first_left[slots[new]], self.first_output[slots[new]] = left[new], output[new]

    def grant(self, slots: IntArray, bucket: IntArray | None) -> None:
        """Let these tasks run: tasks of one bucket as a group, or each in a group of its own."""
        of = np.arange(slots.size) if bucket is None else np.unique(bucket, return_inverse=True)[1]
        groups = self._next_group + of
        self.group[slots] = groups
        self._members.update(groups.tolist())
        self._next_group += slots.size

    def leave(self, slots: IntArray) -> None:
        """Remove tasks that have ended, used up their grants or lost their KV; the rest of their groups runs on."""
        for group in self.group[slots].tolist():
            if group == NO_GROUP:
                continue
            self._members[group] -= 1
            if not self._members[group]:
                del self._members[group]
                self.group_ended = True
        self.group[slots] = NO_GROUP
