"""Experiments on a fleet as data: its file, a workload, rates, dispatchers and seeds.

All dispatchers see the same requests of a seed.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass

from sloserve.core.errors import ConfigError
from sloserve.core.request import WorkloadRequest
from sloserve.fleet.fleet import Fleet
from sloserve.fleet.planning.replayed_model import engine_settings
from sloserve.fleet.simulated.dispatcher import model_shares
from sloserve.fleet.simulated.dispatchers.by_name import FleetRunName
from sloserve.fleet.simulated.log import FleetLog
from sloserve.fleet.simulated.loop import FleetRun
from sloserve.scheduler.registry import make_policy, parse_policy, policy_text
from sloserve.sim.experiment import ENGINE_KINDS, MODEL, engine_class, pool_of
from sloserve.sim.workloads.multi_model import FleetWorkload, ModelDemand


@dataclass(frozen=True, slots=True)
class FleetExperiment:
    """The runs of one experiment.

    Args:
        runs: Names of runs, see ``dispatchers/by_name.py``; the first is the baseline.
        engine_kind: Kind of engines, as in :class:`~sloserve.sim.experiment.Experiment`.
    """

    fleet: Fleet
    workload: FleetWorkload
    runs: tuple[str, ...]
    rps: tuple[float, ...]
    seeds: tuple[int, ...] = (0, 1, 2)
    max_requests: int = 1000
    engine_kind: str = MODEL

    def __post_init__(self) -> None:
        if not self.rps or len(set(self.rps)) != len(self.rps) or not all(0 < x < float("inf") for x in self.rps):
            raise ConfigError("--rps: give positive numbers, each once; a fleet has no other load axis")
        if self.engine_kind not in ENGINE_KINDS:
            raise ConfigError(f"--engine: {self.engine_kind!r} is not one of {', '.join(ENGINE_KINDS)}")
        if not self.runs or len(set(self.runs)) != len(self.runs):
            raise ConfigError(f"--policy: {', '.join(self.runs)}: give at least one dispatcher, each once")
        if not self.seeds or self.max_requests < 1:
            raise ConfigError("--seeds, --max-requests: give at least 1")
        for name in self.runs:
            policy = FleetRunName.parse(name).engine_policy(self.default_policy)
            if policy is not None:
                make_policy(*parse_policy(policy))

    @property
    def default_policy(self) -> str:
        """The policy of engines if a run's name does not state one."""
        return policy_text(self.fleet.settings.policy, self.fleet.settings.policy_options)

    def requests(self, seed: int, rps: float) -> list[WorkloadRequest]:
        """Return the requests that arrive."""
        shares = model_shares(self.fleet)
        models = [
            ModelDemand(
                model.name,
                shares[model.name],
                model.tail,
                min(engine_settings(model, profile).max_model_len for profile in model.profiles.values()),
            )
            for model in self.fleet.models.values()
        ]
        return self.workload.requests(self.max_requests, seed, rps, models, self.fleet.stated_classes)


@dataclass(frozen=True, slots=True, eq=False)
class FleetResult:
    """One run of one dispatcher."""

    name: str
    seed: int
    rps: float
    log: FleetLog


def run_fleet_experiment(
    experiment: FleetExperiment, *, jobs: int = 1, on_progress: Callable[[int, int], None] | None = None
) -> Iterator[FleetResult]:
    """Yield every run: rates ascending, then seeds, then dispatchers, however many processes work on them.

    Args:
        experiment: The experiment.
        jobs: Number of processes.
        on_progress: Called with (requests ended, requests in all) as runs end, and within runs when ``jobs`` is 1.
    """
    tasks = [
        (name, seed, rps) for rps in sorted(experiment.rps) for seed in experiment.seeds for name in experiment.runs
    ]
    total, ended = len(tasks) * experiment.max_requests, 0

    def report(done: int) -> None:
        if on_progress is not None:
            on_progress(ended + done, total)

    with pool_of(jobs) as pool:
        futures: list[Future[FleetLog]] = []
        if pool is not None:
            futures = [pool.submit(run_one, experiment, *task) for task in tasks]
        for i, task in enumerate(tasks):
            log = futures[i].result() if futures else run_one(experiment, *task, report)
            if futures:
                futures[i] = Future()  # the log may be large and is the caller's now
            ended += experiment.max_requests
            report(0)
            yield FleetResult(*task, log)


def run_one(
    experiment: FleetExperiment, name: str, seed: int, rps: float, on_progress: Callable[[int], None] | None = None
) -> FleetLog:
    """Run one name, seed and rate in virtual time."""
    run = FleetRunName.parse(name)
    fleet = FleetRun(
        experiment.fleet,
        run.make(seed),
        engine_class(experiment.engine_kind),
        policy=run.engine_policy(experiment.default_policy),
        seed=seed,
        oracle=run.oracle,
        prefix_caching=experiment.workload.rounds > 1.0,
    )
    return fleet.run(experiment.requests(seed, rps), on_progress)
