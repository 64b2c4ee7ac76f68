"""A listener's figures as Prometheus' metrics ``sloserve:http3_*``: computed at scrape, with few values a label."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from sloserve.http3.doorkeeper import REFUSALS
from sloserve.http3.listener import Listener
from sloserve.http3.listener_figures import kernel_discards

HANDSHAKES = ("completed", "failed", "timed-out", "certificate", "token", "retried", *REFUSALS)
DISCARDED = ("malformed", "unknown", "kernel")
REQUESTS = ("answered", "failed", "cancelled", "dropped", "unread", "refused")


class Http3Collector(Collector):
    """The metrics of one listener."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def collect(self) -> Iterable[Any]:
        listener, figures = self._listener, self._listener.front.figures
        yield _gauge("connections", "HTTP/3 connections that are open.", len(listener.protocols))
        running = sum(len(protocol.exchanges) for protocol in listener.protocols)
        yield _gauge("running_requests", "Requests over HTTP/3 that are being answered.", running)
        handshakes = {name: figures.handshakes[name] for name in HANDSHAKES}
        yield _counter("handshakes", "Handshakes by how they ended.", "outcome", handshakes)
        requests = {name: figures.requests[name] for name in REQUESTS}
        yield _counter("requests", "Requests over HTTP/3 that ended, by outcome.", "outcome", requests)
        traffic = figures.traffic
        moved = {"in": traffic.received_bytes, "out": traffic.sent_bytes}
        yield _counter("bytes", "Bytes of UDP payload.", "direction", moved)
        yield CounterMetricFamily(
            "sloserve:http3_resent_frames_total",
            "Parts of streams that were sent again, since they were lost.",
            value=traffic.resent_frames,
        )
        discarded = {name: figures.discarded[name] for name in DISCARDED} | {"kernel": kernel_discards(listener.inode)}
        yield _counter("discarded_datagrams", "Datagrams that reached no connection.", "reason", discarded)
        deadlines = CounterMetricFamily(
            "sloserve:http3_deadlines_total",
            "Parts of responses with a deadline, by whether they left in time; overdue: written after the deadline.",
            labels=["class", "outcome"],
        )
        for slo_class, counts in sorted(figures.deadlines.items()):
            for outcome, count in asdict(counts).items():
                deadlines.add_metric([slo_class, outcome], count)
        yield deadlines


def _gauge(name: str, means: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"sloserve:http3_{name}", means, value=value)


def _counter(name: str, means: str, label: str, values: Mapping[str, float]) -> CounterMetricFamily:
    family = CounterMetricFamily(f"sloserve:http3_{name}_total", means, labels=[label])
    for value, count in values.items():
        family.add_metric([value], count)
    return family
