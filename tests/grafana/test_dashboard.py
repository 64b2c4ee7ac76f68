"""The dashboard asks only for what a server shows."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from sloserve.core.clock import ManualClock
from sloserve.core.finished import Latency
from sloserve.core.outcome import Outcome
from sloserve.core.predicted import Predicted, Quantiles
from sloserve.core.served import ServedRequest
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.engine.metrics.collectors import FrontEndMetrics
from sloserve.engine.metrics.engine_page import Layout, PageWriter, find_pages
from sloserve.engine.metrics.process_page import Board, Boards
from sloserve.engine.metrics.task_metrics import OpenTasksGauge
from sloserve.engine.metrics.task_page import TaskPage, TaskPages
from sloserve.http3.listener_figures import Http3Figures
from sloserve.http3.listener_metrics import Http3Collector
from tests.grafana.queries import check_dashboard, queries, read_scrape

DASHBOARD = json.loads((Path(__file__).parents[2] / "configs" / "grafana" / "sloserve.json").read_text())
METRICS_PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
GRID_COLUMNS = 24


@pytest.fixture(scope="module")
def metrics_text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A scrape of a server that has served a request and has a shadow policy; of vLLM's metrics those we ask for."""
    folder = tmp_path_factory.mktemp("pages")
    page = PageWriter(DEFAULT_CLASSES.names, 0, folder, tenant_rows=3)
    page.name_tenants(["", "acme"])
    page.set_policies("edf", "sjf", None)
    for name in (
        "shadow_agreement_count",
        "shadow_gain_count",
        "step_factor_constant",
        "step_error",
        "swap_pool_total_bytes",
    ):
        page.values[Layout.at[name]] = 1
    registry = CollectorRegistry(auto_describe=True)
    metrics = FrontEndMetrics(
        DEFAULT_CLASSES.names,
        (),
        Boards(Board(len(DEFAULT_CLASSES.names), 5), ManualClock()),
        ManualClock(),
        lambda: [found.snapshot() for found in find_pages(folder)],
        registry,
        open_tasks=OpenTasksGauge(DEFAULT_CLASSES.names, TaskPages(TaskPage(1), ManualClock()), 1.0, ManualClock()),
    )
    metrics.tasks.task_started(0, "acme")
    metrics.tasks.task_late(0, "acme")
    slo = DEFAULT_CLASSES.slo(None, Targets(ttft_s=1.0))
    told = Predicted(Quantiles(0.1, 0.2), Quantiles(1.0, 2.0))
    latency = Latency(0.1, 0.1, 1.0)
    metrics.record(ServedRequest(slo, Outcome.COMPLETED, "acme", latency, qoe=1.0, output_tokens=10, predicted=told))
    _vllm_metrics(registry)
    _http3_metrics(registry)
    text = generate_latest(registry).decode()
    page.close()
    return text


def _vllm_metrics(registry: CollectorRegistry) -> None:
    """Source: vllm/v1/metrics/loggers.py. The integration test asks a live server whether these are still right."""
    labels = ["model_name", "engine"]
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        Gauge(f"vllm:{name}", name, labels, registry=registry).labels("tiny", "0")
    for name in (
        "prompt_tokens", "generation_tokens", "num_preemptions", "prefix_cache_hits", "prefix_cache_queries",
    ):  # fmt: skip
        Counter(f"vllm:{name}", name, labels, registry=registry).labels("tiny", "0")
    Histogram("vllm:inter_token_latency_seconds", "itl", labels, registry=registry).labels("tiny", "0")


def _http3_metrics(registry: CollectorRegistry) -> None:
    """Of a listener that has answered in time."""
    figures = Http3Figures()
    figures.deadlines[DEFAULT_CLASSES.default.name].met += 1
    listener = SimpleNamespace(front=SimpleNamespace(figures=figures), protocols=set(), inode=0)
    registry.register(Http3Collector(listener))  # type: ignore[arg-type]


@pytest.mark.slow
def test_every_query_can_be_answered(metrics_text: str) -> None:
    assert check_dashboard(DASHBOARD, metrics_text) == []
    scrape = read_scrape(metrics_text)
    assert [name for name, labels in scrape.items() if labels is None] == [], "metrics without a sample: not checked"


def test_every_metric_of_ours_is_on_the_dashboard(metrics_text: str) -> None:
    asked = " ".join(query for _, query, _ in queries(DASHBOARD))
    families = {line.split()[2] for line in metrics_text.splitlines() if line.startswith("# TYPE sloserve:")}
    missing = {name for name in families if name not in asked and not name.endswith("_created")}
    assert missing == {"sloserve:slo_targets_total"}  # what the violations are a share of; nobody looks at it alone


def test_every_metric_of_ours_is_in_the_docs(metrics_text: str) -> None:
    described = set(re.findall(r"`(?:sloserve:)?(\w+)`", METRICS_PAGE.read_text()))
    families = {line.split()[2] for line in metrics_text.splitlines() if line.startswith("# TYPE sloserve:")}
    ours = {name.removeprefix("sloserve:") for name in families if not name.endswith("_created")}
    assert ours - described == set(), "to be described in docs/metrics.md"


def _dashboard(expr: str, legend: str = "") -> dict[str, Any]:
    panel = {"title": "p", "targets": [{"expr": expr, "legendFormat": legend}]}
    row = {"title": "r", "panels": [panel]}
    return {"panels": [row], "templating": {"list": [{"name": "instance", "type": "custom"}]}}


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
