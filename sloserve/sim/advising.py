"""Searches for advice for a person: progress, what was found, a file of settings and vLLM's flags."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from sloserve.core.errors import ConfigError
from sloserve.core.progress_bar import progress
from sloserve.scheduler.registry import main_policies, make_policy, parse_policy
from sloserve.sim.admissions import parse_admission
from sloserve.sim.advice_text import headline, judged_lines, settings_yaml, tie_lines, tried_lines, vllm_flags
from sloserve.sim.advise import Advice, Space, decide, search
from sloserve.sim.experiment import MODEL, VLLM, Experiment, Point, measured_points
from sloserve.sim.run_name import STOCK, RunName
from sloserve.sim.tuning import Axes, Evaluate, Score, evaluator

MIN_SEEDS = 3
"""The fewest seeds of a search; fewer seeds say nothing of the spread."""
BUDGET = ":step_budget=true"
AXES: Axes = {"max_num_batched_tokens": (512, 1024, 2048, 4096), "max_num_seqs": (64, 128, 256)}
ADMISSIONS = ("cap:max_waiting=16", "cap:max_waiting=64", "predict:min_chance=0.1", "predict:min_chance=0.5")
STOCK_CAPS = ("vllm:max_num_queued_tokens=16000", "vllm:max_num_queued_tokens=64000")


def space_for(
    experiment: Experiment,
    budget: int,
    *,
    policies: Sequence[str] | None = None,
    axes: Axes | None = None,
    admissions: Sequence[str] | None = None,
) -> Space:
    """Return what to search for ``experiment``, with the usual values where an argument is not given.

    Args:
        experiment: The experiment that advice is for.
        budget: Most runs of the search; each run that is tried takes one for each load and seed.
        policies: Policies to try beside stock.
        axes: Values to try of each flag.
        admissions: Our admissions and vLLM's; stock gets vLLM's alone.

    Raises: ConfigError for a name that is not known, or a budget that is too small to try anything beside stock.
    """
    points = len(experiment.seeds) * len(experiment.loads or experiment.rps or (1,))
    if budget < 2 * points:
        raise ConfigError(f"--budget: {budget} runs are too few; stock and one policy take {2 * points}")
    if len(experiment.seeds) < MIN_SEEDS:
        raise ConfigError(f"--seeds: {len(experiment.seeds)} is below {MIN_SEEDS}, with which nothing can be judged")
    given = candidates() if policies is None else tuple(name for name in policies if name != STOCK)
    caps = (*ADMISSIONS, *STOCK_CAPS) if admissions is None else tuple(name for name in admissions if name != "none")
    replace(experiment, policies=(STOCK, *given))  # fails for an unknown one
    for cap in caps:
        parse_admission(cap)
    if axes is None:
        # The profile extrapolates beyond these values.
        grid = experiment.profile.grid
        most = {"max_num_batched_tokens": grid.max_step_tokens, "max_num_seqs": grid.max_decode_seqs}
        axes = {flag: tuple(x for x in values if x <= most[flag]) or values[:1] for flag, values in AXES.items()}
    return Space(
        policies=given,
        sized=tuple(name for name in given if not _sets_step_size(name)),
        axes=axes,
        admissions=tuple(cap for cap in caps if not cap.startswith("vllm:")),
        stock_caps=tuple(cap for cap in caps if cap.startswith("vllm:")),
        most_names=budget // points,
    )


def candidates() -> tuple[str, ...]:
    """Return what is tried beside stock.

    These are the main policies, the general one first, as they are and with the step budget.
    """
    found = []
    for name in main_policies():
        # A policy that reads nothing has stock's order.
        found += [name] if make_policy(name).reads else []
        found += [] if _sets_step_size(name) else [name + BUDGET]
    return tuple(found)


def _sets_step_size(name: str) -> bool:
    """Return whether the policy sets the size of each step itself, and so runs at the engine's own limit alone."""
    return bool(make_policy(*parse_policy(RunName.parse(name).policy)).settings.step_budget)


def advise(
    experiment: Experiment,
    space: Space,
    out: Path,
    *,
    confirm: bool = True,
    jobs: int = 1,
    console: Console | None = None,
) -> Advice:
    """Search on the earlier half of the experiment's window, judge on the later half, and write ``out``.

    ``confirm`` says whether vLLM's scheduler runs what is advised, and what it is better than, once.
    """
    console = console or Console()
    if experiment.profile.marker:
        _say(console, [f"step times of profile {experiment.profile.title}"])
    if experiment.workload.trace is not None:
        _say(console, [experiment.workload.description])
    early, late = (replace(experiment, window=half, engine_kind=MODEL) for half in experiment.window.halves())
    found = search(space, experiment.engine, _shown("searching", early, console, jobs))
    _say(console, tried_lines(found))
    points = measured_points(late, jobs)
    judge = _shown("judging", late, console, jobs, points)
    real = replace(late, engine_kind=VLLM)
    check = _shown("confirming", real, console, 1, points[:1]) if confirm else None
    advice = decide(found, len(experiment.seeds), judge, check)
    for judged in advice.judged:
        _say(console, judged_lines(judged))
    _say(console, tie_lines(advice))
    slos = experiment.slos or experiment.workload.slos
    subject = f"{experiment.workload.name} on {experiment.profile.title}"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(settings_yaml(advice, slos.table, experiment.engine, subject), encoding="utf-8")
    flags = " ".join(vllm_flags(advice.name, experiment.engine))
    command = f"sloserve serve MODEL --slo-config {out} {flags}"
    _say(console, [headline(advice), f"wrote {out}; use it with:", f"  {command}"])
    return advice


def _shown(
    what: str, experiment: Experiment, console: Console, jobs: int, points: Sequence[Point] | None = None
) -> Evaluate:
    """Return an evaluation that shows a progress bar for each call."""
    found = measured_points(experiment, jobs) if points is None else points

    def evaluate(names: Sequence[str]) -> Mapping[str, Score]:
        with progress(f"{what}, requests", console) as bar:
            return evaluator(experiment, jobs, bar.update, found)(names)

    return evaluate


def _say(console: Console, lines: Sequence[str]) -> None:
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False, markup=False)
