"""The command ``sloserve workloads``, which lists what can be simulated."""

from sloserve.cli.output_flags import JsonFlag, columns
from sloserve.cli.root import app
from sloserve.core import json_text


@app.command()
def workloads(as_json: JsonFlag = False) -> None:
    """List the named workloads, the named experiments and the shipped profiles."""
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
    print(columns([(kind, name, text) for kind, names in found.items() for name, text in names.items()]))
