"""What traces are told of the scheduler: each request's way, beside its trace headers; without tracing nothing."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from sloserve.core.request import WorkloadRequest
from sloserve.wire.trace_way import HEADER, RequestTrace

pytestmark = pytest.mark.vllm

Build = Callable[..., Any]
RequestOf = Callable[..., Any]


@pytest.fixture
def tracing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines are built as with --otlp-traces-endpoint."""
    from sloserve.vllm_plugin.virtual import vllm_config

    stock = vllm_config._base_config

    def traced(settings: Any) -> Any:
        config = copy.copy(stock(settings))
        config.observability_config = copy.copy(config.observability_config)
        config.observability_config.otlp_traces_endpoint = "http://127.0.0.1:1/v1/traces"
        return config

    monkeypatch.setattr(vllm_config, "_base_config", traced)


def ways(engine: Any, work: list[WorkloadRequest]) -> dict[str, RequestTrace]:
    """Of each request, as its last output has it."""
    found: dict[str, RequestTrace] = {}
    stock = engine.scheduler.update_from_output

    def update(*args: Any) -> Any:
        outputs = stock(*args)
        for batch in outputs.values():
            for one in batch.outputs:
                found[one.request_id] = RequestTrace.read(one.trace_headers)
                assert one.trace_headers is None or engine.scheduler._observers.traced is not None
        return outputs

    engine.scheduler.update_from_output = update
    engine.run(work)
    assert engine.scheduler.slo_counters["internal_errors"] == 0
    return found


def names(way: RequestTrace) -> list[str]:
    return [event.name for event in way.events]


def test_the_plan_preempts_for_an_earlier_deadline(build: Build, request_of: RequestOf, tracing: None) -> None:
    work = [request_of(f"late{i}", 0.0, 60, 120, e2e_s=500.0) for i in range(4)]
    work.append(request_of("urgent", 0.3, 60, 20, ttft_s=0.2, e2e_s=5.0))
    found = ways(build("edf", section={"policy_options": {"preempt": True}}), work)
    assert names(found["urgent"])[0] == "admitted"
    victims = [way for way in found.values() if "preempted" in names(way)]
    assert victims
    by_plan = [event for way in victims for event in way.events if event.why == "plan"]
    assert by_plan and all(event.figure is None and event.of is not None and event.of > 0.0 for event in by_plan)
    back = next(way for way in victims if "resumed" in names(way))
    times_s = [event.at_s for event in back.events]
    assert times_s == sorted(times_s) and back.preempted_s > 0.0


def test_admission_says_what_held_the_queue_up(build: Build, request_of: RequestOf, tracing: None) -> None:
    found = ways(build("fcfs"), [request_of(f"r{i}", 0.0, 20, 30) for i in range(6)])
    (event,) = found["r5"].events
    assert (event.name, event.why, event.figure, event.of) == ("admitted", "places", 4.0, 4.0)


def test_vllm_preempts_where_blocks_are_short(build: Build, request_of: RequestOf, tracing: None) -> None:
    found = ways(build("fcfs", kv_blocks=16, max_model_len=128), [request_of(f"r{i}", 0.0, 40, 60) for i in range(4)])
    assert any(event.why == "kv_short" for way in found.values() for event in way.events)


def test_without_tracing_nothing_is_noted_and_no_header_is_sent(build: Build, request_of: RequestOf) -> None:
    engine = build("edf")
    assert engine.scheduler._observers.traced is None
    assert set(map(str, ways(engine, [request_of("a"), request_of("b")]).values())) == {str(RequestTrace())}


def test_traced_or_not_the_same_is_decided(build: Build, request_of: RequestOf, tracing: None) -> None:
    work = [request_of(f"r{i}", 0.02 * i, 60, 60, e2e_s=50.0 - i) for i in range(12)]
    logs = []
    for on in (True, False):
        engine = build("edf")
        if not on:
            engine.scheduler._observers.traced = None
        logs.append(engine.run(work).requests)
    assert str(logs[0]) == str(logs[1])


def test_a_headers_own_trace_is_kept(build: Build, request_of: RequestOf, tracing: None) -> None:
    scheduler = build("edf").scheduler
    traced = scheduler._observers.traced
    request = type("Request", (), {"request_id": "a", "trace_headers": {"traceparent": "00-1"}})()
    scheduler._stats.stages.arrived("a", 0.0)
    from sloserve.wire.trace_way import TraceEvent

    traced._report(request, TraceEvent("admitted", 1.0))
    assert request.trace_headers["traceparent"] == "00-1" and HEADER in request.trace_headers
