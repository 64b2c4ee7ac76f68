"""The command ``sloserve profile``."""

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from sloserve.cli.option_groups import with_option_groups
from sloserve.cli.root import app
from sloserve.vllm_plugin.server.vllm_arguments import VLLMArguments, our_flags, vllm_arguments


@dataclass(frozen=True, kw_only=True)
class MeasuringFlags:
    """Flags that choose which steps are measured and what is fitted to them: the fields of ``ProfileSettings``."""

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
    """Measure the step times of MODEL on this machine.

    The profile that is written serves simulations and predictions.
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
