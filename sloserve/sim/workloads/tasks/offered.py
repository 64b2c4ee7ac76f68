"""The tasks that are offered to an engine: a workload of tasks with its number, scale, rates, deadlines and hints."""

import math
import re
from dataclasses import dataclass, replace

from sloserve.core import numbers
from sloserve.core.errors import ConfigError
from sloserve.sim.workloads.slo_assignment import SLOAssignment
from sloserve.sim.workloads.tasks.arrivals import NO_DEADLINE, TaskDeadline
from sloserve.sim.workloads.tasks.plan import TaskPlan
from sloserve.sim.workloads.tasks.registry import TaskWorkload, task_workload
from sloserve.sim.workloads.tasks.source import NO_HINTS, TaskHints
from sloserve.sim.workloads.tasks.task_options import TaskOptions
from sloserve.sim.workloads.trace import Trace
from sloserve.sim.workloads.window import WHOLE, Window
from sloserve.sim.workloads.workload_registry import Workload

_DEADLINE = re.compile(r"(?:(?P<times>[\d.]+)x)?(?:(?:^|\+)(?P<plus>[\d.]+))?")
REPLACED = ("workload", "trace", "rps", "rate_scale", "load", "tenants")
"""Options that name requests or their load, which tasks replace."""


@dataclass(frozen=True, slots=True)
class OfferedTasks:
    """The tasks of an experiment or a bench.

    Args:
        workload: Draws the tasks.
        count: Number of tasks of a run.
        rates: Tasks per second, ascending.
        scale: Factor on all lengths in tokens.
        deadline: The rule for deadlines.
        hints: What clients state of their tasks.
        slos: Assignment of SLOs to the calls.
    """

    workload: TaskWorkload
    count: int
    rates: tuple[float, ...]
    scale: float
    deadline: TaskDeadline
    hints: TaskHints
    slos: SLOAssignment

    def plans(self, seed: int, window: Window = WHOLE) -> list[TaskPlan]:
        """Return the tasks of ``seed`` in ``window``, which arrive at 0 s and have no deadline."""
        return self.workload.draw(self.count, seed, self.scale, window)


def asked_tasks(options: TaskOptions, slos: SLOAssignment | None) -> OfferedTasks | None:
    """Return the tasks that the options name; ``None`` if they name none.

    Args:
        options: The options of the command line. Options of ``REPLACED`` must not be given.
        slos: Assignment that replaces the workload's own; ``None`` to keep that.

    Raises: ConfigError for an option that contradicts another, or a value out of range.
    """
    if options.tasks is None:
        if options.task_rate is not None or options.task_deadline is not None:
            raise ConfigError("--task-rate and --task-deadline go with --tasks")
        return None
    for name in REPLACED:
        if getattr(options, name, None) is not None:
            raise ConfigError(f"--{name.replace('_', '-')} does not go with --tasks; the load of tasks is --task-rate")
    workload = task_workload(options.tasks)
    if options.task_count < 1:
        raise ConfigError(f"--task-count: {options.task_count} is not a whole number >= 1")
    if not 0.0 < options.task_scale < math.inf:
        raise ConfigError(f"--task-scale: {options.task_scale} is not a number above 0")
    return OfferedTasks(
        workload,
        options.task_count,
        (workload.rate_per_s,) if options.task_rate is None else parse_rates("--task-rate", options.task_rate),
        options.task_scale,
        workload.deadline if options.task_deadline is None else parse_deadline(options.task_deadline),
        parse_hints(options.task_hints),
        workload.slos if slos is None else slos,
    )


def parse_rates(flag: str, text: str) -> tuple[float, ...]:
    """Return the rates of a comma-separated list, ascending. Raises: ConfigError."""
    try:
        rates = tuple(sorted(numbers.number(part) for part in text.split(",")))
    except ValueError as error:
        raise ConfigError(f"{flag}: {text!r} is not a comma-separated list of numbers: {error}") from None
    if not all(0.0 < rate < math.inf for rate in rates) or len(set(rates)) != len(rates):
        raise ConfigError(f"{flag}: {text!r} is not a list of different numbers above 0")
    return rates


def parse_deadline(text: str) -> TaskDeadline:
    """Return the rule that ``2x+5``, ``2x``, ``60`` or ``none`` describes. Raises: ConfigError."""
    if text == "none":
        return NO_DEADLINE
    found = _DEADLINE.fullmatch(text)
    try:
        times, plus = (numbers.number(found[part] or "0") for part in ("times", "plus")) if found else (0.0, 0.0)
    except ValueError:
        times, plus = 0.0, 0.0
    if not times + plus > 0.0:
        raise ConfigError(f"--task-deadline: {text!r} is not of the form 2x+5, 2x, 60 (seconds) or none")
    return TaskDeadline(times, plus)


def parse_hints(text: str) -> TaskHints:
    """Return the hints that a comma-separated list names. Raises: ConfigError."""
    if text == "none":
        return NO_HINTS
    hints = TaskHints(deadline=False)
    for part in (part.strip() for part in text.split(",")):
        name, equals, value = part.partition("=")
        if name == "calls":
            try:
                factor = numbers.number(value) if equals else 1.0
            except ValueError:
                factor = 0.0
            if not 0.0 < factor < math.inf:
                raise ConfigError(f"--task-hints: {part!r}: the factor on the number of calls is not a number above 0")
            hints = replace(hints, calls_factor=factor)
        elif part in ("deadline", "last"):
            hints = replace(hints, **{part: True})
        elif part != "id":
            raise ConfigError(f"--task-hints: {part!r} is not one of id, deadline, calls, calls=FACTOR, last, none")
    return hints


def describe_tasks(tasks: OfferedTasks) -> dict[str, object]:
    """Return the tasks as values for ``result.json``."""
    deadline, hints = tasks.deadline, tasks.hints
    return {
        "count": tasks.count,
        "rates": list(tasks.rates),
        "scale": tasks.scale,
        "deadline_slowdown": deadline.slowdown,
        "deadline_plus_s": None if deadline.plus_s == math.inf else deadline.plus_s,
        "hints": {"task": hints.task, "deadline": hints.deadline, "calls": hints.calls_factor, "last": hints.last},
    }


def as_workload(tasks: OfferedTasks) -> Workload:
    """Return the workload of ``tasks`` for reports: its name, description and SLOs. It has no requests of its own."""

    def source(n: int, seed: int) -> Trace:
        raise ValueError(f"the workload {tasks.workload.name} consists of tasks, which are served in a closed loop")

    return Workload(tasks.workload.name, tasks.workload.description, source, tasks.rates[0], tasks.slos)
