"""What a fleet may rely on in each of its plans."""

from sloserve.lso.plan import PlanError
from sloserve.scheduler.virtual_queues.contract import FleetPlan, FleetState


def check_fleet_plan(plan: FleetPlan, state: FleetState) -> None:
    """Raises PlanError unless each group is planned once, on an instance that is there and can serve its model."""
    models = {group.ref: group.model for group in state.groups}
    serves = {instance.name: instance.models for instance in state.instances}
    found: set[int] = set()
    for name, queue in plan.queues.items():
        if name not in serves:
            raise PlanError(f"queues: no instance is named {name!r}")
        for ref in queue:
            if ref not in models:
                raise PlanError(f"queue of {name!r}: there is no group {ref}")
            if ref in found:
                raise PlanError(f"queue of {name!r}: group {ref} is planned twice")
            if models[ref] not in serves[name]:
                raise PlanError(f"queue of {name!r}: group {ref} asks for {models[ref]!r}, which it cannot serve")
            found.add(ref)
    nowhere = {ref for ref, model in models.items() if not any(model in can for can in serves.values())}
    if set(plan.unserved) != nowhere:
        raise PlanError(f"unserved: {sorted(plan.unserved)}; no instance can serve {sorted(nowhere)}")
    if missing := models.keys() - found - nowhere:
        raise PlanError(f"queues: groups {sorted(missing)} are in none")
