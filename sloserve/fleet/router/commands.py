"""Commands that make the inputs of a fleet's router: ``sloserve train-router`` and ``router-quality``."""

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from sloserve.cli.option_groups import with_option_groups
from sloserve.cli.output_flags import JsonFlag
from sloserve.cli.root import app
from sloserve.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class TrainingFlags:
    """Settings of the training: the fields of ``TrainingSettings`` that have flags."""

    steps: Annotated[int, typer.Option(help="Number of simulated requests to learn from.")] = 1_200_000
    seed: Annotated[int, typer.Option(help="Seed of weights, arrivals and exploration.")] = 0
    masked: Annotated[bool, typer.Option(help="Choose only among models that should be in time, or among all.")] = True


@app.command("train-router")
@with_option_groups
def train_router(
    file: Annotated[
        Path, typer.Argument(metavar="ROUTER.yaml", help="Models, quality table and system.", show_default=False)
    ],
    *,
    out: Annotated[Path, typer.Option(help="File for the policy.")] = Path("router.safetensors"),
    training: TrainingFlags,
    evaluate: Annotated[
        Path | None,
        typer.Option(help="Judge this policy instead of training one.", metavar="POLICY", show_default=False),
    ] = None,
    plots: Annotated[Path | None, typer.Option(help="Folder for figures. Default: no figures.")] = None,
    from_logs: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Learn from this log of choices, not from a simulation; repeatable."),
    ] = None,
    start: Annotated[
        Path | None,
        typer.Option(help="With --from-logs: begin at the weights of this policy.", metavar="POLICY"),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Train a router, which chooses a model for each request.

    It is trained in a simulation of ROUTER.yaml, or from logs.
    The policy is compared with each model alone and with greedy, which needs no training: the best model for the task
    that should be in time. It is written after each tenth of the training. Serving it needs only numpy. A policy from
    logs is written only if the log shows that it is not worse than greedy. See docs/router.md.
    """
    # Threads of numpy and torch that wait for each other take many times longer than such small products do.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    from sloserve.fleet.router.train_command import train_and_report
    from sloserve.fleet.router.training_settings import TrainingSettings

    settings = TrainingSettings(**asdict(training))
    if from_logs:
        if evaluate is not None or plots is not None:
            raise ConfigError("--from-logs: cannot be used with --evaluate or --plots, which simulate")
        from sloserve.fleet.router.logs_command import train_from_logs

        train_from_logs(file, out, settings, from_logs, start=start, as_json=as_json)
        return
    if start is not None:
        raise ConfigError("--start: only with --from-logs")
    train_and_report(file, out, settings, evaluate=evaluate, plots=plots, as_json=as_json)


@app.command("router-quality")
def router_quality(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE",
            help="Folders or samples_*.jsonl of lm_eval --log_samples, or JSON with model, task and score.",
            show_default=False,
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="File for the table. Default: standard output.")] = None,
    models: Annotated[
        str | None, typer.Option(help="All models, smallest first, comma-separated. Default: least accurate first.")
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option(metavar="MODEL=FOLDER", help="Name of a model in the router, for one of lm_eval's folders."),
    ] = None,
    metric: Annotated[str, typer.Option(help="The score of lm_eval that counts, as acc_norm or exact_match.")] = "acc",
    filtered: Annotated[
        str | None,
        typer.Option("--filter", help="The filter of lm_eval, where a task has several.", show_default=False),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Make a router's quality table from graded answers.

    Written is a router's file with `models` and `quality`: accuracy relative to the best model of each task. Comments
    have accuracies with Wilson's 95 % intervals. See docs/router.md.
    """
    from sloserve.fleet.router.quality_command import quality_and_report

    quality_and_report(files, out, models=models, names=name or [], metric=metric, filtered=filtered, as_json=as_json)
