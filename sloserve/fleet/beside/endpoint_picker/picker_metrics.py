"""An endpoint picker's metrics, as ``sloserve:picker_*``. Classes and reasons are their labels, and never a request."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import prometheus_client
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

_CHOICE_S: Final = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05)
_LATENCY_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class _Gauges(Collector):
    def __init__(self, read: Callable[[], Iterable[GaugeMetricFamily]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Any]:
        yield from self._read()


class PickerMetrics:
    """Counters of one picker, on a registry of its own."""

    def __init__(self) -> None:
        self.registry = prometheus_client.CollectorRegistry()
        self.picks = prometheus_client.Counter(
            "sloserve:picker_picks_total",
            "Servers that were chosen, by class and why.",
            ["class", "why"],
            registry=self.registry,
        )
        self.refused = prometheus_client.Counter(
            "sloserve:picker_refused_total",
            "Requests without a server, by status: 503 without any, 429 of a class that is refused under load.",
            ["status"],
            registry=self.registry,
        )
        self.read = prometheus_client.Counter(
            "sloserve:picker_read_total",
            "Requests by how much of them could be read.",
            ["how"],
            registry=self.registry,
        )
        self.faults = prometheus_client.Counter(
            "sloserve:picker_faults_total",
            "Choices that failed by a fault, in place of which the servers took turns.",
            registry=self.registry,
        )
        self.choice = prometheus_client.Histogram(
            "sloserve:picker_choice_seconds",
            "Time to read a request and to choose, waiting for a server not counted.",
            buckets=_CHOICE_S,
            registry=self.registry,
        )
        self.held = prometheus_client.Histogram(
            "sloserve:picker_held_seconds",
            "Time that requests waited for a server.",
            ["class"],
            buckets=_LATENCY_S,
            registry=self.registry,
        )
        self.first = prometheus_client.Histogram(
            "sloserve:picker_ttft_seconds",
            "Time from a request's headers to the first byte of its response.",
            ["class"],
            buckets=_LATENCY_S,
            registry=self.registry,
        )

    def watch(self, read: Callable[[], Iterable[GaugeMetricFamily]]) -> None:
        """Register a function that a page calls for gauges each time it is read."""
        self.registry.register(_Gauges(read))

    def page(self) -> bytes:
        """Return the page of ``/metrics``."""
        return prometheus_client.generate_latest(self.registry)
