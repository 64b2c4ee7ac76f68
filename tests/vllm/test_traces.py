"""A real server whose traces a collector on this host reads: what is on a request's span, and what is not."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from tests import bounded
from tests.vllm.server import MODEL, Server

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
SECRET = "canaryqzx"


class Collector(ThreadingHTTPServer):
    """Takes OTLP over HTTP."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    import gzip

                    body = gzip.decompress(body)
                collector.bodies.append(body)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)

    def spans(self, name: str) -> list[Any]:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        found = []
        for body in self.bodies:
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in resource.scope_spans:
                    found += [span for span in scope.spans if span.name == name]
        return found


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        yield found
        with bounded.within("the end of the collector"):
            found.shutdown()
            thread.join()


def values(attributes: Any) -> dict[str, Any]:
    found = {}
    for one in attributes:
        kind = one.value.WhichOneof("value")
        value = getattr(one.value, kind)
        found[one.key] = [item.string_value for item in value.values] if kind == "array_value" else value
    return found


def test_a_request_s_span_says_class_targets_verdict_and_events(collector: Collector) -> None:
    endpoint = f"http://127.0.0.1:{collector.server_port}/v1/traces"
    server = Server(
        "--policy", "edf", "--max-num-seqs", "2", "--otlp-traces-endpoint", endpoint,
        env={"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"},
    )  # fmt: skip
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    try:
        server.wait_ready()

        def send(headers: dict[str, str], **more: Any) -> None:
            body = {"model": MODEL, "prompt": f"{SECRET} tell", "max_tokens": 40, "ignore_eos": True, **more}
            with httpx.Client(base_url=server.url, timeout=60, headers={"x-tenant-id": SECRET, **headers}) as client:
                client.post("/v1/completions", json=body).raise_for_status()

        send({"x-slo-class": "batch", "x-slo-e2e-ms": "60000", "traceparent": parent})
        send({"x-slo-class": "interactive", "x-slo-ttft-ms": "1", "x-slo-e2e-ms": "1"}, stream=True)
        send({}, n=2)
        urgent = {"x-slo-class": "interactive", "x-slo-e2e-ms": "90000"}
        threads = [threading.Thread(target=send, args=(urgent,), kwargs={"max_tokens": 200}) for _ in range(4)]
        for thread in threads:
            thread.start()
        with bounded.within("four requests", 120.0):
            for thread in threads:
                thread.join()
    finally:
        server.stop()  # which sends what has not been sent yet
    spans = collector.spans("llm_request")
    told = [values(span.attributes) for span in spans]
    assert len(spans) == 8
    (first,) = (i for i, one in enumerate(told) if one.get("sloserve.class") == "batch")
    assert spans[first].trace_id.hex() == parent.split("-")[1] and spans[first].parent_span_id.hex() in parent
    batch = told[first]
    assert batch["sloserve.target.e2e_s"] == 60.0 and batch["sloserve.good"] is True and batch["sloserve.missed"] == []
    assert 0.0 < batch["sloserve.ttft_s"] <= batch["sloserve.e2e_s"] < 60.0
    missed = next(one for one in told if one.get("sloserve.target.e2e_s") == 0.001)
    assert missed["sloserve.good"] is False and {"ttft", "e2e"} <= set(missed["sloserve.missed"])
    for span in spans:
        assert any(event.name == "sloserve.admitted" for event in span.events), span
        for event in span.events:
            assert span.start_time_unix_nano - 1_000_000 <= event.time_unix_nano <= span.end_time_unix_nano
    held = [values(event.attributes) for span in spans for event in span.events]
    assert any(one.get("sloserve.why") == "places" and one["sloserve.of"] == 2.0 for one in held)
    assert not any(SECRET.encode() in body for body in collector.bodies)
