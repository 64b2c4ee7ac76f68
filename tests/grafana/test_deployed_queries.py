"""All that deploy/ asks of Prometheus can be answered: rules, alerts, and what KEDA scales by.

The Helm chart's own query is checked where the chart is rendered (``tests/deploy/test_helm.py``); its names are here.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.grafana.queries import check_dashboard, read_scrape
from tests.grafana.test_alerts import recorded_series

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
TEMPLATES = DEPLOY / "helm" / "sloserve" / "templates"
ASKS = ("expr", "query")
"""Keys of which the values are PromQL: of rules, and of KEDA's triggers."""
_NAME = re.compile(r"(?<![\w/.:-])(?:sloserve:(?!8000|gpu)|vllm:|class:sloserve)\w[\w:]*")


def asked(value: Any) -> Iterator[str]:
    """Every query in a YAML document."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in ASKS and isinstance(inner, str):
                yield inner
            yield from asked(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from asked(inner)


def documents() -> dict[str, list[Any]]:
    """The documents of each YAML file below deploy/ that is no template."""
    paths = [path for path in DEPLOY.rglob("*.y*ml") if not path.is_relative_to(TEMPLATES)]
    return {str(path.relative_to(ROOT)): list(yaml.safe_load_all(path.read_text())) for path in paths}


@pytest.mark.slow
def test_every_query_below_deploy_can_be_answered(metrics_text: str, fleet_text: str, gateway_text: str) -> None:
    found = {path: queries for path, made in documents().items() if (queries := list(asked(made)))}
    assert sorted(found) == [
        "deploy/helm/sloserve/files/sloserve.rules.yaml",
        "deploy/kubernetes/alerts/rules.yaml",
        "deploy/kubernetes/scaling/scaledobject.yaml",
        "deploy/prometheus/sloserve.rules.yaml",
    ]
    text = f"{metrics_text}{fleet_text}{gateway_text}{recorded_series()}"
    for path, queries in found.items():
        targets = [{"expr": query, "legendFormat": ""} for query in queries]
        board = {"panels": [{"title": path, "targets": targets}], "templating": {"list": []}}
        assert check_dashboard(board, text) == []


@pytest.mark.slow
def test_every_metric_that_a_file_below_deploy_names_exists(
    metrics_text: str, fleet_text: str, gateway_text: str
) -> None:
    """Templates and comments too, which no parser reads."""
    known = read_scrape(f"{metrics_text}{fleet_text}{gateway_text}{recorded_series()}")
    named = {
        (str(path.relative_to(ROOT)), name)
        for path in DEPLOY.rglob("*")
        if path.is_file()
        for name in _NAME.findall(path.read_text(errors="replace"))
    }
    assert ("deploy/helm/sloserve/templates/autoscaling.yaml", "sloserve:queue_requests") in named
    assert {(path, name) for path, name in named if name not in known} == set()
