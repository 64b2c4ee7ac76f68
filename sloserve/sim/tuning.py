"""The static engine flags that suit each policy best, found on one part of a workload to be judged on another.

The search goes from coarse to fine, so that the work stays bounded: it tries the first flag's values beside the
default, then the values of each further flag for the :data:`KEPT` best runs up to then. A run is better if more of its
requests met their targets; where that is noise, if it made more tokens per second; where that is noise too, the default
stays, or else the name with the fewest options.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sloserve.core.errors import ConfigError
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.sim.experiment import MODEL, Experiment, Point, measured_points, run_experiment
from sloserve.sim.run_name import RunName, check_option

KEPT = 2
"""The number of candidates of a policy that the next flag is tried on."""
SAME_ATTAINMENT = 0.005
"""The difference of mean shares of requests in time below which they count as the same.

The standard error takes its place if that is more.
"""
SAME_THROUGHPUT = 0.01

Axes = Mapping[str, tuple[int, ...]]
"""The values to try of each flag, in the order in which flags are tried."""


@dataclass(frozen=True, slots=True)
class Score:
    """The results of a run at each point (load and seed).

    Args:
        attainment: Share of requests in time, ``[points]``.
        throughput: Output tokens per second, ``[points]``.
    """

    attainment: tuple[float, ...]
    throughput: tuple[float, ...]

    @property
    def mean_attainment(self) -> float:
        return float(np.mean(self.attainment))

    @property
    def mean_throughput(self) -> float:
        return float(np.mean(self.throughput))

    def as_dict(self) -> dict[str, float]:
        return {"slo_attainment": self.mean_attainment, "output_throughput": self.mean_throughput}


Evaluate = Callable[[Sequence[str]], Mapping[str, Score]]
"""A function that runs names, all at the same points, and returns their scores."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """What was found for one run.

    Args:
        name: Name of the run.
        best: Name of the best variant; equal to ``name`` if none is better.
        tried: Score of each variant that was tried, by name.
    """

    name: str
    best: str
    tried: Mapping[str, Score]


def parse_axes(texts: Iterable[str]) -> Axes:
    """Return the values of each flag to tune from texts such as ``name=value,value``. Raises: ConfigError."""
    axes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, _, values = text.partition("=")
        if name in axes:
            raise ConfigError(f"--tune {text!r}: {name} is given twice")
        found = tuple(check_option(f"--tune {text!r}", name, value.strip()) for value in values.split(","))
        axes[name] = tuple(dict.fromkeys(found))
    return axes


def tune(names: Sequence[str], axes: Axes, settings: EngineSettings, evaluate: Evaluate) -> list[Tuned]:
    """Return the best static flags of each run in ``names``.

    ``settings`` hold for the engine where a run says nothing; values that do not go with them are left out.
    """
    scores: dict[str, dict[str, Score]] = {name: {} for name in names}
    kept = {name: [name] for name in names}
    for i, (flag, values) in enumerate(axes.items()):
        new = {name: variants([*scores[name], name], kept[name], flag, values, settings) for name in names}
        if not i:
            new = {name: [name, *new[name]] for name in names}
        found = evaluate([candidate for name in names for candidate in new[name]])
        for name in names:
            scores[name] |= {candidate: found[candidate] for candidate in new[name]}
            kept[name] = ranked(scores[name], name)[:KEPT]
    return [Tuned(name, kept[name][0], scores[name]) for name in names]


def ranked(scores: Mapping[str, Score], default: str) -> list[str]:
    """Return the names, best first, by the rule in the module's text."""
    left, order = dict(scores), []
    while left:
        order.append(_best(left, default))
        del left[order[-1]]
    return order


def _best(scores: Mapping[str, Score], default: str) -> str:
    top = max(scores.values(), key=lambda score: score.mean_attainment)
    same = {name: score for name, score in scores.items() if _is_noise(top.attainment, score.attainment)}
    fastest = max(score.mean_throughput for score in same.values())
    same = {name: score for name, score in same.items() if score.mean_throughput >= (1 - SAME_THROUGHPUT) * fastest}
    return min(same, key=lambda name: (name != default, _options(name), -same[name].mean_attainment))


def _options(name: str) -> int:
    """Return the number of options that a run's name has."""
    return name.count("=") + name.count("+")


def _is_noise(top: Sequence[float], other: Sequence[float]) -> bool:
    differences = np.subtract(top, other)
    error = differences.std(ddof=1) / np.sqrt(differences.size) if differences.size > 1 else 0.0
    return bool(differences.mean() <= max(error, SAME_ATTAINMENT))


def variants(
    known: Sequence[str],
    kept: Sequence[str],
    flag: str,
    values: Sequence[int],
    settings: EngineSettings,
) -> list[str]:
    """Return ``kept`` with each value of ``flag``, without engines that are ``known`` or that vLLM would refuse."""
    engines = [RunName.parse(candidate).engine_settings(settings) for candidate in known]
    found = []
    for candidate in kept:
        for value in values:
            variant = RunName.parse(candidate).with_option(flag, value)
            try:
                engine = variant.engine_settings(settings)
            except ConfigError:
                continue
            if engine not in engines:
                engines.append(engine)
                found.append(str(variant))
    return found


def evaluator(
    experiment: Experiment,
    jobs: int = 1,
    on_progress: Callable[[int, int], None] | None = None,
    points: Sequence[Point] | None = None,
) -> Evaluate:
    """Return a function that runs names as ``experiment`` says, and returns their scores.

    It runs at ``points``, or else at the points of the experiment, which are measured once. The function raises
    ConfigError where no request states a target.
    """
    points = measured_points(experiment, jobs) if points is None else points

    def evaluate(names: Sequence[str]) -> Mapping[str, Score]:
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
        if not names:
            return {}
        several = replace(experiment, policies=tuple(names))
        for run in run_experiment(several, jobs=jobs, on_progress=on_progress, points=points):
            record = run.record()
            in_time = record.get("tasks_in_time")
            attained = record["slo_attainment"] if in_time is None else in_time
            if attained is None:
                raise ConfigError(
                    f"{experiment.workload.name}: no request states a target and no task has a deadline, so there is "
                    "nothing to tune for"
                )
            found[run.policy].append((attained, record["output_throughput"] or 0.0))
        return {name: Score(*zip(*values, strict=True)) for name, values in found.items()}

    return evaluate


def tuned_halves(
    experiment: Experiment, axes: Axes, *, jobs: int = 1, on_progress: Callable[[int, int], None] | None = None
) -> tuple[Experiment, list[Tuned]]:
    """Tune every run on the earlier half of the experiment's window, with the engine model.

    Returns the experiment on the later half, with each run at its best beside the default, and what was found.
    """
    early, late = experiment.window.halves()
    evaluate = evaluator(replace(experiment, window=early, engine_kind=MODEL), jobs, on_progress)
    found = tune(experiment.policies, axes, experiment.engine, evaluate)
    policies = dict.fromkeys(name for one in found for name in (one.name, one.best))
    return replace(experiment, window=late, policies=tuple(policies)), found
