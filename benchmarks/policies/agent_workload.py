"""What clients state of each call of an agent's task in the benchmark of agents, and the closed loop that states it."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from sloserve.core.outcome import Outcome
from sloserve.core.request import WorkloadRequest
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.estimator.step_time.profile import Profile
from sloserve.sim.workloads.tasks.plan import TaskPlan
from sloserve.sim.workloads.tasks.source import NO_HINTS, TaskHints, TaskSource


@dataclass(frozen=True, slots=True)
class Call:
    """One call as a client knows it when it sends it.

    Args:
        left_s: Seconds that are left of the task's deadline; negative if it has passed.
        attained_s: Seconds of engine time that the earlier calls of the task took, about.
    """

    left_s: float
    attained_s: float


Statement = Callable[[Call], tuple[Targets, int]]
"""A function from a call to the targets and the priority that its client states."""


def nothing(call: Call) -> tuple[Targets, int]:
    """State nothing."""
    return Targets(), 0


def deadline(call: Call) -> tuple[Targets, int]:
    """State the time that is left of the task's deadline as the call's e2e target; once none is left, nothing."""
    return Targets(e2e_s=call.left_s if 0.0 < call.left_s < math.inf else None), 0


def each_15_s(call: Call) -> tuple[Targets, int]:
    """State an e2e target of 15 s for each call."""
    return Targets(e2e_s=15.0), 0


def least_attained(call: Call) -> tuple[Targets, int]:
    """State the task's level of attained service as the priority; the time of a level doubles (Autellix)."""
    return Targets(), math.floor(math.log2(1.0 + call.attained_s / 2.0))


class AgentLoop(TaskSource):
    """The closed loop of tasks whose calls state targets and a priority by a rule, and their task where asked to."""

    def __init__(
        self, plans: Sequence[TaskPlan], statement: Statement, profile: Profile, *, states_tasks: bool = False
    ) -> None:
        own = DEFAULT_CLASSES.slo(None, Targets())
        hints = TaskHints(calls_factor=1.0, last=True) if states_tasks else NO_HINTS
        super().__init__(plans, [[own] * len(plan.calls) for plan in plans], hints)
        self._statement = statement
        # A step of a moderate load; only the sizes of a task relative to other tasks matter.
        self._decode_s = profile.step_s(StepLoad(decode_seqs=4, decode_context_tokens=20_000)) / 4
        self._prefill_s = profile.step_s(StepLoad(2048, 1, 0, 0, 2048 * 6000)) / 2048
        self._attained_s: dict[int, float] = {}

    def after(self, request: WorkloadRequest, outcome: Outcome, now_s: float) -> Iterable[WorkloadRequest]:
        task, i = self.call_of(request)
        computed = request.prompt_tokens - task.repeated_tokens(i)
        attained_s = computed * self._prefill_s + request.output_tokens * self._decode_s
        self._attained_s[task.number] = self._attained_s.get(task.number, 0.0) + attained_s
        return super().after(request, outcome, now_s)

    def request(self, plan: TaskPlan, i: int, arrival_s: float) -> WorkloadRequest:
        call = Call(plan.due_s - arrival_s, self._attained_s.get(plan.number, 0.0))
        targets, priority = self._statement(call)
        slo = DEFAULT_CLASSES.slo(None, targets)
        return replace(super().request(plan, i, arrival_s), slo=slo, priority=priority)
