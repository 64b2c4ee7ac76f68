"""Workloads of tasks by name: what draws the tasks, their classes, deadlines and the rate at which they arrive."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sloserve.core.errors import ConfigError
from sloserve.core.nearest import did_you_mean
from sloserve.core.slo import DEFAULT_CLASSES, SLO, SLOClass, Targets
from sloserve.sim.workloads.seeding import stream
from sloserve.sim.workloads.slo_assignment import ClassRule, SLOAssignment
from sloserve.sim.workloads.tasks.arrivals import NO_DEADLINE, TaskDeadline
from sloserve.sim.workloads.tasks.chat import chat_tasks
from sloserve.sim.workloads.tasks.coding import coding_tasks
from sloserve.sim.workloads.tasks.map_reduce import map_reduce_tasks
from sloserve.sim.workloads.tasks.plan import TaskPlan
from sloserve.sim.workloads.tasks.react import react_tasks
from sloserve.sim.workloads.tasks.small_beside_large import BURST, SPAN_S, small_beside_large_tasks
from sloserve.sim.workloads.tasks.traced import mooncake_tasks
from sloserve.sim.workloads.trace import Trace
from sloserve.sim.workloads.window import WHOLE, Window

AGENT_SLOS = SLOAssignment("agents", tuple(map(ClassRule, DEFAULT_CLASSES)), default=DEFAULT_CLASSES.default.name)
"""Classes without targets: of a task only its deadline counts, not when a call ends."""


def _interactive(source: str, targets: Targets) -> SLOAssignment:
    """Return an assignment of one class, of a name that servers have by default, with ``targets`` of its own."""
    name = DEFAULT_CLASSES.default.name
    return SLOAssignment(source, (ClassRule(SLOClass(name, 0, targets)),), default=name)


CHAT_SLOS = _interactive("chats", Targets(ttft_s=1.0))
MOONCAKE_SLOS = _interactive("Mooncake's conversations", Targets(ttft_s=30.0, tpot_s=0.1))
"""The limits of TTFT and of the time between tokens that Mooncake's authors set when they replay this trace."""


class DrawTasks(Protocol):
    """A function that returns the plans of ``n`` tasks of ``seed`` from a part of a workload."""

    def __call__(self, n: int, seed: int, scale: float = 1.0, window: Window = WHOLE) -> list[TaskPlan]: ...


def _generator(draw: Callable[[int, int, float], list[TaskPlan]]) -> DrawTasks:
    """Return a generator of which each part of the workload has seeds of its own."""

    def of_window(n: int, seed: int, scale: float = 1.0, window: Window = WHOLE) -> list[TaskPlan]:
        return draw(n, seed + window.seed_offset, scale)

    return of_window


@dataclass(frozen=True, slots=True)
class TaskWorkload:
    """A workload of tasks.

    Args:
        name: Name of the workload.
        description: Text for the list of workloads.
        draw: Function that returns the plans of a number of tasks and a seed.
        rate_per_s: Tasks per second when no rate is asked for: a starting point, to be set to the engine at hand.
        slos: Assignment of SLOs to the calls, by their kind.
        deadline: The rule for the tasks' deadlines.
    """

    name: str
    description: str
    draw: DrawTasks
    rate_per_s: float
    slos: SLOAssignment = AGENT_SLOS
    deadline: TaskDeadline = TaskDeadline()


TASK_WORKLOADS: dict[str, TaskWorkload] = {
    one.name: one
    for one in (
        TaskWorkload(
            "react",
            "agents: 3 to 50 calls, prompts that grow to 8k tokens, tools of 2 s",
            _generator(react_tasks),
            0.16,
        ),
        TaskWorkload(
            "coding",
            "coding agents: prompts of 195k tokens, 20 calls, most of them within 1 s",
            _generator(coding_tasks),
            0.005,
        ),
        TaskWorkload(
            "map-reduce",
            "a plan, up to 128 sub-agents at once (p90: 51), and a call that joins",
            _generator(map_reduce_tasks),
            0.1,
        ),
        TaskWorkload(
            "chat", "chats of 5 rounds with a TTFT of 1 s per call", _generator(chat_tasks), 0.5, CHAT_SLOS, NO_DEADLINE
        ),
        TaskWorkload("mooncake", "conversations of Mooncake's trace", mooncake_tasks, 0.5, MOONCAKE_SLOS, NO_DEADLINE),
        TaskWorkload(
            "small-beside-large",
            "64 tasks within 13 s, one of them with a prompt of 8k tokens",
            _generator(small_beside_large_tasks),
            BURST / SPAN_S,
        ),
    )
}


def task_workload(name: str) -> TaskWorkload:
    """Return the workload of tasks ``name``. Raises: ConfigError for an unknown name."""
    if name not in TASK_WORKLOADS:
        hint = did_you_mean(name, TASK_WORKLOADS)
        raise ConfigError(f"--tasks: unknown workload {name!r}; known: {', '.join(TASK_WORKLOADS)}{hint}")
    return TASK_WORKLOADS[name]


def slos_of_calls(plans: Sequence[TaskPlan], slos: SLOAssignment, seed: int) -> list[list[SLO]]:
    """Return the SLOs of the calls of each task, as ``slos`` gives them under ``seed``.

    Raises: ConfigError for a kind of call without a class.
    """
    calls = [(plan, i) for plan in plans for i in range(len(plan.calls))]
    trace = Trace(
        "tasks",
        "generator of tasks",
        np.zeros(len(calls)),
        np.array([plan.prompt_tokens(i) for plan, i in calls]),
        np.array([plan.output_tokens(i) for plan, i in calls]),
        [plan.calls[i].kind for plan, i in calls],
    )
    assigned = iter(slos.assign(trace, stream(seed, "slo")))
    return [[next(assigned) for _ in plan.calls] for plan in plans]
