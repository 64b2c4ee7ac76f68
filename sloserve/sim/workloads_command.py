"""The command ``sloserve workloads``, which lists what can be simulated."""

from typing import Annotated

import typer

from sloserve.cli.output_flags import JsonFlag, columns
from sloserve.cli.root import app
from sloserve.core import json_text


@app.command()
def workloads(
    show_experiments: Annotated[
        bool, typer.Option("--experiments", help="List the named experiments, most of which reproduce a paper.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """List the workloads and profiles for simulations.

    `sloserve simulate` takes a workload as --workload, tasks as --tasks, a profile as --profile, and an experiment,
    which names all three, as --experiment.
    """
    from sloserve.estimator.step_time.profile import load_profile, profile_names
    from sloserve.sim.experiments import experiments
    from sloserve.sim.workloads.multi_model import KINDS
    from sloserve.sim.workloads.tasks.registry import TASK_WORKLOADS
    from sloserve.sim.workloads.workload_registry import WORKLOADS

    found = {
        "workload": {item.name: item.description for item in WORKLOADS.values()},
        "tasks": {item.name: item.description for item in TASK_WORKLOADS.values()},
        "of a fleet": dict(KINDS),
        "experiment": {name: row.question for name, row in experiments().items()},
        "profile": {name: load_profile(name).marker for name in profile_names()},
    }
    if as_json:
        print(json_text.dumps({kind.replace(" ", "_"): names for kind, names in found.items()}, indent=2))
        return
    listed = {kind: names for kind, names in found.items() if (kind == "experiment") is show_experiments}
    print(columns([(kind, name, text) for kind, names in listed.items() for name, text in names.items()]))
    if not show_experiments:
        print(f"\nThere are also {len(found['experiment'])} named experiments: sloserve workloads --experiments")
