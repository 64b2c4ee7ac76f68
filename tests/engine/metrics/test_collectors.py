"""Our metrics: they count what core.goodput counts, under few labels, and survive several API processes."""

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from sloserve.core import attainment_window
from sloserve.core.clock import ManualClock
from sloserve.core.finished import Latency
from sloserve.core.goodput import attainment_by_class
from sloserve.core.outcome import Outcome
from sloserve.core.predicted import Predicted, Quantiles
from sloserve.core.request import WorkloadRequest
from sloserve.core.runlog import RequestLog
from sloserve.core.served import ServedRequest
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.engine.metrics import collectors, page_folder
from sloserve.engine.metrics.class_metrics import OUTCOMES, TARGETS
from sloserve.engine.metrics.collectors import INVALID_REQUEST, REASONS, FrontEndMetrics, TenantLabels
from sloserve.engine.metrics.process_page import Board, Boards, tenant_windows
from sloserve.scheduler.settings import PluginSettings
from tests import bounded

SLO = DEFAULT_CLASSES.slo("batch", Targets(ttft_s=1.0, tpot_s=0.1))
SERVED = ServedRequest(SLO, Outcome.COMPLETED, "acme", Latency(0.5, 0.2, 2.5), qoe=0.75, output_tokens=11)


class Bench:
    """Metrics in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self.clock = ManualClock()
        names = DEFAULT_CLASSES.names
        self.board = Board(len(names), 50)
        boards = Boards(self.board, self.clock)
        self.metrics = FrontEndMetrics(names, (), boards, self.clock, list, registry=self.registry)

    def scrape(self) -> Callable[..., float | None]:
        """What a scrape shows now: a sample's value by its name and labels, of which ``cls`` stands for ``class``."""
        samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.registry.collect()
            for sample in family.samples
        }

        def value(name: str, **labels: str) -> float | None:
            found = {("class" if key == "cls" else key): value for key, value in labels.items()}
            return samples.get((f"sloserve:{name}", frozenset(found.items())))

        return value

    def value(self, name: str, **labels: str) -> float | None:
        return self.scrape()(name, **labels)


def test_requests_without_targets_are_remembered_only_if_they_were_not_served() -> None:
    bench, slo = Bench(), DEFAULT_CLASSES.slo("batch", Targets())
    for outcome in (Outcome.COMPLETED, Outcome.ABORTED, Outcome.FAILED):
        bench.metrics.record(ServedRequest(slo, outcome, "acme"))
    now_s = bench.clock.monotonic_s()
    of_class = bench.board.ended[DEFAULT_CLASSES.names.index("batch")]
    for windows in ([of_class], tenant_windows([bench.board], "acme")):
        assert attainment_window.not_served(windows, now_s) == [1, 1]
    assert bench.value("slo_attainment_ratio", cls="batch", dim="all") is None


def test_one_request_counts_once_everywhere() -> None:
    bench = Bench()
    bench.metrics.record(SERVED)
    value = bench.scrape()
    assert value("requests_total", cls="batch", outcome="completed") == 1.0
    assert value("tenant_requests_total", tenant="acme", outcome="completed") == 1.0
    assert value("slo_requests_total", cls="batch") == 1.0
    assert value("goodput_requests_total", cls="batch") == 0.0
    assert [value("slo_targets_total", cls="batch", dim=target) for target in TARGETS] == [1.0, 1.0, 0.0, 0.0]
    assert [value("slo_violations_total", cls="batch", type=target) for target in TARGETS] == [0.0, 1.0, 0.0, 0.0]
    assert value("slo_attainment_ratio", cls="batch", dim="ttft") == 1.0
    assert value("slo_attainment_ratio", cls="batch", dim="tpot") == 0.0
    assert value("slo_attainment_ratio", cls="interactive", dim="ttft") is None
    sums = {name: value(f"{name}_sum", cls="batch") for name in ("ttft_seconds", "tpot_seconds", "e2e_seconds", "qoe")}
    assert sums == {"ttft_seconds": 0.5, "tpot_seconds": 0.2, "e2e_seconds": 2.5, "qoe": 0.75}
    assert value("qoe_bucket", cls="batch", le="0.7") == 0.0 and value("qoe_bucket", cls="batch", le="0.8") == 1.0


def test_predictions_are_judged_by_what_came_of_them() -> None:
    bench = Bench()
    told = Predicted(Quantiles(0.4, 0.6, 0.6), Quantiles(1.0, 2.0, 2.0))
    for predicted in (told, Predicted(Quantiles(0.6, 0.9, 0.9), None), None):
        bench.metrics.record(replace(SERVED, predicted=predicted))
    value = bench.scrape()
    assert value("predicted_ttft_seconds_sum", cls="batch") == 1.0
    assert value("predicted_e2e_seconds_count", cls="batch") == 1.0
    assert [value("prediction_coverage_ratio", cls="batch", dim="ttft", quantile=q) for q in ("0.5", "0.9")] == [
        0.5,
        1.0,
    ]
    assert [value("prediction_coverage_ratio", cls="batch", dim="e2e", quantile=q) for q in ("0.5", "0.9")] == [
        0.0,
        0.0,
    ]
    assert value("prediction_coverage_ratio", cls="interactive", dim="ttft", quantile="0.5") is None
    assert value("predictions_judged", cls="batch", dim="ttft") == 2.0
    assert value("predictions_judged", cls="batch", dim="e2e") == 1.0
    assert value("prediction_width_ratio", cls="batch", dim="e2e", quantile="0.9") == pytest.approx(2.0, rel=0.06)
    bench.metrics.record(ServedRequest(SLO, Outcome.REJECTED, predicted=told))
    assert bench.value("predicted_ttft_seconds_count", cls="batch") == 2.0


def test_an_output_of_one_token_judges_no_prediction_of_tpot() -> None:
    bench = Bench()
    told = Predicted(None, None, Quantiles(0.1, 0.3, 0.4))
    for tokens, tpot_s in ((1, 0.0), (11, 0.2)):
        bench.metrics.record(replace(SERVED, predicted=told, latency=Latency(0.5, tpot_s, 2.5), output_tokens=tokens))
    value = bench.scrape()
    assert value("predictions_judged", cls="batch", dim="tpot") == value("predicted_tpot_seconds_count", cls="batch")
    assert [
        value("prediction_coverage_ratio", cls="batch", dim="tpot", quantile=q) for q in ("0.5", "0.9", "0.99")
    ] == [
        0.0,
        1.0,
        1.0,
    ]


def test_series_of_known_labels_begin_at_zero() -> None:
    value = Bench().scrape()
    for name in DEFAULT_CLASSES.names:
        assert [value("requests_total", cls=name, outcome=outcome) for outcome in OUTCOMES] == [0.0] * 6
        assert [value("rejected_requests_total", cls=name, reason=r) for r in REASONS] == [0.0] * len(REASONS)


def test_what_was_not_completed_or_not_streamed_enters_no_histogram() -> None:
    bench = Bench()
    bench.metrics.record(ServedRequest(SLO, Outcome.ABORTED))
    bench.metrics.record(ServedRequest(SLO, Outcome.COMPLETED, latency=Latency(0.5, 0.0, 0.5), output_tokens=1))
    counts = [bench.value(f"{n}_count", cls="batch") for n in ("qoe", "ttft_seconds", "tpot_seconds", "e2e_seconds")]
    assert counts == [0.0, 1.0, 0.0, 1.0]  # one token has no time per following token


def test_attainment_forgets_while_counters_do_not() -> None:
    bench = Bench()
    bench.metrics.record(SERVED)
    bench.clock.advance_to(bench.clock.now_s() + 301.0)
    assert bench.value("slo_attainment_ratio", cls="batch", dim="all") is None
    assert bench.value("slo_requests_total", cls="batch") == 1.0


def test_why_requests_were_refused() -> None:
    bench = Bench()
    bench.metrics.rejected("batch", "rejected-saturated")
    bench.metrics.rejected("batch", "because")
    bench.metrics.rejected("batch", None)
    bench.metrics.rejected(None, INVALID_REQUEST)
    bench.metrics.rejected("made-up-by-a-client", INVALID_REQUEST)
    assert bench.value("rejected_requests_total", cls="batch", reason="rejected-saturated") == 1.0
    assert bench.value("rejected_requests_total", cls="batch", reason="other") == 2.0
    assert bench.value("rejected_requests_total", cls="none", reason="invalid-request") == 2.0


def labels_of(named: list[str], limit: int) -> TenantLabels:
    return TenantLabels(named, Boards(Board(0, limit), ManualClock()))


def test_tenants_beyond_the_limit_share_a_label_and_named_ones_have_theirs() -> None:
    labels = labels_of(["named"], limit=2)
    assert [labels.of(tenant) for tenant in ("first", "second", "named", "first", None)] == [
        "first", "other", "named", "first", "none",
    ]  # fmt: skip
    assert labels_of(["a", "b"], limit=1).of("b") == "other"
    assert labels_of([], limit=0).of("a") == "other"


def test_attainment_is_counted_and_remembered_by_tenant() -> None:
    bench = Bench()
    for tenant, latency_s in (("acme", 0.5), ("acme", 1.5), (None, 0.5)):
        slo = DEFAULT_CLASSES.slo("batch", Targets(ttft_s=1.0))
        bench.metrics.record(ServedRequest(slo, Outcome.COMPLETED, tenant, Latency(latency_s, 0.1, 2.0)))
    value = bench.scrape()
    assert [value("tenant_slo_requests_total", tenant=name) for name in ("acme", "none")] == [2.0, 1.0]
    assert [value("tenant_goodput_requests_total", tenant=name) for name in ("acme", "none")] == [1.0, 1.0]
    now_s = bench.clock.monotonic_s()
    shares = [
        attainment_window.shown(tenant_windows([bench.board], name), now_s)[0] for name in ("acme", None, "unknown")
    ]
    assert shares == [[0.5, 2], [1.0, 1], [None, 0]]


def test_a_tenant_that_is_called_none_has_its_own_window() -> None:
    bench = Bench()
    for tenant in ("none", None, "other"):
        bench.metrics.record(replace(SERVED, tenant=tenant))
    now_s = bench.clock.monotonic_s()
    assert [attainment_window.shown(tenant_windows([bench.board], name), now_s)[0][1] for name in ("none", None)] == [
        1,
        1,
    ]
    assert bench.scrape()("tenant_requests_total", tenant="none", outcome="completed") == 2.0


targets = st.builds(
    lambda values: Targets(**values),
    st.dictionaries(st.sampled_from(["ttft_s", "tpot_s", "e2e_s", "tds"]), st.sampled_from([0.5, 2.0, 8.0])),
)
logs = st.lists(
    st.builds(
        lambda wanted, name, outcome, gaps_s: RequestLog(
            WorkloadRequest("r", 10.0, 5, 3, DEFAULT_CLASSES.slo(name, wanted)), outcome, 10.0 + np.cumsum(gaps_s)
        ),
        targets,
        st.sampled_from(["interactive", "batch"]),
        st.sampled_from(OUTCOMES),
        st.lists(st.sampled_from([0.0, 0.2, 1.0, 3.0]), max_size=4),
    ),
    max_size=20,
)


@pytest.mark.slow
@given(logs)
def test_counters_equal_what_goodput_computes_from_the_same_requests(ended: list[RequestLog]) -> None:
    bench = Bench()
    missed: Counter[tuple[str, str]] = Counter()
    for log in ended:
        slo = log.request.slo
        qoe, tokens = log.qoe, log.token_times_s.size
        bench.metrics.record(ServedRequest(slo, log.outcome, None, log.latency, qoe, output_tokens=tokens))
        missed.update((slo.slo_class.name, t) for t, met in log.met.items() if not met)
    found, value = attainment_by_class(ended), bench.scrape()
    for name in ("interactive", "batch"):
        of_class = [log for log in ended if log.request.slo.slo_class.name == name]
        for outcome in OUTCOMES:
            count = sum(log.outcome is outcome for log in of_class)
            assert value("requests_total", cls=name, outcome=outcome) == count
        counts = found.get(name)
        assert value("slo_requests_total", cls=name) == (counts.total if counts else 0)
        assert value("goodput_requests_total", cls=name) == (counts.good if counts else 0)
        assert value("slo_attainment_ratio", cls=name, dim="all") == (counts.ratio if counts else None)
        admitted = value("slo_attainment_ratio", cls=name, dim="all_admitted")
        assert admitted == (counts.ratio_admitted if counts else None)
        for target in TARGETS:
            assert value("slo_violations_total", cls=name, type=target) == missed[name, target]
        assert value("e2e_seconds_count", cls=name) == sum(log.latency is not None for log in of_class)


@pytest.fixture
def uninstalled() -> Iterator[None]:
    yield
    if collectors._installed is not None:
        collectors._installed.unregister()


def own_board() -> Boards:
    settings = PluginSettings()
    return Boards(Board(len(settings.classes.names), settings.max_tenant_labels), ManualClock())


def test_a_second_install_replaces_the_first(uninstalled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectors, "find_pages", list)
    labels = {"class": "interactive", "outcome": "completed"}
    slo = DEFAULT_CLASSES.slo(None, Targets())
    for _ in range(2):
        installed = collectors.install(PluginSettings(), own_board(), ManualClock())
        installed.record(ServedRequest(slo, Outcome.COMPLETED))
        assert REGISTRY.get_sample_value("sloserve:requests_total", labels) == 1.0
    installed.unregister()
    installed.unregister()
    assert REGISTRY.get_sample_value("sloserve:requests_total", labels) is None


def test_a_scrape_outlives_pages_that_cannot_be_read(uninstalled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable() -> None:
        raise PermissionError("/dev/shm/sloserve-0 is not a folder that only user 0 can enter")

    monkeypatch.setattr(collectors, "find_pages", unreadable)
    collectors.install(PluginSettings(), own_board(), ManualClock())
    text = generate_latest(REGISTRY).decode()
    assert "sloserve:requests_total" in text and "sloserve:plans_total" not in text


HERE = Path(__file__).parent
ONE_PROCESS = """
import sys
sys.path.insert(0, {here!r})
from pathlib import Path
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from sloserve.core.clock import ManualClock
from sloserve.engine.metrics import collectors, page_folder
from sloserve.scheduler.settings import PluginSettings
from sloserve.engine.metrics.engine_page import Layout, PageWriter
from test_collectors import served_by, shared_boards

rank, pages = int(sys.argv[1]), Path(sys.argv[2])
page_folder.page_folder = lambda: pages
if rank == 0:  # an engine that they share
    PageWriter(("interactive", "batch"), 0, pages).values[Layout.at["running"]] = 3
installed = collectors.install(PluginSettings(), shared_boards(rank, pages), ManualClock())
installed.record(served_by(rank))
print("served", flush=True)
for line in sys.stdin:
    registry = CollectorRegistry()
    MultiProcessCollector(registry)
    print(generate_latest(registry).decode() + "# EOF", flush=True)
"""


def shared_boards(rank: int, folder: Path) -> Boards:
    settings = PluginSettings()
    own = Board.published(settings.classes.names, settings.max_tenant_labels, rank, folder)
    return Boards(own, ManualClock(), folder)


def served_by(rank: int) -> ServedRequest:
    """The second API process was twice as fast."""
    return replace(SERVED, latency=Latency(0.5, 0.2 if rank == 0 else 0.1, 2.5))


class APIProcess:
    """One of several, with a fast or a slow request behind it."""

    def __init__(self, rank: int, folder: Path) -> None:
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                ONE_PROCESS.format(here=str(HERE)),
                str(rank),
                str(folder / "pages"),
            ],
            env={"PROMETHEUS_MULTIPROC_DIR": str(folder / "files")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def end(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=60)

    def read_until(self, end: str) -> str:
        assert self.process.stdout is not None
        lines = []
        with bounded.within(f"{end!r} from a process"):
            for line in self.process.stdout:
                if line == end:
                    break
                lines.append(line)
        return "".join(lines)

    def scrape(self) -> dict[tuple[str, ...], float]:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return {
            (sample.name.removeprefix("sloserve:"), *sorted(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(self.read_until("# EOF\n"))
            for sample in family.samples
        }


@pytest.fixture
def api_processes(tmp_path: Path) -> Iterator[list[APIProcess]]:
    for name in ("files", "pages"):
        (tmp_path / name).mkdir()
    each = [APIProcess(rank, tmp_path) for rank in range(2)]
    for one in each:
        one.read_until("served\n")
    yield each
    for one in each:
        one.end()


@pytest.mark.slow
def test_a_scrape_of_any_of_several_processes_tells_the_whole(api_processes: list[APIProcess], tmp_path: Path) -> None:
    first, second = api_processes
    for shown in (first.scrape(), second.scrape()):
        assert shown["requests_total", "batch", "completed"] == 2.0
        assert shown["e2e_seconds_sum", "batch"] == 5.0
        assert [shown["slo_attainment_ratio", "batch", target] for target in ("ttft", "tpot")] == [1.0, 0.5]
        assert shown["running_requests", "0"] == 3.0
    second.end()
    page_folder.sweep(tmp_path / "pages")
    shown = first.scrape()
    assert shown["requests_total", "batch", "completed"] == 2.0  # what was served stays counted
    assert shown["slo_attainment_ratio", "batch", "tpot"] == 0.0  # the gauge is of who lives


def test_tokens_count_by_class_and_tenant_however_a_request_ended() -> None:
    bench = Bench()
    for outcome in (Outcome.COMPLETED, Outcome.ABORTED):
        bench.metrics.record(replace(SERVED, outcome=outcome, prompt_tokens=30, output_tokens=7))
    value = bench.scrape()
    for figure, tokens in (("prompt_tokens_total", 60.0), ("output_tokens_total", 14.0)):
        assert value(figure, cls="batch") == value(f"tenant_{figure}", tenant="acme") == tokens
