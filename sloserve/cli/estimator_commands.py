"""What predictions and choices are made from: ``sloserve profile``, ``train-length``, ``train-router`` and
``router-quality``.
"""

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from sloserve.cli.option_groups import with_option_groups
from sloserve.cli.output_flags import JsonFlag
from sloserve.cli.root import VLLMArguments, app, our_flags, vllm_arguments


@app.command("train-length")
def train_length(
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA.jsonl",
            help="One request a line: output_tokens or output; prompt, prompt_tokens, max_tokens, task, arrival_s.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option(help="File for the model.")] = Path("length-model.json"),
    text: Annotated[bool, typer.Option(help="Learn from the prompts' text, if the file has it.")] = True,
    seeds: Annotated[int, typer.Option(help="Number of random splits to report on.")] = 3,
    held_out: Annotated[float, typer.Option(help="Share of the requests held out in each split.")] = 0.2,
    seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
    as_json: JsonFlag = False,
) -> None:
    """Train a model of output lengths on DATA.jsonl, and report its quality on held-out requests.

    The final model is trained on all of DATA. Its file holds numbers only; predicting needs only numpy. See
    docs/profile.md.
    """
    from sloserve.estimator.length.train_and_report import train_and_report

    train_and_report(data, out, text=text, seeds=seeds, share=held_out, seed=seed, as_json=as_json)


@dataclass(frozen=True, kw_only=True)
class TrainingFlags:
    """What a router learns from: the fields of its ``TrainingSettings`` that have flags."""

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
    as_json: JsonFlag = False,
) -> None:
    """Train a router, which chooses the model of each request, in a simulation of the system in ROUTER.yaml.

    The policy is compared with each model alone and with greedy, which needs no training: the best model for the task
    that should be in time. It is written after each tenth of the training. Serving it needs only numpy. See
    docs/router.md.
    """
    # Threads of numpy and torch that wait for each other take many times longer than such small products do.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    from sloserve.fleet.router.train_command import train_and_report
    from sloserve.fleet.router.training_settings import TrainingSettings

    settings = TrainingSettings(**asdict(training))
    train_and_report(file, out, settings, evaluate=evaluate, plots=plots, as_json=as_json)


@app.command("router-quality")
def router_quality(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
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
    """Make the router's quality table from graded answers, with intervals.

    Written is a router's file with `models` and `quality`: accuracy relative to the best model of each task. Comments
    have accuracies with Wilson's 95 % intervals. See docs/router.md.
    """
    from sloserve.fleet.router.quality_command import quality_and_report

    quality_and_report(files, out, models=models, names=name or [], metric=metric, filtered=filtered, as_json=as_json)


@dataclass(frozen=True, kw_only=True)
class MeasuringFlags:
    """Which steps are measured, and what is fitted to them: the fields of ``ProfileSettings``."""

    grid: Annotated[
        str, typer.Option(help="full, or small for a trial of seconds whose profile should not be used.")
    ] = "full"
    repetitions: Annotated[int, typer.Option(help="Number of measurements of each kind of step; medians count.")] = 3
    max_context_tokens: Annotated[
        int, typer.Option(help="Most KV cache tokens that a measurement fills; filling takes most of the time.")
    ] = 131_072
    form: Annotated[str, typer.Option(help="Latency form: hinge, distserve or bilinear.")] = "hinge"


@app.command(context_settings={"ignore_unknown_options": True})
@with_option_groups
def profile(
    context: typer.Context,
    *,
    arguments: VLLMArguments = None,
    out: Annotated[Path, typer.Option(help="File for the profile.")] = Path("profile.yaml"),
    raw: Annotated[
        Path | None,
        typer.Option(
            help="File for raw measurements, from which an interrupted run continues. Default: --out with .jsonl."
        ),
    ] = None,
    measuring: MeasuringFlags,
) -> None:
    """Measure step times of MODEL on this machine, and write a profile for simulations and predictions.

    Steps of many sizes are timed on vLLM's real engine, and a latency form is fitted to them; its error is measured on
    steps that the fit did not see. An interrupted run continues where it stopped. MODEL may be builtin:tiny. See
    docs/profile.md.
    """
    from sloserve.estimator.step_time.profiling import ProfileSettings
    from sloserve.vllm_plugin.server import serve

    settings = ProfileSettings(**asdict(measuring))
    # The worker in this process, so that loading can be timed; read when vLLM is imported.
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    if "builtin:tiny" in (arguments or []):
        # Threads that wait for each other take longer than the tiny model does.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    passed_on = vllm_arguments(context, arguments)
    serve.check_arguments(passed_on, our_flags(context))
    args = serve.prepare(passed_on, our_flags(context))

    from sloserve.vllm_plugin.profile_engine import profile_model

    profile_model(args, settings, out, raw or out.with_suffix(".jsonl"))
