"""The dashboard asks only for what a server shows."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from tests.grafana.queries import check_dashboard, queries, read_scrape

DASHBOARD = json.loads((Path(__file__).parents[2] / "configs" / "grafana" / "sloserve.json").read_text())
METRICS_PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
GRID_COLUMNS = 24


@pytest.mark.slow
def test_every_query_can_be_answered(metrics_text: str, fleet_text: str, gateway_text: str) -> None:
    assert check_dashboard(DASHBOARD, metrics_text + fleet_text + gateway_text) == []
    scrape = read_scrape(metrics_text + fleet_text + gateway_text)
    assert [name for name, labels in scrape.items() if labels is None] == [], "metrics without a sample: not checked"


def test_every_metric_of_ours_is_on_the_dashboard(metrics_text: str) -> None:
    asked = " ".join(query for _, query, _ in queries(DASHBOARD))
    families = {line.split()[2] for line in metrics_text.splitlines() if line.startswith("# TYPE sloserve:")}
    missing = {name for name in families if name not in asked and not name.endswith("_created")}
    assert missing == {"sloserve:slo_targets_total"}  # what the violations are a share of; nobody looks at it alone


def test_the_plan_of_a_fleet_is_on_the_dashboard(fleet_text: str) -> None:
    asked = " ".join(query for _, query, _ in queries(DASHBOARD))
    families = {line.split()[2] for line in fleet_text.splitlines() if line.startswith("# TYPE sloserve:")}
    assert len(families) >= 7 and {name for name in families if name not in asked} == set()


def test_what_an_operator_needs_of_a_gateway_is_on_the_dashboard(gateway_text: str) -> None:
    """Left out are figures of the router, which its own page judges, and sums of what panels show otherwise."""
    asked = " ".join(query for _, query, _ in queries(DASHBOARD))
    families = {line.split()[2] for line in gateway_text.splitlines() if line.startswith("# TYPE sloserve:")}
    missing = {
        name.removeprefix("sloserve:") for name in families if name not in asked and not name.endswith("_created")
    }
    assert {name for name in missing if not name.startswith("gateway_auto_")} == {
        "gateway_promises_refused_total",
        "gateway_tenant_promises_total",
        "gateway_tenant_requests_total",
        "fleet_file_applied_timestamp_seconds",
    }


def test_every_metric_of_ours_is_in_the_docs(metrics_text: str) -> None:
    described = set(re.findall(r"`(?:sloserve:)?(\w+)`", METRICS_PAGE.read_text()))
    families = {line.split()[2] for line in metrics_text.splitlines() if line.startswith("# TYPE sloserve:")}
    ours = {name.removeprefix("sloserve:") for name in families if not name.endswith("_created")}
    assert ours - described == set(), "to be described in docs/metrics.md"


def _dashboard(expr: str, legend: str = "") -> dict[str, Any]:
    panel = {"title": "p", "targets": [{"expr": expr, "legendFormat": legend}]}
    row = {"title": "r", "panels": [panel]}
    named = [{"name": name, "type": "custom"} for name in ("instance", "class")]
    return {"panels": [row], "templating": {"list": named}}


@pytest.mark.parametrize(
    ("expr", "legend", "problem"),
    [
        ("sum(rate(m_total[5m])", "", "unclosed left parenthesis"),
        ("rate(m[5m])", "", "no metric m"),
        ('m_total{tenant="a"}', "", "m_total has no label tenant"),
        ('m_total{class="c"}', "", "m_total has no class='c'"),
        ("sum by (tenant) (m_total)", "", "sum by or without tenant, which nothing has"),
        ("sum by (class) (m_total)", "{{job}}", "the legend's label job is not in the result"),
        ("histogram_quantile(0.9, sum by (class) (rate(h_bucket[5m])))", "", "histogram_quantile of series without le"),
        ('m_total{instance=~"$instances"}', "", "variable $instances is not defined"),
        ('m_total{class=~"a|c"}', "", "m_total has no class='c'"),
        ('m_total{class!="c"}', "", "m_total has no class='c'"),
        (
            "sum by (class) (m_total) / sum by (class, le) (h_bucket)",
            "",
            "/ matches no series, since only one side has le",
        ),
        ("m_total and on (class, le) h_count", "", "and on le, which one side lacks"),
        ("1 + sum without (class) (m_total)", "{{class}}", "the legend's label class is not in the result"),
    ],
)
def test_a_query_that_cannot_be_answered_is_found(expr: str, legend: str, problem: str) -> None:
    registry = CollectorRegistry()
    Counter("m", "m", ["class"], registry=registry).labels("a")
    Histogram("h", "h", ["class"], registry=registry).labels("a")
    problems = check_dashboard(_dashboard(expr, legend), generate_latest(registry).decode())
    assert len(problems) == 1 and problem in problems[0], problems


@pytest.mark.parametrize(
    ("expr", "legend"),
    [
        ("2 * topk(3, sum by (class) (rate(m_total[$__rate_interval])))", "{{class}}"),
        ('(m_total{instance=~"$instance", class="a"} / on (class) h_count) > 0', "{{class}} {{instance}}"),
        ("histogram_quantile(0.9, rate(h_bucket[5m]))", "{{class}} {{job}}"),
        ("max_over_time(not_yet[5m:1m])", "{{anything}}"),
        (
            'sum by (class) (m_total{class=~"a|$class"}) / on (class) group_left () sum by (class) (h_count) > 0',
            "{{class}}",
        ),
        ("sum by (class, le) (h_bucket) or sum by (class) (m_total)", "{{class}}"),
    ],
)
def test_a_query_that_can_be_answered_is_not_complained_of(expr: str, legend: str) -> None:
    registry = CollectorRegistry()
    Counter("m", "m", ["class"], registry=registry).labels("a")
    Histogram("h", "h", ["class"], registry=registry).labels("a")
    Gauge("not_yet", "declared, without a sample", ["class"], registry=registry)
    assert check_dashboard(_dashboard(expr, legend), generate_latest(registry).decode()) == []


def test_panels_say_what_they_show_and_lie_side_by_side() -> None:
    taken: set[tuple[int, int]] = set()
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + i, place["y"] + j) for i in range(place["w"]) for j in range(place["h"])}
        assert not cells & taken and max(x for x, _ in cells) < GRID_COLUMNS, panel["title"]
        taken |= cells
        if panel["type"] != "row":
            assert panel["description"].endswith(".") and panel["datasource"]["uid"] == "${datasource}"
