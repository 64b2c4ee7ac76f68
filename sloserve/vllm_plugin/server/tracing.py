"""Add a request's service level objectives to vLLM's trace, if ``--otlp-traces-endpoint`` is given.

vLLM makes its span ``llm_request`` in one call, once the request has ended, in the API process. While that call runs
:data:`_ending` has the request's facts, and a processor of OpenTelemetry puts them on the span that begins. Nothing of
prompts, outputs, ids, tenants or keys is among them. Without that flag nothing here is installed. See docs/traces.md.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final
from weakref import WeakKeyDictionary

from sloserve.core.finished import Latency
from sloserve.core.outcome import Outcome
from sloserve.core.served import ServedRequest
from sloserve.core.slo import SLO
from sloserve.engine.containment import Containment
from sloserve.engine.metrics.gen_ai_metrics import INPUT_TOKENS, OUTPUT_TOKENS, attributes_of
from sloserve.vllm_plugin.server.call_figures import latency_of, spans_in_engine
from sloserve.vllm_plugin.server.observe import EngineCall, Observed, entering
from sloserve.wire.trace_way import HEADER, RequestTrace

logger = logging.getLogger(__name__)

PREFIX: Final = "sloserve."
_ending: ContextVar[Callable[[Any], None] | None] = ContextVar("sloserve_ending", default=None)
"""Puts the facts of the request that is being traced on its span."""
_SPAN_NAME: Final = "llm_request"


class Tracing:
    """The traces of one engine client's requests."""

    def __init__(self, output_processor: Any, model: str) -> None:
        self._model = model
        self._calls: WeakKeyDictionary[Any, EngineCall] = WeakKeyDictionary()
        self._containment = Containment(Counter(), "sloserve failed to add its facts to a trace")
        self._stock = output_processor.do_tracing
        output_processor.do_tracing = self._do_tracing

    @classmethod
    def of(cls, output_processor: Any, model: str = "") -> "Tracing | None":
        """Return the tracing of an output processor; ``None`` if vLLM does not trace, or in a way not known here.

        Args:
            output_processor: vLLM's output processor.
            model: Name of the model for clients; empty if it is not known.
        """
        if not getattr(output_processor, "tracing_enabled", False):
            return None
        from opentelemetry import trace

        add = getattr(trace.get_tracer_provider(), "add_span_processor", None)
        if add is None or not hasattr(output_processor, "do_tracing"):
            logger.warning("traces will lack sloserve's facts: this vLLM makes its spans in an unknown way")
            return None
        add(_processor())
        return cls(output_processor, model)

    def entered(self, state: Any) -> None:
        """Record that a request entered the engine.

        Args:
            state: vLLM's state of one output.
        """
        call = entering.get()
        if call is not None:
            self._calls[state] = call

    def _do_tracing(self, output: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
        token = _ending.set(self._containment(None, self._facts, output, state))
        try:
            return self._stock(output, state, *args, **kwargs)
        finally:
            _ending.reset(token)

    def _facts(self, output: Any, state: Any) -> Callable[[Any], None] | None:
        headers = output.trace_headers
        way = RequestTrace.read(headers)
        if headers and HEADER in headers:  # what vLLM reads is as it was sent
            output.trace_headers = {name: value for name, value in headers.items() if name != HEADER} or None
        call = self._calls.get(state)
        if call is None:
            return None
        e2e_s = call.request.age_s()
        # A further call of a request has no verdict: the request is judged as a whole, and has no span of its own.
        spans = spans_in_engine([state.stats], e2e_s) if call.is_first else []
        attributes = (
            slo_attributes(call.request, latency_of(spans, e2e_s) if spans else None)
            | _way_attributes(way, state.stats.num_preemptions)
            | attributes_of(call.request.operation, self._model)
            | {INPUT_TOKENS: state.prompt_len, OUTPUT_TOKENS: state.stats.num_generation_tokens}
        )

        def put(span: Any) -> None:
            self._containment(None, _put, span, attributes, way)

        return put


def slo_attributes(observed: Observed, latency: Latency | None) -> dict[str, Any]:
    """Return class, targets, predictions and verdict of a request.

    Args:
        observed: The request.
        latency: Latency of the request; ``None`` if it is not to be judged.
    """
    found: dict[str, Any] = _targets(observed.slo)
    predicted = observed.predicted
    for name, quantiles in () if predicted is None else predicted.figures():
        if quantiles is not None:
            found[f"predicted.{name}_s"] = quantiles.median_s
            found[f"predicted.{name}_p90_s"] = quantiles.p90_s
            found[f"predicted.{name}_p99_s"] = quantiles.p99_s
    if latency is not None:
        found |= {"ttft_s": latency.ttft_s, "tpot_s": latency.tpot_s, "e2e_s": latency.e2e_s}
    served = ServedRequest(observed.slo, Outcome.COMPLETED, latency=latency)
    if served.good is not None:
        found["good"] = served.good
        found["missed"] = [name for name, kept in served.met.items() if not kept]
    return {PREFIX + name: value for name, value in found.items()}


def _targets(slo: SLO) -> dict[str, Any]:
    targets = {f"target.{name}": getattr(slo.targets, name) for name in slo.targets.stated}
    return {"class": slo.slo_class.name, **targets}


def _way_attributes(way: RequestTrace, preemptions: int) -> dict[str, Any]:
    return {
        PREFIX + "preemptions": preemptions,
        PREFIX + "preempted_s": way.preempted_s,
        PREFIX + "paused_s": way.paused_s,
        PREFIX + "events_left_out": way.left_out,
    }


def _put(span: Any, attributes: Mapping[str, Any], way: RequestTrace) -> None:
    span.set_attributes(attributes)
    for event in way.events:
        details = {"why": event.why or None, "figure": event.figure, "of": event.of}
        known = {PREFIX + name: value for name, value in details.items() if value is not None}
        span.add_event(PREFIX + event.name, known, timestamp=int(event.at_s * 1e9))


def _processor() -> Any:
    from opentelemetry.sdk.trace import SpanProcessor

    class Facts(SpanProcessor):
        def on_start(self, span: Any, parent_context: Any = None) -> None:
            put = _ending.get()
            if put is not None and span.name == _SPAN_NAME:
                _ending.set(None)  # of several engines in this process each has added a processor
                put(span)

    return Facts()
