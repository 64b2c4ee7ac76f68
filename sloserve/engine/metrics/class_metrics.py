"""How the requests of each class fared, as metrics. Times count from the arrival at our front end."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from prometheus_client import Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sloserve.core.attainment_window import TARGETS, AttainmentWindow, ratios
from sloserve.core.clock import Clock
from sloserve.core.finished import Latency
from sloserve.core.judged_window import PredictionWindow
from sloserve.core.latency_window import LatencyWindow
from sloserve.core.outcome import Outcome
from sloserve.core.predicted import PREDICTED, Predicted
from sloserve.core.served import ServedRequest
from sloserve.engine.metrics.engine_metrics import PREFIX
from sloserve.engine.metrics.process_page import LATENCIES, Board
from sloserve.engine.metrics.promise_metrics import ClassPromises, PromiseFamilies

OUTCOMES: Final[tuple[Outcome, ...]] = tuple(outcome for outcome in Outcome if outcome is not Outcome.LOST)
"""Outcomes of live requests: only a simulation can lose a request."""

# Seconds. Finer than vLLM's where targets are usually set, so that a quantile near a target can be read off.
TTFT_BUCKETS_S: Final = (
    0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 20.0, 30.0, 60.0, 120.0,
    300.0, 900.0, 3600.0,
)  # fmt: skip
TPOT_BUCKETS_S: Final = (
    0.002, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.125, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0,
)  # fmt: skip
E2E_BUCKETS_S: Final = (
    0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0, 300.0, 600.0,
    1800.0, 3600.0, 7200.0,
)  # fmt: skip
QOE_BUCKETS: Final = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)


class Count(NamedTuple):
    """A counter of requests that ended.

    Args:
        of: Function that returns what one request adds, 0 or more, to the counters of its class and of its tenant.
    """

    documentation: str
    of: Callable[[ServedRequest], float]


COUNTS: dict[str, Count] = {
    "slo_requests": Count("Requests that ended and had at least one target", lambda served: bool(served.met)),
    "goodput_requests": Count("Requests that met every target they had", lambda served: bool(served.good)),
    "prompt_tokens": Count("Prompt tokens of requests that ended", lambda served: served.prompt_tokens),
    "output_tokens": Count("Output tokens of requests that ended", lambda served: served.output_tokens),
    "engine_seconds": Count("Engine time that requests used", lambda served: served.in_engine.engine_s),
    "kv_seconds": Count("Time of the whole KV cache that requests used", lambda served: served.in_engine.kv_s),
}
"""Counters by class, by their names without prefix and ``_total``. To add one, a row is enough.

By tenant they have the same names after ``tenant_``.
"""


class Families:
    """The metrics by name, each for all classes. ``class`` is the request's, after any clamp of its tenant."""

    def __init__(self) -> None:
        self.requests = _counter("requests", "Requests that ended", "class", "outcome")
        self.counts = {name: _counter(name, count.documentation, "class") for name, count in COUNTS.items()}
        self.targets = _counter("slo_targets", "Requests that ended and had this target", "class", "dim")
        self.violations = _counter(
            "slo_violations",
            "Requests that missed this target; an incomplete request misses all its targets",
            "class",
            "type",
        )
        self.rejected = _counter("rejected_requests", "Requests refused before they were queued", "class", "reason")
        self.ignored_headers = _counter("ignored_headers", "Headers x-slo-* that were ignored because they are unknown")
        self.tenant_requests = _counter("tenant_requests", "Requests that ended", "tenant", "outcome")
        self.tenant_counts = {
            name: _counter(f"tenant_{name}", count.documentation, "tenant") for name, count in COUNTS.items()
        }
        self.promises = PromiseFamilies()
        self.qoe = _histogram("qoe", "Quality of experience of streamed outputs, 0 to 1", QOE_BUCKETS)
        self.predicted_ttft = _histogram(
            "predicted_ttft_seconds", "Median TTFT predicted at admission, of completed requests", TTFT_BUCKETS_S
        )
        self.predicted_tpot = _histogram(
            "predicted_tpot_seconds",
            "Median TPOT predicted at admission, of completed requests with several tokens",
            TPOT_BUCKETS_S,
        )
        self.predicted_e2e = _histogram(
            "predicted_e2e_seconds", "Median e2e latency predicted at admission, of completed requests", E2E_BUCKETS_S
        )
        self.ttft = _histogram(
            "ttft_seconds", "Arrival at the front end to first token, of completed requests", TTFT_BUCKETS_S
        )
        self.tpot = _histogram(
            "tpot_seconds", "Mean time per token after the first, of completed requests with several", TPOT_BUCKETS_S
        )
        self.e2e = _histogram(
            "e2e_seconds", "Arrival at the front end to last token, of completed requests", E2E_BUCKETS_S
        )

    def all(self) -> list[Collector]:
        """Return each collector once, to be registered."""
        found: list[Collector] = []
        for each in vars(self).values():
            if isinstance(each, PromiseFamilies):
                found += each.all()
            else:
                found += each.values() if isinstance(each, dict) else [each]
        return found


def _counter(name: str, documentation: str, *labels: str) -> Counter:
    return Counter(f"{PREFIX}{name}", documentation, labels, registry=None)


def _histogram(name: str, documentation: str, buckets: Iterable[float]) -> Histogram:
    return Histogram(f"{PREFIX}{name}", documentation, ["class"], buckets=tuple(buckets), registry=None)


class ClassMetrics:
    """The series of one class, looked up once: each starts at 0 rather than with its first request."""

    def __init__(self, name: str, families: Families, board: Board, class_id: int) -> None:
        """Create the series of one class.

        Args:
            name: Name of the class.
            families: The metrics to which the series belong.
            board: Board of this process, which keeps what is computed at scrape.
            class_id: Index of the class.
        """
        self._window = AttainmentWindow(board.ended[class_id])
        self._latest = {figure: LatencyWindow(board.latency[class_id, i]) for i, figure in enumerate(LATENCIES)}
        self._judged = {dim: PredictionWindow(board.predicted[class_id, i]) for i, dim in enumerate(PREDICTED)}
        self._promises = ClassPromises(name, families.promises, board.promises[class_id])
        self._predicted = {figure: getattr(families, f"predicted_{figure}").labels(name) for figure in PREDICTED}
        self._requests = {outcome: families.requests.labels(name, outcome) for outcome in OUTCOMES}
        self._counts = [(families.counts[key].labels(name), count.of) for key, count in COUNTS.items()]
        self._targets = {target: families.targets.labels(name, target) for target in TARGETS}
        self._violations = {target: families.violations.labels(name, target) for target in TARGETS}
        self._qoe = families.qoe.labels(name)
        self._histograms = {figure: getattr(families, figure).labels(name) for figure in LATENCIES}

    def record(self, served: ServedRequest, now_s: float) -> None:
        self._requests[served.outcome].inc()
        for counter, of in self._counts:
            if added := of(served):
                counter.inc(added)
        met = served.met
        for target, was_met in met.items():
            self._targets[target].inc()
            if not was_met:
                self._violations[target].inc()
        self._window.record(met, served.outcome, now_s)
        if served.qoe is not None:
            self._qoe.observe(served.qoe)
        if served.latency is not None:
            self._took("ttft", served.latency.ttft_s, now_s)
            if served.output_tokens > 1:
                self._took("tpot", served.latency.tpot_s, now_s)
            self._took("e2e", served.latency.e2e_s, now_s)
            if served.predicted is not None:
                self._judge(served.predicted, served.latency, served.output_tokens, now_s)
        self._promises.record(served, now_s)

    def _took(self, figure: str, latency_s: float, now_s: float) -> None:
        self._histograms[figure].observe(latency_s)
        self._latest[figure].record(latency_s, now_s)

    def _judge(self, predicted: Predicted, latency: Latency, output_tokens: int, now_s: float) -> None:
        for figure, quantiles in predicted.figures():
            if figure == "tpot" and output_tokens <= 1:
                continue  # a single token has no time per following token
            self._predicted[figure].observe(quantiles.median_s)
            self._judged[figure].record(quantiles, getattr(latency, f"{figure}_s"), now_s)

    def promise_refused(self, why: str) -> None:
        """Count a promise that was asked for and not given.

        Args:
            why: One of :data:`~sloserve.core.promises.WHY_REFUSED`.
        """
        self._promises.refused(why)


class AttainmentGauge(Collector):
    """Attainment of the latest requests of all API processes, computed when it is asked for."""

    _NAME = f"{PREFIX}slo_attainment_ratio"

    def __init__(self, classes: Sequence[str], boards: Callable[[], Iterable[Board]], clock: Clock) -> None:
        """Create a collector over all processes.

        Args:
            classes: Names of the service classes.
            boards: Function that returns the board of each process that serves ``classes``.
            clock: Clock of this process.
        """
        self._classes = classes
        self._boards = boards
        self._clock = clock

    def describe(self) -> Iterable[Metric]:
        return [attainment_gauge(self._NAME, {})]

    def collect(self) -> Iterable[Metric]:
        boards, now_s = list(self._boards()), self._clock.monotonic_s()
        by_class = {
            name: ratios([board.ended[class_id] for board in boards], now_s)
            for class_id, name in enumerate(self._classes)
        }
        return [attainment_gauge(self._NAME, by_class)]


def attainment_gauge(name: str, by_class: Mapping[str, Mapping[str, float]]) -> GaugeMetricFamily:
    """Return the gauge of attainment of a server or of a gateway.

    Args:
        name: Name of the metric.
        by_class: What :func:`~sloserve.core.attainment_window.ratios` gives for each class, by its name.
    """
    family = GaugeMetricFamily(
        name,
        "Share of the class's latest requests (5 minutes, at most 1,000) that met this target; "
        "all: all of their targets; all_admitted: the same without rejected ones",
        labels=["class", "dim"],
    )
    for of_class, shares in by_class.items():
        for dim, ratio in shares.items():
            family.add_metric([of_class, dim], ratio)
    return family
