"""The command ``sloserve advise``."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from sloserve.cli.option_groups import with_option_groups
from sloserve.cli.root import app
from sloserve.sim.experiment_options import AdviseOptions, SimulateOptions


@dataclass(frozen=True, kw_only=True)
class SearchFlags:
    """The options that say what is tried, on what traffic, and how much of it."""

    policy: Annotated[
        str | None,
        typer.Option(
            help="Policies to try, comma-separated. Default: all that `sloserve policies` lists for servers, as they "
            "are and with step_budget=true."
        ),
    ] = None
    tune: Annotated[
        list[str] | None,
        typer.Option(help="A vLLM flag and the values to try, max_num_seqs=64,128; may be repeated."),
    ] = None
    admission: Annotated[
        str | None,
        typer.Option(
            help="Admissions to try, comma-separated; vllm:... for stock, none for no admission. Default: several "
            "of each."
        ),
    ] = None
    recording: Annotated[
        str | None,
        typer.Option(
            help="Recorded traffic in place of --workload or --trace: a name of `sloserve record show`, or latest. The "
            "engine's sizes are the recorded ones where no flag gives others."
        ),
    ] = None
    record_folder: Annotated[
        Path | None, typer.Option(help="Folder of --recording. Default: sloserve/recordings in your folder of state.")
    ] = None
    budget: Annotated[
        int, typer.Option(help="Most runs of the search. Each load, seed and combination is one run.")
    ] = 300


@app.command()
@with_option_groups
def advise(
    options: AdviseOptions,
    search: SearchFlags,
    confirm: Annotated[
        bool, typer.Option(help="Run the advised settings, and those they beat, once on vLLM's own scheduler.")
    ] = True,
    jobs: Annotated[int, typer.Option(help="Number of processes; the advice does not depend on it.")] = 1,
    out: Annotated[Path, typer.Option(help="Settings file to write, for `sloserve serve --slo-config`.")] = Path(
        "advice.yaml"
    ),
) -> None:
    """Recommend a policy, engine flags and an admission.

    They are recommended for a workload and written as settings.
    Combinations are tried on the earlier half of the workload, in a fast model of vLLM's scheduler. The best one is
    compared with stock vLLM at stock's best flags on the later half, and advised only if it is better there. Without
    --rps, --rate-scale or --load the load is the workload's own rate. Give your engine's --max-num-seqs,
    --max-num-batched-tokens and --max-model-len where they are not the profile's. See docs/advise.md.
    """
    from sloserve.sim.advising import advise as run
    from sloserve.sim.advising import space_for
    from sloserve.sim.build_experiment import build_experiment, listed
    from sloserve.sim.tuning import parse_axes

    if confirm:
        from sloserve.vllm_plugin.versions import require_vllm

        require_vllm()
    if options.load is None and options.rps is None and options.rate_scale is None:
        options = replace(options, rate_scale=1.0)
    simulated = SimulateOptions(**asdict(options), policy="stock", engine="model")
    if search.recording is None:
        experiment = build_experiment(simulated)
    else:
        from sloserve.engine.recording.reading import find_recording
        from sloserve.sim.recorded_experiment import experiment_of

        name, recording = find_recording(search.record_folder, search.recording)
        experiment = experiment_of(recording, name, simulated)
    space = space_for(
        experiment,
        search.budget,
        policies=None if search.policy is None else listed(search.policy),
        axes=parse_axes(search.tune) if search.tune else None,
        admissions=None if search.admission is None else listed(search.admission),
    )
    run(experiment, space, out, confirm=confirm, jobs=jobs)
