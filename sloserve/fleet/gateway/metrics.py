"""A gateway's metrics, as ``sloserve:gateway_*``. With a file of keys some tenants alone may read them.

Of the tenants only the first ones have a label of their own: the settings ``max_tenant_labels`` says how many.
"""

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import prometheus_client
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from sloserve.core.outcome import Outcome
from sloserve.core.promises import PROMISES_KEPT
from sloserve.core.served import ServedRequest
from sloserve.core.tenants import OTHER
from sloserve.engine.recording.events import UNKNOWN_MODEL
from sloserve.wire.rate_limits import TenantUse

_LATENCY_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_ADDED_S: Final = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.25)
_RATIOS: Final = (0.5, 0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.35, 1.5, 2.0, 4.0)
_USE: Final = {
    "requests": "Requests that were admitted, by tenant.",
    "prompt_tokens": "Tokens of prompts, by tenant; an estimate for a response that states none.",
    "output_tokens": "Tokens of outputs, by tenant; an estimate for a response that states none.",
}
NO_MODEL: Final = UNKNOWN_MODEL
"""Label of requests that name no model of the fleet."""


class GatewayMetrics:
    """Counters of one gateway, on a registry of its own."""

    def __init__(self) -> None:
        self.registry = prometheus_client.CollectorRegistry()
        self._requests = prometheus_client.Counter(
            "sloserve:gateway_requests_total",
            "Requests that ended, by model, class and outcome.",
            ["model", "class", "outcome"],
            registry=self.registry,
        )
        self._rejected = prometheus_client.Counter(
            "sloserve:gateway_rejected_requests_total",
            "Requests that the gateway refused or gave up, by model, class and reason.",
            ["model", "class", "reason"],
            registry=self.registry,
        )
        self._slo_requests = prometheus_client.Counter(
            "sloserve:gateway_slo_requests_total",
            "Requests that ended and had at least one target that is judged here, by model and class.",
            ["model", "class"],
            registry=self.registry,
        )
        self._goodput_requests = prometheus_client.Counter(
            "sloserve:gateway_goodput_requests_total",
            "Requests that met every target they had, by model and class.",
            ["model", "class"],
            registry=self.registry,
        )
        self._violations = prometheus_client.Counter(
            "sloserve:gateway_slo_violations_total",
            "Requests that missed this target, by class; an incomplete request misses all its targets.",
            ["class", "type"],
            registry=self.registry,
        )
        self._retries = prometheus_client.Counter(
            "sloserve:gateway_retries_total",
            "Requests that an instance refused or lost before the first byte, and that were sent again.",
            ["reason"],
            registry=self.registry,
        )
        self._added = prometheus_client.Histogram(
            "sloserve:gateway_added_seconds",
            "Time that the gateway itself adds until a request is sent on, waiting for an instance not counted.",
            buckets=_ADDED_S,
            registry=self.registry,
        )
        self._held = prometheus_client.Histogram(
            "sloserve:gateway_held_seconds",
            "Time that requests waited in the gateway for an instance.",
            ["class"],
            buckets=_LATENCY_S,
            registry=self.registry,
        )
        self._first = prometheus_client.Histogram(
            "sloserve:gateway_ttft_seconds",
            "Time from arrival to the first byte of the answer, streams only.",
            ["model", "class"],
            buckets=_LATENCY_S,
            registry=self.registry,
        )
        self._auto = prometheus_client.Counter(
            "sloserve:gateway_auto_total",
            "Requests that left the model open, by the model that was chosen and why.",
            ["model", "why"],
            registry=self.registry,
        )
        self._shadow = prometheus_client.Counter(
            "sloserve:gateway_auto_shadow_total",
            "The same by what was chosen, and by what the shadow policy would have chosen.",
            ["model", "shadow"],
            registry=self.registry,
        )
        self._ratio = prometheus_client.Histogram(
            "sloserve:gateway_auto_completion_ratio",
            "Time to the last token of requests that left the model open, in parts of what was predicted for as many.",
            ["model"],
            buckets=_RATIOS,
            registry=self.registry,
        )
        self._quality = prometheus_client.Summary(
            "sloserve:gateway_auto_quality",
            "Quality in time of requests that left the model open: of the model that served, 0 if it was late.",
            ["policy"],
            registry=self.registry,
        )
        self._rolled_back = prometheus_client.Gauge(
            "sloserve:gateway_auto_rolled_back",
            "1 if the trained policy was worse than greedy and greedy decides in its place, 0 otherwise.",
            registry=self.registry,
        )
        self._logged = prometheus_client.Counter(
            "sloserve:gateway_auto_logged_total",
            "Choices for the log: accepted for writing, or dropped since the disk is slow or the log has ended.",
            ["result"],
            registry=self.registry,
        )
        self._promises = prometheus_client.Counter(
            "sloserve:gateway_promises_total",
            "Promises whose request ended, by model, class and outcome.",
            ["model", "class", "outcome"],
            registry=self.registry,
        )
        self._promises_refused = prometheus_client.Counter(
            "sloserve:gateway_promises_refused_total",
            "Promises asked for that were not given, by model, class and why.",
            ["model", "class", "why"],
            registry=self.registry,
        )
        self._promises_allowed = prometheus_client.Counter(
            "sloserve:gateway_promises_allowed_broken_total",
            "Broken promises that the levels allow: the sum of 1 - level over kept and broken promises.",
            ["model", "class"],
            registry=self.registry,
        )
        self._child: Callable[..., Any] = functools.cache(lambda metric, *labels: metric.labels(*labels))

    def watch(self, gauges: Callable[[], Iterable[GaugeMetricFamily]]) -> None:
        """Register a function that a page calls for gauges each time it is read."""
        self.registry.register(_Gauges(gauges))

    def ended(self, model: str, slo_class: str, outcome: Outcome) -> None:
        self._child(self._requests, model, slo_class, outcome.value).inc()

    def judged(self, model: str, served: ServedRequest) -> None:
        """Count which targets a request met that ended; a request without targets counts nothing.

        Args:
            model: Model of the request, or :data:`NO_MODEL`.
            served: The request, with the targets that are judged here.
        """
        if served.good is None:
            return
        slo_class = served.slo.slo_class.name
        self._child(self._slo_requests, model, slo_class).inc()
        # Both begin together: a class that has met no target yet would otherwise have no share of good requests.
        self._child(self._goodput_requests, model, slo_class).inc(float(served.good))
        for target, was_met in served.met.items():
            self._child(self._violations, slo_class, target).inc(float(not was_met))

    def rejected(self, model: str, slo_class: str, reason: str) -> None:
        """Count a request that was refused or given up.

        Args:
            model: Model of the request, or :data:`NO_MODEL`.
            slo_class: Name of its class, or ``none`` if its body was not read and its headers name no class.
            reason: One of :data:`~sloserve.engine.recording.events.REFUSALS`.
        """
        self._child(self._rejected, model, slo_class, reason).inc()

    def promise_ended(self, model: str, slo_class: str, level: float, outcome: str) -> None:
        """Count the promise of a request that ended.

        Args:
            model: Model of the request.
            slo_class: Name of its class.
            level: Probability that was promised, 0..1.
            outcome: Outcome of the promise, one of :data:`~sloserve.core.promises.PROMISES_KEPT`.
        """
        self._child(self._promises, model, slo_class, outcome).inc()
        if outcome != "withdrawn":
            self._child(self._promises_allowed, model, slo_class).inc(max(1.0 - level, 0.0))

    def promise_refused(self, model: str, slo_class: str, why: str) -> None:
        """Count a promise that was asked for and not given.

        Args:
            model: Model of the request, or :data:`NO_MODEL`.
            slo_class: Name of its class.
            why: One of :data:`~sloserve.core.promises.WHY_REFUSED`.
        """
        self._child(self._promises_refused, model, slo_class, why).inc()

    def ended_by_outcome(self) -> Counter[Outcome]:
        """Return how many requests have ended, by outcome."""
        found: Counter[Outcome] = Counter()
        for family in self._requests.collect():
            for one in family.samples:
                if one.name.endswith("_total"):
                    found[Outcome(one.labels["outcome"])] += int(one.value)
        return found

    def chose(self, model: str, why: str, shadow: str | None) -> None:
        """Count a model that was chosen for a request that left it open."""
        self._child(self._auto, model, why).inc()
        if shadow is not None:
            self._child(self._shadow, model, shadow).inc()

    def completed(self, model: str, ratio: float) -> None:
        """Count a complete request that left the model open.

        Args:
            model: Model that served it.
            ratio: Measured time divided by the predicted time.
        """
        self._child(self._ratio, model).observe(ratio)

    def settled(self, policy: str, quality: float) -> None:
        """Count the quality in time of a request that left the model open, by the policy that decided."""
        self._child(self._quality, policy).observe(quality)

    def rolled_back(self, *, is_so: bool = True) -> None:
        """Record whether greedy decides in place of the trained policy."""
        self._rolled_back.set(float(is_so))

    def logged(self, *, is_written: bool) -> None:
        """Count a choice that the log accepted for writing, or that is dropped."""
        self._child(self._logged, "written" if is_written else "dropped").inc()

    def retried(self, reason: str) -> None:
        self._child(self._retries, reason).inc()

    def sent(self, added_s: float, slo_class: str, held_s: float) -> None:
        """Count a request that goes to an instance."""
        self._added.observe(added_s)
        if held_s > 0.0:
            self._child(self._held, slo_class).observe(held_s)

    def first_byte(self, model: str, slo_class: str, ttft_s: float) -> None:
        self._child(self._first, model, slo_class).observe(ttft_s)

    def page(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return prometheus_client.generate_latest(self.registry)


class _Gauges(Collector):
    def __init__(self, gauges: Callable[[], Iterable[GaugeMetricFamily]]) -> None:
        self._gauges = gauges

    def describe(self) -> Iterable[Any]:
        return ()

    def collect(self) -> Iterable[Any]:
        return self._gauges()


def held_gauge(held: Iterable[tuple[str, str]]) -> GaugeMetricFamily:
    """Return the gauge of requests that wait in the gateway, each given as its model and class."""
    family = GaugeMetricFamily(
        "sloserve:gateway_held_requests",
        "Requests that wait in the gateway for an instance.",
        labels=["model", "class"],
    )
    for labels, count in sorted(Counter(held).items()):
        family.add_metric(labels, float(count))
    return family


def tenant_counters(used: Mapping[str, TenantUse], most: int) -> Iterator[CounterMetricFamily]:
    """Yield counters of what tenants have used in this gateway.

    Args:
        used: Use by tenant, the tenants in the order in which they came.
        most: Most tenants with a label of their own; the rest counts as ``other``.
    """
    for field, text in _USE.items():
        family = CounterMetricFamily(f"sloserve:gateway_tenant_{field}", text, labels=["tenant"])
        counts: Counter[str] = Counter()
        for i, (tenant, use) in enumerate(used.items()):
            counts[tenant if i < most else OTHER] += getattr(use, field)
        for tenant, count in counts.items():
            family.add_metric([tenant], float(count))
        yield family
    promises = CounterMetricFamily(
        "sloserve:gateway_tenant_promises",
        "Promises whose request ended, by tenant and outcome; of tenants that were given any.",
        labels=["tenant", "outcome"],
    )
    given: Counter[tuple[str, str]] = Counter()
    for i, (tenant, use) in enumerate(used.items()):
        for outcome in PROMISES_KEPT:
            given[tenant if i < most else OTHER, outcome] += getattr(use, f"promises_{outcome}")
    for labels, count in given.items():
        if any(given[labels[0], outcome] for outcome in PROMISES_KEPT):
            promises.add_metric(labels, float(count))
    yield promises
