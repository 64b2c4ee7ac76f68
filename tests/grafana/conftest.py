"""A scrape of a server, of which the dashboard and the alerts ask only what it shows."""

from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from sloserve.core.clock import ManualClock
from sloserve.core.finished import Latency
from sloserve.core.outcome import Outcome
from sloserve.core.predicted import Predicted, Quantiles
from sloserve.core.promises import Promised
from sloserve.core.served import ServedRequest
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.engine.metrics.class_metrics import OUTCOMES, attainment_gauge
from sloserve.engine.metrics.collectors import FrontEndMetrics
from sloserve.engine.metrics.engine_page import Layout, PageWriter, find_pages
from sloserve.engine.metrics.process_page import Board, Boards
from sloserve.engine.metrics.task_metrics import OpenTasksGauge
from sloserve.engine.metrics.task_page import TaskPage, TaskPages
from sloserve.engine.recording.events import REFUSALS
from sloserve.fleet.contract.plan_in_force import PlanInForce, ReplayedNeed
from sloserve.fleet.gateway.metrics import GatewayMetrics, held_gauge, tenant_counters
from sloserve.fleet.planning.plan_metrics import PlanCollector
from sloserve.fleet.run.reloading import FileInForce
from sloserve.http3.listener_figures import Http3Figures
from sloserve.http3.listener_metrics import Http3Collector
from sloserve.wire.rate_limits import TenantUse


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
        registry=registry,
        open_tasks=OpenTasksGauge(DEFAULT_CLASSES.names, TaskPages(TaskPage(1), ManualClock()), 1.0, ManualClock()),
    )
    metrics.rejected("interactive", "of another version")
    metrics.tasks.task_started(0, "acme")
    metrics.tasks.task_late(0, "acme")
    slo = DEFAULT_CLASSES.slo(None, Targets(ttft_s=1.0))
    told = Predicted(Quantiles(0.1, 0.2, 0.2), Quantiles(1.0, 2.0, 2.0), Quantiles(0.1, 0.2, 0.2))
    latency = Latency(0.1, 0.1, 1.0)
    metrics.record(
        ServedRequest(
            slo,
            Outcome.COMPLETED,
            "acme",
            latency,
            qoe=1.0,
            output_tokens=10,
            predicted=told,
            promised=Promised(0.99),
        )
    )
    _vllm_metrics(registry)
    _http3_metrics(registry)
    text = generate_latest(registry).decode()
    page.close()
    return text


@pytest.fixture(scope="module")
def fleet_text() -> str:
    return fleet_scrape()


@pytest.fixture(scope="module")
def gateway_text() -> str:
    return gateway_scrape()


def gateway_scrape() -> str:
    """Return a scrape of a gateway that has done all that a gateway counts, and of its fleet's file."""
    metrics = GatewayMetrics()
    for outcome in OUTCOMES:
        metrics.ended("chat", "interactive", outcome)
    slo = DEFAULT_CLASSES.slo("interactive", Targets(ttft_s=1.0, e2e_s=0.5))
    metrics.judged("chat", ServedRequest(slo, Outcome.COMPLETED, latency=Latency(0.1, 0.1, 1.0)))
    for reason in REFUSALS:
        metrics.rejected("unknown", "none", reason)
    metrics.promise_refused("chat", "interactive", "late")
    metrics.chose("chat", "fits", "code")
    metrics.completed("chat", 1.0)
    metrics.settled("greedy", 1.0)
    metrics.logged(is_written=True)
    metrics.sent(0.001, "interactive", 0.1)
    metrics.first_byte("chat", "interactive", 0.2)
    metrics.retried("full")
    metrics.promise_ended("chat", "interactive", 0.99, "kept")
    use = TenantUse(1, 10, 10, promises_kept=1)
    attained = attainment_gauge("sloserve:gateway_slo_attainment_ratio", {"interactive": {"ttft": 1.0, "all": 1.0}})
    metrics.watch(lambda: [held_gauge([("chat", "interactive")]), attained, *tenant_counters({"acme": use}, 5)])  # type: ignore[list-item]
    metrics.registry.register(FileInForce(SimpleNamespace(source=__file__)))  # type: ignore[arg-type]
    return metrics.page().decode()


def fleet_scrape() -> str:
    """Return a scrape of what a gateway says of the plan of its fleet, with a need that replays have found."""
    registry = CollectorRegistry(auto_describe=True)
    need = ReplayedNeed(1000.0, 0.95, 2, 3, 4, 600.0)
    plan = PlanInForce(1000.0, {"x/0": ()}, pressure={"interactive": 1.4}, replayed=need)
    registry.register(PlanCollector(lambda: plan))
    return generate_latest(registry).decode()


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
