"""Experiments as data: a workload, an engine, a load axis, policies and seeds.

Every policy sees the same requests of a seed.

Load is offered in requests per second or in multiples of stock's own capacity, which is measured first, in the same
run, on the same requests. Stock is vLLM's AsyncScheduler, untouched. Results are deterministic but for what stands
under ``timing``.
"""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import numpy as np

from sloserve.core.errors import ConfigError
from sloserve.core.outcome import Outcome
from sloserve.core.request import WorkloadRequest
from sloserve.core.runlog import RunLog
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.estimator.planning_cost import planning_costs
from sloserve.estimator.step_time.noise import StepNoise
from sloserve.estimator.step_time.profile import Profile
from sloserve.scheduler.registry import make_policy, parse_policy
from sloserve.scheduler.settings import PluginSettings, plugin_settings
from sloserve.sim.admissions import make_front, parse_admission
from sloserve.sim.model.engine import ModelEngine
from sloserve.sim.report.summary import summarize
from sloserve.sim.run_name import STOCK, RunName
from sloserve.sim.task_runs import TaskRun, serve_tasks, task_run
from sloserve.sim.workloads.slo_assignment import SLOAssignment
from sloserve.sim.workloads.tasks.offered import OfferedTasks
from sloserve.sim.workloads.window import WHOLE, Window
from sloserve.sim.workloads.workload_registry import Workload

if TYPE_CHECKING:
    from sloserve.vllm_plugin.virtual.engine import VirtualEngine

logger = logging.getLogger(__name__)

DEFAULT_LOADS = (0.7, 1.0, 1.5, 2.0)
SHIPPED = PluginSettings()
"""The settings that a server has by default, and so the settings of runs."""
PLAN_SHARE = SHIPPED.plan_share
VLLM, MODEL = "vllm", "model"
ENGINE_KINDS = (VLLM, MODEL)
"""The kinds of engines: vLLM's real scheduler, and the model of it in :mod:`sloserve.sim.model`."""
SATURATED = 0.5
"""The share of steps with waiting requests that a measurement of stock's capacity needs; below it all run at once."""
_RUSH = 1e-6
"""The factor on arrivals that makes all requests arrive at once."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """What to run. One of ``loads``, ``rps`` and ``rate_scale`` is given.

    Args:
        workload: The requests.
        profile: The step times of the engine.
        engine: The settings of the engine.
        policies: Names of runs, see ``run_name``.
        seeds: Seeds of the workload.
        max_requests: Number of requests of a run.
        loads: Multiples of stock's capacity.
        rps: Requests per second.
        rate_scale: Multiple of the workload's own rate.
        slos: Assignment that replaces the workload's own SLOs.
        window: The part of the workload that seeds draw from.
        aged_share: Share of the ageing guard; 0 turns it off.
        plan_share: The server setting of this name.
        plan_cost: Cost of planning in multiples of the measured table; 0 charges nothing.
        step_noise: Coefficient of variation of step times, see ``StepNoise``.
        length_model: The server setting of this name.
        engine_kind: The engine that schedules, one of ``ENGINE_KINDS``.
        known_profile: The profile that the server's settings name, while ``profile`` is the engine's own; ``None`` if
            the server learns step times from the steps.
        tenant_weights: Weights of the tenants' shares of the engine; ``None`` if policies do not see tenants.
        tasks: Tasks of many calls that are offered in place of the workload's requests; ``rps`` then has tasks per
            second, and ``max_requests`` is their number. ``None`` for an open loop.
    """

    workload: Workload
    profile: Profile
    engine: EngineSettings
    policies: tuple[str, ...]
    seeds: tuple[int, ...] = (0, 1, 2)
    max_requests: int = 1000
    loads: tuple[float, ...] | None = None
    rps: tuple[float, ...] | None = None
    rate_scale: float | None = None
    slos: SLOAssignment | None = None
    window: Window = WHOLE
    aged_share: float = SHIPPED.aged_share
    plan_share: float = PLAN_SHARE
    plan_cost: float = 1.0
    step_noise: float = 0.0
    length_model: str | None = None
    engine_kind: str = VLLM
    known_profile: str | None = None
    tenant_weights: Mapping[str, float] | None = None
    tasks: OfferedTasks | None = None

    def __post_init__(self) -> None:
        if sum(axis is not None for axis in (self.loads, self.rps, self.rate_scale)) != 1:
            raise ConfigError("give one of --load, --rps and --rate-scale")
        _check_axis("--load", self.loads)
        _check_axis("--rps", self.rps)
        _check_axis("--rate-scale", None if self.rate_scale is None else (self.rate_scale,))
        if not 1e-6 <= self.plan_share <= 1.0:
            raise ConfigError(f"--plan-share: {self.plan_share} is not within 1e-06..1")
        if not 0.0 <= self.plan_cost < float("inf"):
            raise ConfigError(f"--plan-cost: {self.plan_cost} is not a number >= 0")
        StepNoise(0, self.step_noise)
        if self.engine_kind not in ENGINE_KINDS:
            raise ConfigError(f"--engine: {self.engine_kind!r} is not one of {', '.join(ENGINE_KINDS)}")
        if not self.seeds:
            raise ConfigError("--seeds: there is none; give at least one")
        if len(set(self.policies)) != len(self.policies):
            raise ConfigError(f"--policy: {', '.join(self.policies)} names a policy twice; name each once")
        if not self.policies:
            raise ConfigError("--policy, --admission: name at least one of each, as in stock,edf and none")
        for name in self.policies:
            run = RunName.parse(name)
            parse_admission(run.admission)
            run.engine_settings(self.engine)
            if run.policy != STOCK:
                make_policy(*parse_policy(run.policy))  # an unknown one fails here, not after the first runs

    def requests(self, seed: int, *, rps: float | None = None, rate_scale: float = 1.0) -> list[WorkloadRequest]:
        return self.workload.within(self.window).requests(
            self.max_requests, seed, rps, rate_scale=rate_scale, slos=self.slos
        )


@dataclass(frozen=True, slots=True)
class Point:
    """One place on the load axis for one seed; ``load`` is in multiples of stock's capacity, where that is the axis."""

    seed: int
    rps: float
    load: float | None


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One run of one policy."""

    policy: str
    point: Point
    log: RunLog

    def record(self) -> dict[str, Any]:
        """Return the figures of the run, see :func:`~sloserve.sim.report.summary.summarize`."""
        point = self.point
        return summarize(self.log, policy=self.policy, seed=point.seed, rps=point.rps, load=point.load)


def _check_axis(flag: str, values: Sequence[float] | None) -> None:
    """Check the values of a load. Raises: ConfigError for a value that is no rate, or is there twice.

    Args:
        flag: The flag that states them.
        values: The values; ``None`` if another flag states the load.
    """
    if values is None:
        return
    for value in values:
        if not 0 < value < float("inf"):
            raise ConfigError(f"{flag}: {value:g} is not a number above 0")
    if not values or len(set(values)) != len(values):
        raise ConfigError(f"{flag}: {','.join(f'{value:g}' for value in values)}: give at least one value, each once")


def capacity_rps(experiment: Experiment, log: RunLog) -> float:
    """Return the requests per second that stock completes while it has more than it can do.

    ``log`` is a run in which all requests arrived at once.

    Measured between the 10th and the 90th percentile of completions: before, the batch fills; after, it drains.

    Raises: ConfigError if fewer than 20 requests completed.
    """
    finished = np.sort([r.finish_s for r in log.requests if r.outcome is Outcome.COMPLETED and r.finish_s is not None])
    if finished.size < 20:
        raise ConfigError(
            f"stock completed {finished.size} of {len(log.requests)} requests of {experiment.workload.name}: too few "
            "to measure its capacity; give --rps, more --max-requests, or an engine that fits the workload"
        )
    low, high = int(0.1 * finished.size), int(0.9 * finished.size)
    within = (log.steps.end_s >= finished[low]) & (log.steps.end_s <= finished[high])
    if within.any() and float(np.mean(log.steps.waiting[within] > 0)) < SATURATED:
        logger.warning(
            "the load does not saturate: %d requests of %s are too few for this engine, which ran nearly all of them "
            "at once while its capacity was measured; loads are multiples of too low a figure, and hardly anything "
            "will queue; give more --max-requests, or --rps",
            len(log.requests),
            experiment.workload.name,
        )
    return float((high - low) / (finished[high] - finished[low]))


def measured_points(experiment: Experiment, jobs: int = 1) -> list[Point]:
    """Return the places on the load axis, loads ascending, then seeds.

    Stock's capacity is measured where it is needed.
    """
    with pool_of(jobs) as pool:
        return list(_points(experiment, pool))


def run_experiment(
    experiment: Experiment,
    *,
    jobs: int = 1,
    on_progress: Callable[[int, int], None] | None = None,
    points: Sequence[Point] | None = None,
) -> Iterator[Run]:
    """Yield every run: loads ascending, then seeds, then policies, however many processes work on them.

    Args:
        experiment: What to run.
        jobs: Number of processes.
        on_progress: Called with (requests ended, requests in all) as runs end, and within runs when ``jobs`` is 1.
        points: Result of :func:`measured_points`; ``None`` to find the points first.
    """
    with pool_of(jobs) as pool:
        points = list(_points(experiment, pool)) if points is None else points
        tasks = [(policy, point) for point in points for policy in experiment.policies]
        total = len(tasks) * experiment.max_requests
        ended = 0

        def tell(done: int) -> None:
            if on_progress is not None:
                on_progress(ended + done, total)

        futures: list[Future[RunLog]] = []
        if pool is not None:
            futures = [pool.submit(_serve, task_of(experiment, *task)) for task in tasks]
        for i, (policy, point) in enumerate(tasks):
            if futures:
                log = futures[i].result()
                futures[i] = Future()  # the log may be large and is the caller's now
            else:
                log = _serve(task_of(experiment, policy, point), tell)
            ended += experiment.max_requests
            tell(0)
            yield Run(policy, point, log)


def pool_of(jobs: int) -> AbstractContextManager[ProcessPoolExecutor | None]:
    """Return a pool of ``jobs`` processes to run in, or a context of ``None`` for one process.

    Raises: ConfigError for less than one.
    """
    if jobs < 1:
        raise ConfigError(f"--jobs: {jobs} is not a whole number >= 1")
    return nullcontext() if jobs == 1 else ProcessPoolExecutor(min(jobs, os.cpu_count() or 1), get_context("spawn"))


def _points(experiment: Experiment, pool: Executor | None) -> Iterator[Point]:
    if experiment.rps is not None:
        for rps in sorted(experiment.rps):
            yield from (Point(seed, rps, None) for seed in experiment.seeds)
        return
    if experiment.rate_scale is not None:
        for seed in experiment.seeds:
            yield Point(seed, offered_rps(experiment.requests(seed, rate_scale=experiment.rate_scale)), None)
        return
    # Each seed has its own capacity: policies get the window of a trace, or the lengths, of this seed.
    rush = replace(experiment, loads=None, rps=None, rate_scale=1.0 / _RUSH)
    tasks = [task_of(rush, STOCK, Point(seed, float("inf"), None)) for seed in experiment.seeds]
    futures = [pool.submit(_serve, task) for task in tasks] if pool is not None else []
    logs = [future.result() for future in futures] or [_serve(task) for task in tasks]
    capacity = [capacity_rps(experiment, log) for log in logs]
    for load in sorted(experiment.loads or ()):
        yield from (Point(s, load * c, load) for s, c in zip(experiment.seeds, capacity, strict=True))


def offered_rps(requests: Sequence[WorkloadRequest]) -> float:
    """Return how many requests come a second; requests that come all at once count as if within one second."""
    span_s = requests[-1].arrival_s - requests[0].arrival_s
    return (len(requests) - 1) / span_s if span_s > 0.0 else float(len(requests))


@dataclass(frozen=True, slots=True)
class Task:
    """One run as plain values, so that it can be sent to another process.

    Args:
        requests: The requests of the run.
        engine: The settings of the engine.
        profile: The step times of the engine.
        config: vLLM's additional config; ``None`` for stock.
        admission: Name of the admission.
        class_names: Names of the classes that the admission is for.
        plan_cost: Cost of planning in multiples of the measured table.
        noise: Noise of step times.
        engine_kind: The engine that schedules, one of ``ENGINE_KINDS``.
        tasks: The tasks of the run, which has no other requests; ``None`` for an open loop.
    """

    requests: list[WorkloadRequest]
    engine: EngineSettings
    profile: Profile
    config: dict[str, Any] | None
    admission: str
    class_names: tuple[str, ...]
    plan_cost: float
    noise: StepNoise
    engine_kind: str
    tasks: TaskRun | None = None


def task_of(experiment: Experiment, policy: str, point: Point, requests: list[WorkloadRequest] | None = None) -> Task:
    """Return the task of a run of ``policy`` at ``point``, with ``requests`` in place of the experiment's own."""
    tasks = None
    if requests is not None:
        pass
    elif experiment.tasks is not None:
        requests = []
        tasks = task_run(
            experiment.tasks, point.seed, point.rps, experiment.engine, experiment.profile, experiment.window
        )
    elif experiment.rate_scale is not None:
        requests = experiment.requests(point.seed, rate_scale=experiment.rate_scale)
    else:
        requests = experiment.requests(point.seed, rps=point.rps)
    config = None
    run = RunName.parse(policy)
    engine = run.engine_settings(experiment.engine)
    if engine.drafts is not None:
        engine = replace(engine, drafts=replace(engine.drafts, seed=point.seed))
    slos = experiment.slos or experiment.workload.slos
    if run.policy != STOCK:
        section = {
            "policy": run.policy,
            "seed": point.seed,
            "aged_share": experiment.aged_share,
            "plan_share": experiment.plan_share,
        }
        section |= {"length_model": experiment.length_model, "profile": experiment.known_profile}
        section |= {"swapping": engine.swapping}
        if experiment.tenant_weights is not None:
            section["tenant_shares"] = {"weights": dict(experiment.tenant_weights)}
        config = {"sloserve": section | slos.table.as_config()}
    noise = StepNoise(point.seed, experiment.step_noise)
    names = slos.table.names
    return Task(
        requests,
        engine,
        experiment.profile,
        config,
        run.admission,
        names,
        experiment.plan_cost,
        noise,
        experiment.engine_kind,
        tasks,
    )


def _serve(task: Task, on_progress: Callable[[int], None] | None = None) -> RunLog:
    """Serve one run in virtual time."""
    if task.tasks is not None:
        return serve_tasks(engine_of(task), task.tasks, on_progress)
    return engine_of(task).run(task.requests, on_progress)


def engine_of(task: Task) -> "VirtualEngine | ModelEngine":
    """Return a new engine for a run of ``task``."""
    # Admission predicts even without a limit, so that promises can be judged; the requests do not notice.
    settings = None if task.config is None else plugin_settings(task.config)
    front = make_front(task.admission, task.class_names, settings)
    costs = planning_costs().times(task.plan_cost)
    make_engine = engine_class(task.engine_kind)
    return make_engine(task.engine, task.profile, task.config, front, planning_costs=costs, noise=task.noise)


def engine_class(kind: str) -> "type[VirtualEngine | ModelEngine]":
    """Return the class of an engine of ``ENGINE_KINDS``; vLLM is imported only where it is asked for."""
    if kind == MODEL:
        return ModelEngine
    from sloserve.vllm_plugin.versions import require_vllm

    require_vllm("give --engine model, which needs none, or ")
    logging.getLogger("vllm").setLevel(logging.ERROR)  # it would warn of this machine, and no model runs on it
    from sloserve.vllm_plugin.virtual.engine import VirtualEngine  # takes seconds to import: only where runs happen

    return VirtualEngine
