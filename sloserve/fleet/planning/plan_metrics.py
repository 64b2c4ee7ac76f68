"""Figures of the plan on ``/metrics``, for an autoscaler."""

from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from sloserve.fleet.contract.plan_in_force import PlanInForce
from sloserve.fleet.planning.scaling import REPLAYED_S, instances_needed


class PlanCollector(Collector):
    """Prometheus metrics of the plan in force.

    Args:
        plan: Returns the plan in force; ``None`` before the first.
    """

    def __init__(self, plan: Callable[[], PlanInForce | None]) -> None:
        self._plan = plan

    def collect(self) -> Iterable[Any]:
        plan = self._plan()
        if plan is None:
            return
        pressure = GaugeMetricFamily(
            "sloserve:slo_pressure",
            "Expected time to serve what waits over the time that its deadlines leave; 1 is full.",
            labels=["class"],
        )
        for slo_class, value in sorted(plan.pressure.items()):
            pressure.add_metric([slo_class], value)
        yield pressure
        yield GaugeMetricFamily(
            "sloserve:fleet_instances", "Instances that the plan is made for.", value=float(len(plan.queues))
        )
        wanted = len(plan.queues) if plan.instances_needed is None else plan.instances_needed
        yield GaugeMetricFamily(
            "sloserve:fleet_wanted_instances",
            "Instances with which no deadline would be missed; as many as there are where none is.",
            value=float(wanted),
        )
        yield from _replayed(plan)
        yield GaugeMetricFamily(
            "sloserve:fleet_late_seconds", "Lateness that the plan is expected to bring, summed.", value=plan.late_s
        )


def _replayed(plan: PlanInForce) -> Iterable[GaugeMetricFamily]:
    """Yield the need by replays, while it counts: a fleet without one has no such series, and scalers hold still."""
    found = plan.replayed
    if found is None or plan.made_s - found.read_s > REPLAYED_S:
        return
    needed = GaugeMetricFamily(
        "sloserve:fleet_replicas_needed",
        "Fewest instances that may keep the objective, that keep it as expected, and that surely do, by replays.",
        labels=["bound"],
    )
    for bound in ("low", "expected", "high"):
        needed.add_metric([bound], float(getattr(found, bound)))
    # What Ray's autoscaler is asked for, before its hold times: lines or streams may need more than replays found.
    needed.add_metric(["now"], float(instances_needed(plan)))
    yield needed
    yield GaugeMetricFamily(
        "sloserve:fleet_objective_ratio", "Share of requests that shall meet their targets.", value=found.objective
    )
    yield GaugeMetricFamily(
        "sloserve:fleet_replayed_seconds", "Seconds of traffic that the last replays covered.", value=found.covers_s
    )
