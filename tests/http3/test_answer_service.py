"""What headers say of how an answer is sent: priority fields, classes, deadlines."""

import asyncio
import logging
import math
from typing import Any

import pytest
from aioquic.buffer import encode_uint_var
from aioquic.h3.connection import encode_frame
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.http3.answer_service import DEFAULT_CLASSIFY, ResponseDeadline, ResponseService
from sloserve.http3.listener_figures import Deadlines
from sloserve.http3.listener_metrics import DISCARDED, Http3Collector
from sloserve.http3.stream_order import StreamOrder
from sloserve.http3.stream_priority import (
    PRIORITY_UPDATE_REQUEST,
    ControlFrames,
    StreamPriority,
    parse_priority,
    parse_update,
)
from sloserve.http3.stream_schedulers import scheduler
from sloserve.wire.headers import DEFAULT_RULES
from sloserve.wire.resolve import Rules, resolve_headers
from tests.http3.serving import answer, ask, connected, listening, reprioritize, run, whole

STREAM = [(b"content-type", b"text/event-stream; charset=utf-8")]


@pytest.mark.parametrize(
    ("field", "urgency", "incremental"),
    [
        (b"u=1, i", 1, True),
        (b"i=?0;x=1,u=7;a", 7, False),
        (b"u=3,u=5", 5, None),
        (b"u=8, i=1", None, None),
        (b"u=-1", None, None),
        (b"", None, None),
        (b"u=" + b"1" * 300, None, None),
        (b"\xff, u=2, foo=bar", 2, None),
    ],
)
def test_priority_fields(field: bytes, urgency: int | None, incremental: bool | None) -> None:
    assert parse_priority(field) == StreamPriority(urgency, incremental)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_priority_field_and_an_update(raw: bytes) -> None:
    priority = parse_priority(raw)
    assert priority.urgency is None or 0 <= priority.urgency <= 7
    update = parse_update(raw)
    assert update is None or update[0] % 4 == 0


@given(
    st.lists(st.tuples(st.sampled_from([0x04, 0x07, 0x21, PRIORITY_UPDATE_REQUEST]), st.binary(max_size=40))), st.data()
)
def test_frames_of_a_control_stream_are_read_however_they_are_cut(frames: list[tuple[int, bytes]], data: Any) -> None:
    raw = encode_uint_var(0) + b"".join(encode_frame(*frame) for frame in frames)
    reader, found, at = ControlFrames(frozenset({PRIORITY_UPDATE_REQUEST}), 32), [], 0
    while at < len(raw):
        size = data.draw(st.integers(1, len(raw) - at))
        found += reader.feed(raw[at : at + size])
        at += size
    kept = [(kind, len(p), p if kind == PRIORITY_UPDATE_REQUEST and len(p) <= 32 else None) for kind, p in frames]
    assert found == kept


def test_classes_bound_what_a_client_may_state() -> None:
    services = {
        name: ResponseService.of(*DEFAULT_CLASSIFY([(b"x-slo-class", name.encode())], None))
        for name in DEFAULT_CLASSES.names
    }
    granted = {
        name: [StreamPriority(stated).clamped(s.urgency, s.most_urgent) for stated in (None, 0, 7)]
        for name, s in services.items()
    }
    assert granted == {
        "priority": [1, 0, 7],
        "interactive": [3, 2, 7],
        "batch": [5, 4, 7],
        "background": [7, 6, 7],
    }


def test_a_tenant_that_is_held_to_a_class_gets_its_urgency() -> None:
    rules = Rules(DEFAULT_CLASSES, tenants={"acme": "batch"})
    stated = [(b"x-tenant-id", b"acme"), (b"x-slo-class", b"priority"), (b"x-slo-ttft-ms", b"1")]
    service = ResponseService.of(*resolve_headers(rules, DEFAULT_RULES, stated))
    assert (service.urgency, service.most_urgent, service.targets, service.tenant) == (5, 4, Targets(), "acme")
    unknown = ResponseService.of(*resolve_headers(rules, DEFAULT_RULES, [(b"x-slo-class", b"no such class")]))
    assert unknown.urgency == 3  # its refusal is the server's


def test_an_answer_has_one_deadline_unless_its_chunks_have_their_own() -> None:
    targets = Targets(ttft_s=1.0, e2e_s=9.0, tds=4.0)
    fixed = ResponseDeadline(100.0, targets, renewed=False)
    assert fixed.began(STREAM) == 101.0
    assert [fixed.chunk(b"data: x\n\n", now_s) for now_s in (100.5, 103.0)] == [109.0, 109.0]
    whole_answer = ResponseDeadline(100.0, targets, renewed=True)
    assert [whole_answer.began([]), whole_answer.chunk(b"{}", 100.5)] == [109.0, 109.0]
    assert ResponseDeadline(100.0, Targets(), renewed=True).chunk(b"{}", 100.5) is None


def test_a_chunk_is_due_when_its_reader_runs_dry() -> None:
    reply = ResponseDeadline(100.0, Targets(ttft_s=1.0, tds=4.0), renewed=True)
    assert reply.began(STREAM) == 101.0
    assert reply.chunk(b"data: a\n\n", 100.5) == 101.0
    assert reply.chunk(b"data: b\n\ndata: c\n\n", 100.6) == 100.75  # the first is digested by then
    assert reply.chunk(b'data: "data:"\n', 100.7) == 101.25  # brings nothing to read until it is whole
    assert reply.chunk(b"\n", 100.7) == 101.25
    assert reply.chunk(b"data: e\n\n", 104.0) == 104.0  # dry since 101.5: due at once
    assert reply.chunk(b"data: f\n\n", 104.0) == 104.25


def test_a_comment_before_the_first_event_changes_nothing_of_when_that_is_due() -> None:
    reply = ResponseDeadline(100.0, Targets(ttft_s=1.0, tds=4.0), renewed=True)
    reply.began(STREAM)
    assert [reply.chunk(b": slo-queue position=2\n\n", now_s) for now_s in (100.2, 100.4)] == [101.0, 101.0]
    assert reply.chunk(b"data: a\n\n", 100.5) == 101.0
    assert reply.chunk(b"data: b\n\n", 100.6) == 100.75
    assert reply.chunk(b": keep-alive\n\n", 104.0) == 104.0


@pytest.mark.slow
def test_priorities_reach_the_scheduler() -> None:
    async def test() -> None:
        states: dict[str, Any] = {}

        async def app(scope: Any, receive: Any, send: Any) -> None:
            (protocol,) = listener.protocols
            await receive()
            stream_id = max(protocol.exchanges)
            states[scope["path"]] = protocol.quic._order._states[stream_id]
            await answer(send, b"", headers=[(b"priority", b"u=0")] if scope["path"] == "/own" else [])

        async with listening(app) as listener, connected(listener) as client:
            for path, headers in {
                "/stated": {"priority": "u=5, i"},
                "/class": {"x_slo_class": "background", "priority": "u=0", "x_tenant_id": "acme"},
                "/deadline": {"x_slo_e2e_ms": "5000"},
                "/own": {},
            }.items():
                await whole(ask(client, path, **headers))
            stream_id = client.quic.get_next_available_stream_id()
            reprioritize(client, stream_id, "u=6, i")  # before the request: RFC 9218 allows for it
            await client.ping()
            await whole(ask(client, "/early"))
            for ahead in range(1, 401):
                reprioritize(client, stream_id + 4 * ahead, "u=0")
            await client.ping()
            (protocol,) = listener.protocols
            assert len(protocol._early) == 128
        assert (states["/stated"].urgency, states["/stated"].incremental) == (5, True)
        assert states["/class"].urgency == 6
        assert 4.0 < states["/deadline"].deadline_s - asyncio_time() < 5.0
        assert states["/own"].urgency == 0
        assert (states["/early"].urgency, states["/early"].incremental) == (6, True)
        assert states["/early"].deadline_s == math.inf

    def asyncio_time() -> float:
        return asyncio.get_running_loop().time()

    run(test())


def test_parts_of_answers_are_counted_by_whether_they_left_in_time() -> None:
    order, tally = StreamOrder(scheduler("edf")), Deadlines()
    for end, due_s in ((100, 5.0), (200, 6.0), (300, 6.0)):
        order.due(0, end, due_s, tally)
    order.served(0, 150, 150, 5.0)
    assert (tally.met, tally.missed) == (1, 0)
    order.key(0, 150, 100)  # what has arrived is forgotten
    order.served(0, 150, 300, 6.5)
    order.served(0, 10, 310, 9.0)
    assert (tally.met, tally.missed) == (1, 2)


@pytest.mark.slow
def test_what_a_listener_did_is_told_and_logged_without_queries(
    caplog: pytest.LogCaptureFixture, virtually: Any
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/fails":
            raise ValueError
        await answer(send, b"x" * 3000, 201, headers=STREAM if scope["path"] == "/stream" else [])

    async def test(loop: Any) -> None:
        registry = CollectorRegistry()
        async with listening(app) as listener:
            registry.register(Http3Collector(listener))
            async with connected(listener) as client:
                for path in ("/v1/a%0ab?key=secret", "/stream", "/fails"):
                    await whole(ask(client, path, x_slo_e2e_ms="60000", x_slo_class="batch"))
                for stray in (b"\x40" + bytes(30), b"\xc0"):  # of no connection; of none that could be
                    listener.datagram_received(stray, ("192.0.2.1", 9))

                await asyncio.sleep(1.0)  # the last answer is acknowledged

                def value(name: str, **labels: str) -> float | None:
                    return registry.get_sample_value(f"sloserve:http3_{name}", labels)

                assert (value("connections"), value("running_requests")) == (1, 0)
                assert value("handshakes_total", outcome="completed") == 1
                assert value("requests_total", outcome="answered") == 2
                assert value("requests_total", outcome="failed") == 1
                assert value("bytes_total", direction="out") > 6000
                assert value("resent_frames_total") == 0
                assert value("deadlines_total", **{"class": "batch", "outcome": "met"}) == 2
                discarded = {why: value("discarded_datagrams_total", reason=why) for why in DISCARDED}
                assert discarded == {"malformed": 1, "unknown": 1, "kernel": 0}

    caplog.set_level(logging.INFO, "uvicorn.access")
    virtually(test)
    lines = [record.getMessage().split(" - ")[1] for record in caplog.records if record.name == "uvicorn.access"]
    assert lines == ['"GET /v1/a%0Ab HTTP/3" 201', '"GET /stream HTTP/3" 201', '"GET /fails HTTP/3" 500']
