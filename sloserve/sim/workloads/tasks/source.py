"""Drive the plans of tasks through an engine in virtual time: the closed loop of a simulation."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from sloserve.core.outcome import Outcome
from sloserve.core.request import WorkloadRequest
from sloserve.core.slo import SLO
from sloserve.core.task_outcome import TaskOutcome
from sloserve.core.tasks import TaskCall
from sloserve.sim.closed_loop import Source
from sloserve.sim.workloads.tasks.plan import TaskPlan
from sloserve.sim.workloads.tasks.progress import Sends, TaskProgress


@dataclass(frozen=True, slots=True)
class TaskHints:
    """What a client states of the task with each of its calls.

    Args:
        task: Whether it names the task at all; if not, nothing else is stated either.
        deadline: Whether it states the task's deadline, where there is one.
        calls_factor: The number of calls that it states, as a multiple of the true number; ``None`` to state none.
        last: Whether it marks the last call.
    """

    task: bool = True
    deadline: bool = True
    calls_factor: float | None = None
    last: bool = False

    def of_call(self, plan: TaskPlan, i: int) -> TaskCall | None:
        """Return what call ``i`` of ``plan`` states; ``None`` if the client does not name the task."""
        if not self.task:
            return None
        calls = len(plan.calls)
        return TaskCall(
            plan.key,
            due_s=plan.due_s if self.deadline and plan.due_s < math.inf else None,
            calls=None if self.calls_factor is None else max(1, round(self.calls_factor * calls)),
            last=self.last and i == calls - 1,
        )


NO_HINTS = TaskHints(task=False)
"""The hints of a client that states nothing of its tasks."""


def call_request(plan: TaskPlan, i: int, arrival_s: float, slo: SLO, hints: TaskHints) -> WorkloadRequest:
    """Return call ``i`` of ``plan`` as a request that is sent at ``arrival_s``.

    Args:
        plan: The task.
        i: Index of the call.
        arrival_s: Time in seconds from the start of the run.
        slo: The SLO of the call itself.
        hints: What the client states of the task.
    """
    return WorkloadRequest(
        plan.request_id(i),
        arrival_s,
        plan.prompt_tokens(i),
        plan.output_tokens(i),
        slo,
        task=plan.calls[i].kind,
        priority=slo.slo_class.rank,
        prefix_ids=plan.prefix_ids(i),
        prefix_block_tokens=plan.block_tokens,
        call=hints.of_call(plan, i),
    )


class TaskSource(Source):
    """The closed loop of tasks: a call is sent when the calls that it follows have completed and its tool has run.

    A run uses a source up. Calls that were already handed to the engine when another call of their task fails are
    served nevertheless.

    Args:
        plans: The tasks.
        slos: SLOs of the calls of each task.
        hints: What clients state of their tasks.
        on_progress: Called with the number of tasks that have ended or failed, when it grows; ``None`` for no one.
    """

    def __init__(
        self,
        plans: Sequence[TaskPlan],
        slos: Sequence[Sequence[SLO]],
        hints: TaskHints = TaskHints(),
        on_progress: Callable[[int], None] | None = None,
    ) -> None:
        self._on_progress = on_progress
        self._num_over = 0
        self._hints = hints
        self._tasks = [TaskProgress(plan) for plan in plans]
        self._slos = {plan.number: of_calls for plan, of_calls in zip(plans, slos, strict=True)}
        self._calls: dict[str, tuple[TaskProgress, int]] = {}

    def first(self) -> Iterable[WorkloadRequest]:
        return [request for task in self._tasks for request in self._sent(task, task.first())]

    def after(self, request: WorkloadRequest, outcome: Outcome, now_s: float) -> Iterable[WorkloadRequest]:
        task, i = self._calls.pop(request.request_id)
        was_over = task.is_over
        follow = task.ended(i, now_s, completed=outcome is Outcome.COMPLETED)
        if task.is_over and not was_over:
            self._num_over += 1
            if self._on_progress is not None:
                self._on_progress(self._num_over)
        return self._sent(task, follow)

    def request(self, plan: TaskPlan, i: int, arrival_s: float) -> WorkloadRequest:
        """Return call ``i`` of ``plan`` as it is sent at ``arrival_s``."""
        return call_request(plan, i, arrival_s, self._slos[plan.number][i], self._hints)

    def call_of(self, request: WorkloadRequest) -> tuple[TaskPlan, int]:
        """Return the task of a request that is under way, and the index of the call."""
        task, i = self._calls[request.request_id]
        return task.plan, i

    def outcomes(self) -> list[TaskOutcome]:
        """Return the outcome of each task up to now, in the order of the plans."""
        return [task.outcome() for task in self._tasks]

    def _sent(self, task: TaskProgress, sends: Sends) -> list[WorkloadRequest]:
        requests = []
        for i, at_s in sends:
            request = self.request(task.plan, i, at_s)
            self._calls[request.request_id] = task, i
            requests.append(request)
        return requests
