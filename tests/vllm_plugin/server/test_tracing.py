"""Our facts on vLLM's span of a request, as an exporter in memory gets it: vLLM's own ``do_tracing`` makes the span."""

from types import SimpleNamespace
from typing import Any
from weakref import ref

import pytest

from sloserve.core.clock import ManualClock
from sloserve.core.predicted import Predicted, Quantiles
from sloserve.core.served import InEngine
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.engine.metrics.gen_ai_metrics import operation_of
from sloserve.vllm_plugin.server.observe import EngineCall, Observed, entering
from sloserve.vllm_plugin.server.tracing import Tracing
from sloserve.wire.trace_way import HEADER, RequestTrace, TraceEvent

pytestmark = pytest.mark.vllm

GEN_AI = {
    "gen_ai.operation.name": "chat",
    "gen_ai.provider.name": "vllm",
    "gen_ai.request.model": "tiny",
    "gen_ai.usage.input_tokens": 2,
    "gen_ai.usage.output_tokens": 7,
}
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class State(SimpleNamespace):
    """vLLM's ``RequestState``: known by itself, not by what it holds."""

    __hash__ = object.__hash__


@pytest.fixture(scope="module")
def exporter() -> Any:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    found, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(found))
    trace.set_tracer_provider(provider)  # which a process does once
    return found


@pytest.fixture
def spans(exporter: Any) -> Any:
    exporter.clear()
    return exporter


@pytest.fixture
def processor() -> Any:
    from vllm.v1.engine.output_processor import OutputProcessor

    return OutputProcessor(None, log_stats=True, tracing_enabled=True)


def observed(clock: ManualClock, **targets: float) -> EngineCall:
    slo = DEFAULT_CLASSES.slo("interactive", Targets(**targets))
    found = Observed(
        slo, "a-tenant", clock.monotonic_s(), clock, in_engine=lambda _: InEngine(),
        broken_off=lambda: None, started=lambda _: None, ended=lambda *_: None,
    )  # fmt: skip
    found.predicted = Predicted(Quantiles(0.1, 0.4, 0.4), None)
    return found.call()


def state_of(**stats: Any) -> State:
    from vllm.v1.metrics.stats import RequestStateStats

    told = {"arrival_time": 1e6, "queued_ts": 10.0, "scheduled_ts": 10.1, "first_token_ts": 10.2, "last_token_ts": 10.8,
            "num_generation_tokens": 7, "first_token_latency": 0.2}  # fmt: skip
    found = State(prompt_token_ids=[1, 2], prompt_embeds=None, external_req_id="x", top_p=1.0, max_tokens_param=9)
    found.prompt_len = 2
    found.temperature, found.n, found.stats = 0.5, 1, RequestStateStats(**told | stats)
    return found


def entered(tracing: Tracing, one: EngineCall, state: State) -> None:
    token = entering.set(one)
    try:
        tracing.entered(state)
    finally:
        entering.reset(token)


def test_a_span_has_class_targets_verdict_and_what_befell_the_request(spans: Any, processor: Any) -> None:
    clock, tracing = ManualClock(), Tracing.of(processor, "tiny")
    assert tracing is not None
    one, state = observed(clock, ttft_s=0.5, tpot_s=0.05), state_of(num_preemptions=1)
    one.request.operation = operation_of("/v1/chat/completions")
    entered(tracing, one, state)
    clock.advance_to(clock.now_s() + 1.0)
    way = RequestTrace(preempted_s=0.25, left_out=3)
    way.add(TraceEvent("admitted", 1e6 + 0.1, "places", 4.0, 4.0))
    way.add(TraceEvent("preempted", 1e6 + 0.3, "plan", None, 2.5))
    output = SimpleNamespace(trace_headers={"traceparent": TRACE, HEADER: way.header()})
    processor.do_tracing(output, state, SimpleNamespace(iteration_timestamp=1e6 + 1.0))
    assert output.trace_headers == {"traceparent": TRACE}
    (span,) = spans.get_finished_spans()
    assert span.name == "llm_request" and format(span.context.trace_id, "032x") in TRACE
    ours = {name: value for name, value in span.attributes.items() if name.startswith("sloserve.")}
    assert ours == {
        "sloserve.class": "interactive", "sloserve.target.ttft_s": 0.5, "sloserve.target.tpot_s": 0.05,
        "sloserve.predicted.ttft_s": 0.1, "sloserve.predicted.ttft_p90_s": 0.4, "sloserve.predicted.ttft_p99_s": 0.4,
        "sloserve.ttft_s": pytest.approx(0.4), "sloserve.tpot_s": pytest.approx(0.1), "sloserve.e2e_s": 1.0,
        "sloserve.good": False, "sloserve.missed": ("tpot",),
        "sloserve.preemptions": 1, "sloserve.preempted_s": 0.25, "sloserve.paused_s": 0.0,
        "sloserve.events_left_out": 3,
    }  # fmt: skip
    # vLLM's own span has older names of the same conventions, and no operation, provider and model.
    assert {name: span.attributes[name] for name in GEN_AI} == GEN_AI
    first, second = span.events
    assert (first.name, first.timestamp) == ("sloserve.admitted", int((1e6 + 0.1) * 1e9))
    assert dict(first.attributes) == {"sloserve.why": "places", "sloserve.figure": 4.0, "sloserve.of": 4.0}
    assert dict(second.attributes) == {"sloserve.why": "plan", "sloserve.of": 2.5}
    assert "a-tenant" not in span.to_json()


def test_spans_of_others_and_requests_that_are_not_known_are_left_alone(spans: Any, processor: Any) -> None:
    from opentelemetry import trace

    tracing, clock = Tracing.of(processor), ManualClock()
    assert tracing is not None
    processor.do_tracing(SimpleNamespace(trace_headers=None), state_of(), SimpleNamespace(iteration_timestamp=1e6))
    trace.get_tracer("another").start_span("llm_request").end()
    broken = state_of()
    entered(tracing, observed(clock), broken)
    broken.stats.first_token_ts = "no number"  # whatever is wrong with ours, vLLM's span is made
    with pytest.raises(TypeError):  # vLLM's own sums
        processor.do_tracing(SimpleNamespace(trace_headers=None), broken, SimpleNamespace(iteration_timestamp=1e6))
    found = spans.get_finished_spans()
    assert len(found) == 2
    assert not any(name.startswith("sloserve.") for span in found for name in span.attributes)


def test_an_error_of_ours_costs_our_facts_alone(spans: Any, processor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tracing, state = Tracing.of(processor), state_of()
    assert tracing is not None
    entered(tracing, observed(ManualClock()), state)
    monkeypatch.setattr("sloserve.vllm_plugin.server.tracing.slo_attributes", lambda *_: 1 / 0)
    processor.do_tracing(SimpleNamespace(trace_headers=None), state, SimpleNamespace(iteration_timestamp=1e6))
    (span,) = spans.get_finished_spans()
    assert "sloserve.class" not in span.attributes


def test_a_request_that_is_gone_is_not_held(processor: Any, exporter: Any) -> None:
    tracing, state = Tracing.of(processor), state_of()
    assert tracing is not None
    entered(tracing, observed(ManualClock()), state)
    held = ref(state)
    del state
    assert held() is None


def test_where_vllm_does_not_trace_nothing_is_installed() -> None:
    processor = SimpleNamespace(tracing_enabled=False, do_tracing=None)
    assert Tracing.of(processor) is None and processor.do_tracing is None
