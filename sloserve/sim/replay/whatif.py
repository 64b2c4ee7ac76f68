"""What would have happened: replays of what ran, to learn their error, and of what else might have run."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final, Self

from sloserve.core.errors import ConfigError
from sloserve.core.slo import ClassTable
from sloserve.engine.recording.reading import Recording
from sloserve.sim.experiment import MODEL, pool_of
from sloserve.sim.replay.engine_of import FittedSteps, fitted_steps
from sloserve.sim.replay.joined import joined
from sloserve.sim.replay.judged import (
    Fates,
    Interval,
    ReplayError,
    difference,
    ended_ids,
    recorded_fates,
    replay_error,
    replayed_fates,
    share,
)
from sloserve.sim.replay.replay import Replayed, check_name
from sloserve.sim.replay.traffic import Span, Traffic, policy_of, span_of, traffic
from sloserve.sim.run_name import RunName

SEEDS: Final = 3
"""Replays of each run, which differ in how step times vary and in the lengths of unfinished outputs."""
OTHERS: Final = ("stock", "edf", "auto")
"""Policies that are tried if none is named."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of a recording.

    Args:
        last_s: Seconds before the end of the recording that are judged; ``None`` for all of it.
        policies: Policies to try; an empty tuple for the one that ran if something else changes, or :data:`OTHERS`.
        options: Engine flags to change, by name.
        slos: Classes with other targets; ``None`` for the recorded targets.
        replicas: Numbers of replicas to try; an empty tuple for the recorded one.
        engine_kind: ``model`` or ``vllm``, see :class:`~sloserve.sim.replay.replay.Replayed`.
        seeds: Number of replays of each run.
    """

    last_s: float | None = None
    policies: tuple[str, ...] = ()
    options: tuple[tuple[str, int], ...] = ()
    slos: ClassTable | None = None
    replicas: tuple[int, ...] = ()
    engine_kind: str = MODEL
    seeds: int = SEEDS

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ConfigError(f"--seeds: {self.seeds} is not a whole number >= 1")
        if self.last_s is not None and not 0.0 < self.last_s < float("inf"):
            raise ConfigError(f"--last: {self.last_s} s is not a time above 0")
        for count in self.replicas:
            if count < 1:
                raise ConfigError(f"--replicas: {count} is not a whole number >= 1")

    def runs(self, ran: str, recorded_replicas: int) -> list[tuple[str, int]]:
        """Return the name and the number of replicas of each run to try.

        Args:
            ran: The policy that ran.
            recorded_replicas: Number of engines that were recorded.
        """
        changes = bool(self.options or self.slos or self.replicas)
        policies = self.policies or ((ran,) if changes else OTHERS)
        names = []
        for policy in policies:
            name = RunName.parse(policy)
            for option, value in self.options:
                name = name.with_option(option, value)
            names.append(str(name))
        counts = self.replicas or (recorded_replicas,)
        same = (ran, recorded_replicas) if self.slos is None else None
        runs = [(name, count) for name in names for count in counts if (name, count) != same]
        if not runs:
            raise ConfigError(f"policy {ran} is what ran; name another one, or change something with --set or --slo")
        return runs


@dataclass(frozen=True, slots=True, eq=False)
class TriedRun:
    """One run that was tried.

    Args:
        name: Name of the run.
        replicas: Number of replicas.
        in_time: Requests in time in percent.
        gain: Points that it gains over the replay of what ran; ``None`` for requests without targets.
        fates: How the requests fared, for each seed.
        extrapolated: Share of steps that are larger than any recorded one.
    """

    name: str
    replicas: int
    in_time: Interval | None
    gain: Interval | None
    fates: Sequence[Fates]
    extrapolated: float

    def label(self, recorded_replicas: int) -> str:
        """Return the name, with the number of replicas where there are or were several."""
        if self.replicas == 1 and recorded_replicas == 1:
            return self.name
        return f"{self.name}, {self.replicas} replica{'s' * (self.replicas != 1)}"

    def figures(self) -> dict[str, Any]:
        """Return plain values for a report; means over the seeds."""
        return {
            "run": self.name,
            "replicas": self.replicas,
            "in_time_percent": _plain(self.in_time),
            "gain_points": _plain(self.gain),
            "extrapolated_steps": self.extrapolated,
            **_mean([one.figures() for one in self.fates]),
        }


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """What replays of a recording say.

    Args:
        ran: The policy that ran.
        replicas: Number of engines that were recorded.
        span: The stretch of time that is judged.
        traffic: Requests that were replayed.
        fitted: Step times that were fitted.
        recorded: How the requests fared in the recording.
        error: How far a replay of what ran is from it.
        base: The replay of what ran, under the targets that were asked for.
        lost: Number of events that the recording lost.
        rows: Runs that were tried; empty if the replay is not to be trusted.
    """

    ran: str
    replicas: int
    span: Span
    traffic: Traffic
    fitted: FittedSteps
    recorded: Fates
    error: ReplayError
    base: TriedRun
    lost: int = 0
    rows: Sequence[TriedRun] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        """Return plain values for a report."""
        error = self.error
        return {
            "ran": self.ran,
            "replicas": self.replicas,
            "seconds": self.span.end_s - self.span.begin_s,
            "requests": len(self.traffic.judged),
            "unfinished": self.traffic.unfinished,
            "refused": self.traffic.refused,
            "left": len(self.traffic.left_s),
            "lost_events": self.lost,
            "step_time_error_percent": self.fitted.score.mape_percent,
            "recorded": self.recorded.figures(),
            "replay": self.base.figures(),
            "error": {
                "points": error.points,
                "by_class": dict(error.by_class),
                "ttft_p50": error.ttft_p50,
                "ttft_p99": error.ttft_p99,
            },
            "trusted": error.is_trusted,
            "others": [row.figures() for row in self.rows],
        }


def answer(
    recordings: Sequence[Recording],
    question: Question,
    *,
    anyway: bool = False,
    jobs: int = 1,
    on_progress: Callable[[int, int], None] | None = None,
) -> Answer:
    """Replay what ran, and then what is asked.

    Args:
        recordings: Recordings of the engines that served the model: one, or several to join.
        question: What is asked.
        anyway: Whether to try the others even if the replay of what ran is not to be trusted.
        jobs: Number of processes; what is found does not depend on it.
        on_progress: Called with the number of runs that have ended, and of all.

    Raises: ConfigError for a recording that says too little, or a run that cannot be replayed.
    """
    is_joined = len(recordings) > 1 or (bool(question.replicas) and _was_held(recordings[0]))
    whole = joined(recordings) if is_joined else recordings[0]
    span, count = span_of(whole, question.last_s), len(recordings)
    ran, fitted = policy_of(whole, span), fitted_steps(*recordings)
    runs = question.runs(ran, count)
    for name, _ in runs:
        check_name(name)
    base, seeds = (ran, count), range(question.seeds)

    def replays(slos: ClassTable | None) -> list[Replayed]:
        return [
            Replayed(
                whole, fitted, traffic(whole, span, seed=seed, slos=slos), question.engine_kind, is_joined=is_joined
            )
            for seed in seeds
        ]

    as_recorded = replays(None)
    asked = as_recorded if question.slos is None else replays(question.slos)
    ended = ended_ids(whole, as_recorded[0].traffic)
    work = _Work(jobs, question.seeds * (len(runs) + 1 + (question.slos is not None)), on_progress)
    with work:
        first = work.outcomes(as_recorded, [base], ended)[base]
        real = recorded_fates(whole, as_recorded[0].traffic)
        error = replay_error(real, [one.ended for one in first])
        reference = first if question.slos is None else work.outcomes(asked, [base], ended)[base]
        base_row = _row(base, reference, None)
        rows = []
        if error.is_trusted or anyway:
            found = work.outcomes(asked, runs, ended)
            rows = [_row(run, outcomes, base_row) for run, outcomes in found.items()]
    return Answer(ran, count, span, as_recorded[0].traffic, fitted, real, error, base_row, whole.lost, rows)


def _was_held(recording: Recording) -> bool:
    """Return whether a gateway held requests before the engine got them, as more replicas would shorten."""
    return any(one.held is not None for one in recording.arrived.values())


@dataclass(frozen=True, slots=True, eq=False)
class _Outcome:
    """The outcome of one replay.

    Args:
        every: How all judged requests fared.
        ended: How the requests fared that have ended in the recording.
        extrapolated: Share of steps that are larger than any recorded one.
    """

    every: Fates
    ended: Fates
    extrapolated: float


def _outcome(replayed: Replayed, run: tuple[str, int], seed: int, ended: frozenset[str]) -> _Outcome:
    log = replayed.run(*run, seed=seed)
    beyond = log.counters.get("extrapolated_steps", 0) / max(log.steps.end_s.size, 1)
    every = replayed_fates(log, replayed.traffic)
    return _Outcome(every, replayed_fates(log, replayed.traffic, ended), beyond)


class _Work(AbstractContextManager["_Work"]):
    """Replays in several processes, with their progress."""

    def __init__(self, jobs: int, total: int, on_progress: Callable[[int, int], None] | None) -> None:
        self._pool_context, self._total, self._on_progress, self._done = pool_of(jobs), total, on_progress, 0

    def __enter__(self) -> Self:
        self._pool = self._pool_context.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._pool_context.__exit__(*error)

    def outcomes(
        self, replays: Sequence[Replayed], runs: Sequence[tuple[str, int]], ended: frozenset[str]
    ) -> dict[tuple[str, int], list[_Outcome]]:
        """Return the outcomes of each run, one for each of the replays, of which each has a seed of its own."""
        tasks = [(one, run, seed, ended) for run in runs for seed, one in enumerate(replays)]
        futures = [] if self._pool is None else [self._pool.submit(_outcome, *task) for task in tasks]
        found: dict[tuple[str, int], list[_Outcome]] = {run: [] for run in runs}
        for i, task in enumerate(tasks):
            found[task[1]].append(futures[i].result() if futures else _outcome(*task))
            self._done += 1
            if self._on_progress is not None:
                self._on_progress(self._done, self._total)
        return found


def _row(run: tuple[str, int], outcomes: Sequence[_Outcome], base: TriedRun | None) -> TriedRun:
    fates = [one.every for one in outcomes]
    gain = None if base is None else difference(fates, base.fates)
    extrapolated = sum(one.extrapolated for one in outcomes) / len(outcomes)
    return TriedRun(*run, share(fates), gain, fates, extrapolated)


def _plain(interval: Interval | None) -> list[float] | None:
    return None if interval is None else [interval.value, interval.low, interval.high]


def _mean(figures: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean of each figure over the seeds."""
    found: dict[str, Any] = {}
    for name, value in figures[0].items():
        values = [one[name] for one in figures]
        if isinstance(value, Mapping):
            found[name] = _mean(values)
        else:
            known = [one for one in values if one is not None]
            found[name] = sum(known) / len(known) if known else None
    return found
