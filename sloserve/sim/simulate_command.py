"""The command ``sloserve simulate``."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from sloserve.cli import registered
from sloserve.cli.option_groups import given, with_option_groups
from sloserve.cli.root import app
from sloserve.core.errors import ConfigError
from sloserve.sim.experiment_options import FleetOptions, SimulateOptions
from sloserve.sim.report.output_flags import OutputFlags

_OF_A_FLEET = tuple(field.name for field in fields(FleetOptions))
_ALTERNATIVES = (("workload", "trace", "tasks"), ("rps", "rate_scale", "load", "task_rate"))
"""The alternatives of which one is given, so that a flag displaces the others in an experiment's row."""


@dataclass(frozen=True, kw_only=True)
class FleetFlags:
    """The options of a fleet, which is simulated in place of a single engine."""

    fleet: Annotated[
        Path | None,
        typer.Option(
            help="File of a fleet, several models on several instances (docs/fleet.md). --workload is then w-a, "
            "w-b or w-c, as w-a:latency_share=0.2:tail_share=0.1. --policy names dispatchers: qlm, edf, collate, "
            "on-demand, as a live fleet's planner, or a rival: qlm-paper, fifo, static; the engines' policy "
            "follows after a slash, collate:max_wait_s=20/edf. --engine is "
            "then model by default."
        ),
    ] = None
    swap_cost: Annotated[
        float | None,
        typer.Option(help="With --fleet: time of model swaps as a multiple of the profiles' times. Default: 1."),
    ] = None


@app.command()
@with_option_groups
def simulate(
    context: typer.Context,
    *,
    options: SimulateOptions,
    experiment: Annotated[
        str | None,
        typer.Option(
            help="A named set of these flags; `sloserve workloads --experiments` lists them. Flags override it."
        ),
    ] = None,
    tune: Annotated[
        list[str] | None,
        typer.Option(
            help="An engine flag and the values to try, max_num_batched_tokens=512,1024,2048; may be repeated. "
            "Each policy is tuned on the earlier half of the window, and judged on the later half with and without "
            "the result."
        ),
    ] = None,
    fleet: FleetFlags,
    jobs: Annotated[int, typer.Option(help="Number of processes; results do not depend on it.")] = 1,
    output: OutputFlags,
) -> None:
    """Compare policies on a workload in virtual time.

    Steps are planned by vLLM's real scheduler, or by a model of it.
    Stock (vLLM's AsyncScheduler) and every policy get the same requests and run through the same loop. Without --rps,
    --rate-scale or --load a trace is replayed at its recorded rate, and a named workload at 0.7, 1, 1.5 and 2 times
    stock's capacity. See docs/simulate.md.
    """
    from sloserve.sim.build_experiment import build_experiment
    from sloserve.sim.experiments import experiment_flags
    from sloserve.sim.simulation import simulate as run
    from sloserve.sim.tuning import parse_axes

    flags = given(context, options)
    if fleet.fleet is not None:
        if fleet.swap_cost is not None:
            flags["swap_cost"] = fleet.swap_cost
        _simulate_fleet(fleet.fleet, flags, output, other=bool(experiment or tune), jobs=jobs)
        return
    if fleet.swap_cost is not None:
        raise ConfigError("--swap-cost goes with --fleet; a single engine swaps no models")
    row = experiment_flags(experiment) if experiment is not None else {}
    for alternatives in _ALTERNATIVES:
        if any(name in flags for name in alternatives):
            row = {name: value for name, value in row.items() if name not in alternatives}
    built = build_experiment(SimulateOptions(**(row | flags)))
    axes, console = parse_axes(tune or ()), output.console()
    run(built, output.out, token_log=output.token_log, jobs=jobs, axes=axes, console=console)
    output.show_result()


def _simulate_fleet(fleet: Path, flags: dict[str, Any], output: OutputFlags, *, other: bool, jobs: int) -> None:
    wrong = [f"--{name.replace('_', '-')}" for name in flags if name not in _OF_A_FLEET]
    if wrong or other:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in _OF_A_FLEET)
        raise ConfigError(f"--fleet goes with {names} alone, not with {', '.join(wrong) or '--experiment or --tune'}")
    run = registered.load(registered.SIMULATORS, "fleet")
    run(fleet, FleetOptions(**flags), output.out, token_log=output.token_log, jobs=jobs, console=output.console())
    output.show_result()
