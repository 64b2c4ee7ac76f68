"""A gateway's books of promises."""

from sloserve.fleet.gateway.metrics import GatewayMetrics


def test_promises_and_refusals_are_counted_under_few_labels() -> None:
    metrics = GatewayMetrics()
    for outcome in ("kept", "kept", "broken", "withdrawn"):
        metrics.promise_ended("chat", "interactive", 0.75, outcome)
    for why in ("late", "others"):
        metrics.promise_refused("chat", "interactive", why)
    value = metrics.registry.get_sample_value
    labels = {"model": "chat", "class": "interactive"}
    name = "sloserve:gateway_promises"
    counts = [value(f"{name}_total", {**labels, "outcome": one}) for one in ("kept", "broken", "withdrawn")]
    assert counts == [2.0, 1.0, 1.0]
    assert value(f"{name}_allowed_broken_total", labels) == 0.75
    refused = [value(f"{name}_refused_total", {**labels, "why": why}) for why in ("late", "others", "unknown")]
    assert refused == [1.0, 1.0, None]
