"""How far one task is: which of its calls may be sent, and how it ended.

The same rules hold in a simulation and against a live endpoint.
"""

from sloserve.core.task_outcome import TaskOutcome
from sloserve.sim.workloads.tasks.plan import TaskPlan

Sends = list[tuple[int, float]]
"""The indices of calls with the times in seconds at which they are to be sent."""


class TaskProgress:
    """The progress of one task. Times are in seconds from the start of the run.

    A task of which a call did not complete ends unfinished: no further call is sent.
    """

    def __init__(self, plan: TaskPlan) -> None:
        self.plan = plan
        self.has_failed = False
        self._waits_for = [len(call.after) for call in plan.calls]
        self._followers: list[list[int]] = [[] for _ in plan.calls]
        for i, call in enumerate(plan.calls):
            for j in call.after:
                self._followers[j].append(i)
        self._sent_s: dict[int, float] = {}
        self._over_s: dict[int, float] = {}
        self._completed = 0

    def first(self) -> Sends:
        """Return the calls that follow no other call."""
        arrival_s = self.plan.arrival_s
        return self._sends([i for i, count in enumerate(self._waits_for) if not count], arrival_s)

    def ended(self, i: int, now_s: float, *, completed: bool) -> Sends:
        """Record that call ``i`` is over at ``now_s``, and return the calls that follow."""
        self._over_s[i] = now_s
        if not completed:
            self.has_failed = True
        if self.has_failed:
            return []
        self._completed += 1
        free = []
        for follower in self._followers[i]:
            self._waits_for[follower] -= 1
            if not self._waits_for[follower]:
                free.append(follower)
        return self._sends(free, now_s)

    def not_sent(self, i: int) -> None:
        """Record that call ``i``, which was to be sent, was not, since another call has failed."""
        del self._sent_s[i]

    def _sends(self, calls: list[int], now_s: float) -> Sends:
        sends = [(i, now_s + self.plan.calls[i].wait_s) for i in calls]
        self._sent_s.update(sends)
        return sends

    @property
    def is_complete(self) -> bool:
        """Whether every call has completed."""
        return self._completed == len(self.plan.calls)

    @property
    def is_over(self) -> bool:
        """Whether no further call will be sent."""
        return self.has_failed or self.is_complete

    def outcome(self) -> TaskOutcome:
        """Return the outcome of the task up to now."""
        plan = self.plan
        last_s = max(self._over_s.values(), default=plan.arrival_s)
        return TaskOutcome(
            key=plan.key,
            kind=plan.kind,
            arrival_s=plan.arrival_s,
            due_s=plan.due_s,
            ended_s=last_s if self.is_complete else None,
            calls=len(plan.calls),
            completed_calls=self._completed,
            requests=tuple(plan.request_id(i) for i in sorted(self._sent_s)),
            tools_s=last_s - plan.arrival_s - self._under_way_s(),
        )

    def _under_way_s(self) -> float:
        """Return the seconds in which at least one call was under way."""
        found_s, until_s = 0.0, self.plan.arrival_s
        for sent_s, over_s in sorted((self._sent_s[i], over_s) for i, over_s in self._over_s.items()):
            found_s += max(over_s - max(sent_s, until_s), 0.0)
            until_s = max(until_s, over_s)
        return found_s
