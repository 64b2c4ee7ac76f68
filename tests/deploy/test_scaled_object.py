"""The ScaledObject of a fleet's agents: its query, as KEDA asks it, gives the agents that the plan needs.

KEDA hands the value of a query to a HorizontalPodAutoscaler, which with AverageValue wants ceil(value / threshold)
replicas, and makes or removes the last one itself by ``activationThreshold``.
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from sloserve.fleet.contract.plan_in_force import PlanInForce, ReplayedNeed
from sloserve.fleet.file import parse_fleet
from sloserve.fleet.planning.plan_metrics import PlanCollector
from tests.deploy.rendered import validate
from tests.grafana.queries import check_dashboard
from tests.grafana.test_alerts import promtool

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
MADE: dict[str, Any] = yaml.safe_load((FOLDER / "scaling" / "scaledobject.yaml").read_text())
TRIGGER = MADE["spec"]["triggers"][0]["metadata"]
PLAN = PlanInForce(1000.0, {"agents-0/0": ()}, replayed=ReplayedNeed(1000.0, 0.95, 2, 3, 4, 600.0, 900))


def text_of(plan: PlanInForce) -> str:
    registry = CollectorRegistry()
    registry.register(PlanCollector(lambda: plan))
    return generate_latest(registry).decode()


def series(plan: PlanInForce, *gateways: str) -> list[dict[str, str]]:
    """The plan's series as Prometheus stores them from these gateways."""
    found = []
    for line in text_of(plan).splitlines():
        if line.startswith("sloserve:fleet_replicas_needed{"):
            name, value = line.rsplit(" ", 1)
            found += [
                {"series": name.replace("}", f',namespace="default",pod="{pod}"}}'), "values": f"{float(value):g}x20"}
                for pod in gateways
            ]
    return found


def wanted(value: float) -> int:
    assert MADE["spec"]["triggers"][0]["metricType"] == "AverageValue"
    if value <= float(TRIGGER["activationThreshold"]):
        return int(MADE["spec"]["minReplicaCount"])
    return min(math.ceil(value / float(TRIGGER["threshold"])), int(MADE["spec"]["maxReplicaCount"]))


def test_the_query_asks_for_a_gauge_of_ours() -> None:
    query = TRIGGER["query"].replace(', namespace="default"', "")
    panel = {"title": "scale", "targets": [{"expr": query, "legendFormat": ""}]}
    assert check_dashboard({"panels": [panel], "templating": {"list": []}}, text_of(PLAN)) == []


IDLE = ReplayedNeed(1000.0, 0.95, 0, 0, 0, 600.0)


@pytest.mark.parametrize(
    ("plan", "value", "agents"),
    [
        (PLAN, 4.0, 4),
        (replace(PLAN, replayed=replace(PLAN.replayed, high=9)), 9.0, 6),  # type: ignore[type-var]
        (replace(PLAN, replayed=IDLE), 0.0, 0),
        (replace(PLAN, replayed=IDLE, waiting=1), 1.0, 1),
    ],
)
def test_prometheus_gives_keda_the_agents_that_the_plan_needs(
    plan: PlanInForce, value: float, agents: int, tmp_path: Path
) -> None:
    case = {
        "interval": "15s",
        "input_series": series(plan, "gateway-a", "gateway-b"),
        "promql_expr_test": [
            {"expr": TRIGGER["query"], "eval_time": "2m", "exp_samples": [{"labels": "{}", "value": value}]},
            {"expr": TRIGGER["query"], "eval_time": "20m", "exp_samples": []},
        ],
    }
    file = tmp_path / "keda.test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [], "evaluation_interval": "15s", "tests": [case]}))
    tested = promtool("test", "rules", str(file))
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert wanted(value) == agents


def test_it_scales_the_agents_of_the_fleet() -> None:
    agents = yaml.safe_load((FOLDER / "fleet" / "agents.yaml").read_text())
    target = MADE["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == (agents["kind"], agents["metadata"]["name"])
    validate([MADE])
    assert TRIGGER["ignoreNullValues"] == "false" and MADE["spec"]["fallback"]["replicas"] >= 1


def test_a_fleet_replays_its_traffic_where_its_file_says_so() -> None:
    file = (FOLDER / "fleet" / "fleet.yaml").read_text()
    assert not parse_fleet(file, to_run=True).replays_traffic
    assert parse_fleet(file + "\npool: {scaling: {replay_s: 20}}\n", to_run=True).replays_traffic
