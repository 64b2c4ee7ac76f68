"""``sloserve workloads``: what can be simulated."""

from sloserve.cli.root import app


@app.command()
def workloads() -> None:
    """List the named workloads, the named experiments and the shipped profiles."""
    from sloserve.estimator.step_time.profile import profile_names
    from sloserve.sim.experiments import EXPERIMENTS
    from sloserve.workloads.multi_model import KINDS
    from sloserve.workloads.workload_registry import WORKLOADS

    width = max(map(len, [*WORKLOADS, *EXPERIMENTS]))
    for item in WORKLOADS.values():
        print(f"workload    {item.name:<{width}}  {item.description}")
    for name, description in KINDS.items():
        print(f"of a fleet  {name:<{width}}  {description}")
    for name, row in EXPERIMENTS.items():
        print(f"experiment  {name:<{width}}  {row.question}")
    for name in profile_names():
        print(f"profile     {name}")
