"""Runs with tasks of many calls: their plans with arrivals and deadlines, and the closed loop that serves them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from sloserve.core.errors import ConfigError
from sloserve.core.runlog import RunLog
from sloserve.core.slo import SLO
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.engine.virtual.event_loop import EventLoop
from sloserve.estimator.step_time.profile import Profile
from sloserve.sim.closed_loop import run_closed_loop
from sloserve.sim.model.engine import ModelEngine
from sloserve.sim.workloads.tasks.arrivals import arriving
from sloserve.sim.workloads.tasks.offered import OfferedTasks
from sloserve.sim.workloads.tasks.plan import TaskPlan
from sloserve.sim.workloads.tasks.registry import AGENT_SLOS, slos_of_calls, task_workload
from sloserve.sim.workloads.tasks.source import NO_HINTS, TaskHints, TaskSource
from sloserve.sim.workloads.window import WHOLE, Window

ALONE_S = 10_000.0
"""Seconds between the arrivals of tasks that run one after another."""


@dataclass(frozen=True, slots=True)
class TaskRun:
    """The tasks of one run as plain values, so that they can be sent to another process.

    Args:
        plans: The tasks, with their arrivals and deadlines.
        slos: SLOs of the calls of each task.
        hints: What clients state of their tasks.
    """

    plans: list[TaskPlan]
    slos: list[list[SLO]]
    hints: TaskHints


def task_run(
    tasks: OfferedTasks,
    seed: int,
    rate: float,
    engine: EngineSettings | None,
    profile: Profile | None,
    window: Window = WHOLE,
) -> TaskRun:
    """Return the tasks of ``seed`` in ``window`` that arrive at ``rate`` a second.

    Their deadlines follow from their latency on an idle engine with the settings ``engine`` and the step times of
    ``profile``. Both may be ``None`` where deadlines do not depend on it.
    """
    plans = tasks.plans(seed, window)
    unloaded_s: Sequence[float] = [0.0] * len(plans)
    if tasks.deadline.slowdown:
        assert engine is not None and profile is not None
        unloaded_s = unloaded_latencies_s(tasks.workload.name, tasks.count, seed, tasks.scale, engine, profile, window)
    seed += window.seed_offset
    plans = arriving(plans, seed, rate, unloaded_s, tasks.deadline)
    return TaskRun(plans, slos_of_calls(plans, tasks.slos, seed), tasks.hints)


@lru_cache(maxsize=64)
def unloaded_latencies_s(
    name: str,
    count: int,
    seed: int,
    scale: float,
    engine: EngineSettings,
    profile: Profile,
    window: Window = WHOLE,
) -> tuple[float, ...]:
    """Return the latency of each task alone on an idle engine under stock, in seconds.

    The engine is the model of vLLM's scheduler. Tasks run one after another, so that each finds what tasks share, such
    as a system prompt, in the prefix cache.

    Raises: ConfigError for a task that the engine cannot serve even alone.
    """
    plans = task_workload(name).draw(count, seed, scale, window)
    apart = [replace(plan, arrival_s=ALONE_S * i) for i, plan in enumerate(plans)]
    source = TaskSource(apart, slos_of_calls(apart, AGENT_SLOS, seed), NO_HINTS)
    run_closed_loop(ModelEngine(engine, profile, None), source)
    found = []
    for task in source.outcomes():
        if task.latency_s is None:
            raise ConfigError(
                f"--tasks {name}: {task.key} cannot be served by an idle engine with {engine.kv_blocks} KV blocks and "
                f"a context of {engine.max_model_len} tokens; give a profile with more, or --task-scale below {scale:g}"
            )
        found.append(task.latency_s)
    return tuple(found)


def serve_tasks(engine: EventLoop, run: TaskRun, on_progress: Callable[[int], None] | None = None) -> RunLog:
    """Serve ``run`` with ``engine``, which is new, and return the log with the outcomes of the tasks.

    ``on_progress`` is called with the number of tasks that are over.
    """
    source = TaskSource(run.plans, run.slos, run.hints, on_progress)
    log = run_closed_loop(engine, source)
    return replace(log, tasks=source.outcomes())
