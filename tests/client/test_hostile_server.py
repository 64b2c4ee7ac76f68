"""Whatever a server answers, one request fails or completes, the run goes on, and memory is bounded."""

import asyncio
import itertools
import json
import re
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from httpx._decoders import SUPPORTED_DECODERS
from hypothesis import given
from hypothesis import strategies as st

from sloserve.client.client_stats import findings
from sloserve.client.endpoint import open_endpoint
from sloserve.client.exchange import MORE_TOKENS, TOKENS_PER_ASKED, Exchange, exchange
from sloserve.client.payload import Payload
from sloserve.client.responses import COMPRESSIONS, MOST_BODY_BYTES, MOST_EVENT_BYTES
from sloserve.client.stream import StreamReader
from sloserve.client.vllm_record import vllm_record
from sloserve.client.watching import LostServer, watch
from sloserve.client.workload_replay import ReplayedRun, ReplaySettings
from sloserve.core.clock import SystemClock
from sloserve.core.errors import ConfigError
from sloserve.core.outcome import Outcome
from sloserve.core.request import WorkloadRequest
from sloserve.core.slo import SLO, SLOClass, Targets
from tests import bounded

ASKED = 4
REQUEST = WorkloadRequest("r0", 0.0, 10, ASKED, SLO(SLOClass("interactive", 1), Targets(ttft_s=0.5, tpot_s=0.1)))
SENT = Payload(REQUEST, "/v1/completions", {}, b"{}")
MOST_TOKENS = TOKENS_PER_ASKED * ASKED + MORE_TOKENS
EVENT_STREAM = [(b"content-type", b"text/event-stream")]
WHOLE = b'data: {"choices":[{"text":"a","finish_reason":"length"}]}\n\ndata: [DONE]\n\n'
UNFORESEEN = re.compile(r"(?!HTTP|Remote|Local|Read|Write|Connect|SSE|Decoding|Protocol)[A-Z]\w*(?:Error|Exception)\b")
"""How an error reads that nothing but the last resort has caught."""
REPORT = ("met", "achieved", "evictions", "paused_steps", "preempted_ms", "paused_ms", "ttft", "ttft_ms", "e2e_ms")

leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["\ud800", "[/red]", "\x1b[2J", "length"])
)
fields = st.sampled_from(
    ["choices", "usage", "error", "slo", "message", "detail", "text", "delta", "content", "tool_calls", "finish_reason"]
    + ["prompt_tokens", "completion_tokens", "index", "data", "id", *REPORT]
)
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(fields, inner, max_size=4), max_leaves=12
)
counts = st.one_of(st.integers(0, 5), st.none(), leaves)
chunks = st.fixed_dictionaries(
    {},
    optional={
        "choices": st.lists(
            st.fixed_dictionaries(
                {},
                optional={
                    "text": st.one_of(st.text(max_size=2), leaves),
                    "delta": st.one_of(st.dictionaries(fields, values, max_size=2), leaves),
                    "finish_reason": st.one_of(st.sampled_from(["length", None]), leaves),
                },
            )
            | leaves,
            max_size=2,
        ),
        "usage": st.dictionaries(st.sampled_from(["prompt_tokens", "completion_tokens"]), counts, max_size=2) | leaves,
        "error": values,
        "slo": st.dictionaries(st.sampled_from(REPORT), values, max_size=4) | leaves,
    },
)
texts = st.one_of(
    chunks.map(json.dumps),
    chunks.map(json.dumps),
    st.just(json.dumps({"choices": [{"text": "a", "finish_reason": "length"}], "usage": {"completion_tokens": 1}})),
    values.map(json.dumps),
    st.text(max_size=20),
    st.sampled_from(["[DONE]", "[" * 20_000, '{"choices":' * 20_000, '{"usage":{"completion_tokens":1e400}}', "{"]),
)
events = st.builds(
    lambda name, text, end: f"{name}: {text}{end}".encode("utf-8", "surrogatepass"),
    st.sampled_from(["data", "data", "data", "event", "id", "retry", "", "x"]),
    texts,
    st.sampled_from(["\n\n", "\n\n", "\r\n\r\n", "\r\r", "\n", "\u2028\n\n", ""]),
)
bodies = st.one_of(
    st.lists(events, max_size=6).map(b"".join), st.binary(max_size=200), values.map(json.dumps).map(str.encode)
)
headers = st.lists(
    st.tuples(
        st.sampled_from(
            [b"content-type", b"content-encoding", b"retry-after", b"x-slo-dropped-reason", b"set-cookie", b"location"]
        ),
        st.one_of(
            st.binary(max_size=12),
            st.sampled_from(
                [b"text/event-stream; charset=utf-16", b"text/event-stream; charset=base64", b"gzip, gzip", b"identity"]
                + ["²".encode(), "٣".encode(), b"9" * 400, b"1", b"a=b; domain=", b"\x1b[2J"]
            ),
        ),
    ),
    max_size=3,
)


def cut(body: bytes, sizes: Iterable[int]) -> Iterator[bytes]:
    """Parts of ``body`` of the ``sizes`` in turn."""
    at = 0
    for size in itertools.cycle(sizes):
        if at >= len(body):
            return
        yield body[at : at + size]
        at += size


class Server(httpx.AsyncBaseTransport):
    """Answers every request with the same parts."""

    def __init__(self, parts: Callable[[], Iterable[bytes]], status: int = 200, headers: Any = EVENT_STREAM) -> None:
        self._parts, self._status, self._headers = parts, status, headers

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return httpx.Response(self._status, headers=self._headers, content=self._body())

    async def _body(self) -> AsyncIterator[bytes]:
        for part in self._parts():
            yield part


def asked(server: Server) -> Exchange:
    async def main() -> Exchange:
        clock = SystemClock()
        async with httpx.AsyncClient(transport=server, base_url="http://test") as client:
            return await exchange(client, SENT, clock, clock.monotonic_s(), 0.0, 60.0)

    return bounded.run(main())


def check_reported(ended: Exchange) -> None:
    """The run's record can be made and written with it, and is JSON."""
    run = ReplayedRun([ended, ended], 1.0, np.zeros(2), np.zeros(2))
    record = vllm_record(run, [REQUEST, REQUEST], from_due=True) | findings(run)
    json.dumps(record, allow_nan=False, ensure_ascii=False).encode()
    assert all(text.isprintable() and len(text) < 500 for text in record["errors"])


@pytest.mark.slow
@given(st.lists(texts, max_size=8))
def test_no_data_of_events_raises(data: list[str]) -> None:
    reader = StreamReader(MOST_TOKENS)
    for second, text in enumerate(data):
        reader.feed(text, float(second))
    times_s = reader.token_times_s()
    assert times_s.size <= MOST_TOKENS and len(reader.chunk_times_s) <= len(data)
    assert (np.diff(times_s) >= 0.0).all()


@pytest.mark.slow
@given(st.sampled_from([200, 200, 200, 204, 302, 408, 429, 500, 503, 599]), headers, st.booleans(), bodies, st.data())
def test_every_answer_ends_one_request(status: int, more: Any, is_stream: bool, body: bytes, data: Any) -> None:
    sizes = data.draw(st.lists(st.integers(1, 50), min_size=1, max_size=5))
    ended = asked(Server(lambda: cut(body, sizes), status, [*(EVENT_STREAM if is_stream else []), *more]))
    assert ended.outcome in (
        (Outcome.COMPLETED, Outcome.FAILED) if status == 200 else (Outcome.FAILED, Outcome.REJECTED)
    )
    assert (ended.error is None) == (ended.outcome is Outcome.COMPLETED)
    if status != 302:  # httpx raises whatever a malformed Location causes, though nobody follows it
        assert ended.error is None or not UNFORESEEN.match(ended.error), ended.error
    check_reported(ended)


@pytest.mark.slow
@given(
    st.sampled_from([b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"]),
    bodies,
    st.binary(max_size=40),
)
def test_every_byte_on_a_connection_ends_one_request(head: bytes, body: bytes, noise: bytes) -> None:
    async def main() -> Exchange:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(head + noise + (b"\r\n" if head else b"") + body)
            writer.close()

        clock = SystemClock()
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
                return await exchange(client, SENT, clock, clock.monotonic_s(), 0.0, 60.0)

    try:
        ended = bounded.run(main())
    except ConfigError as error:
        assert re.search(r"responded to request \S+ with 4\d\d: ", str(error))
        return
    assert ended.error is None or not UNFORESEEN.match(ended.error), ended.error
    check_reported(ended)


ENDLESS = {
    "a line": (200, b"x" * 65536, str(MOST_EVENT_BYTES)),
    "the data of an event": (200, b"data: " + b"x" * 1000 + b"\n", str(MOST_EVENT_BYTES)),
    "comments": (200, b": wait\n\n" * 8192, str(MOST_EVENT_BYTES)),
    "tokens": (200, b'data: {"choices":[{"text":"a"}]}\n\n' * 100, str(MOST_TOKENS)),
    "the body of a refusal": (503, b"x" * 65536, str(MOST_BODY_BYTES)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ENDLESS)
def test_what_does_not_end_is_given_up(name: str) -> None:
    status, part, limit = ENDLESS[name]
    tracemalloc.start()
    try:
        ended = asked(Server(lambda: itertools.repeat(part), status))
        most_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert ended.outcome is Outcome.FAILED and limit in str(ended.error)
    assert most_bytes < 5 * MOST_BODY_BYTES


@pytest.mark.parametrize("tokens", [10**9, 2**53, 10**30])
def test_a_count_beyond_what_was_asked_for_costs_no_memory(tokens: int) -> None:
    told = json.dumps({"choices": [{"text": "a", "finish_reason": "length"}], "usage": {"completion_tokens": tokens}})
    ended = asked(Server(lambda: [f"data: {told}\n\ndata: [DONE]\n\n".encode()]))
    assert ended.outcome is Outcome.FAILED and ended.token_times_s.size < 10


@pytest.mark.slow
def test_a_server_that_ignores_the_limit_of_tokens_completes_a_long_reply() -> None:
    tokens = b'data: {"choices":[{"text":"a"}]}\n\n' * 32_768
    ended = asked(Server(lambda: [tokens, WHOLE]))
    assert (ended.outcome, ended.output_tokens) == (Outcome.COMPLETED, 32_769)


def test_a_reply_without_bound_is_told_with_its_remedy() -> None:
    reader = StreamReader(most_tokens=2)
    for _ in range(3):
        reader.feed('{"choices":[{"text":"a"}]}', 0.0)
    assert reader.error is not None and reader.error.startswith("more than 2 tokens or chunks, which is far more")
    assert reader.error.endswith("or limit its outputs there") and len(reader.chunk_times_s) == 2


@pytest.mark.parametrize("text", ["a\u2028b\u2029c\x85d", "\ud83d", "\ufeff"])
def test_odd_characters_in_a_token_do_not_cut_its_event(text: str) -> None:
    chunk = {"choices": [{"text": text, "finish_reason": "length"}], "usage": {"completion_tokens": 1}}
    raw = any("\ud800" <= char <= "\udfff" for char in text)  # UTF-8 has it as an escape only
    body = f"data: {json.dumps(chunk, ensure_ascii=raw)}\n\ndata: [DONE]\n\n".encode()
    assert asked(Server(lambda: [body])).outcome is Outcome.COMPLETED


def test_numbers_that_json_does_not_have_count_as_not_told() -> None:
    choice = b'{"text":"a","finish_reason":"length","logprobs":[-Infinity]}'
    body = b'data: {"choices":[%b],"usage":{"completion_tokens":NaN}}\n\ndata: [DONE]\n\n' % choice
    ended = asked(Server(lambda: [body]))
    assert (ended.outcome, ended.output_tokens) == (Outcome.COMPLETED, 1)


def test_a_compressed_answer_is_not_unfolded() -> None:
    ended = asked(Server(lambda: [b"\x1f\x8b"], headers=[*EVENT_STREAM, (b"content-encoding", b"gzip")]))
    assert ended.error == "a compressed response (content-encoding 'gzip'), although identity was requested"


@pytest.mark.parametrize("codings", [["GZIP"], ["deflate"], ["br"], ["zstd"], ["identity, gzip"], ["none", "gzip"]])
def test_each_coding_that_httpx_decompresses_is_refused(codings: list[str]) -> None:
    more = [(b"content-encoding", coding.encode()) for coding in codings]
    ended = asked(Server(lambda: [WHOLE], headers=[*EVENT_STREAM, *more]))
    assert ended.error is not None and ended.error.startswith("a compressed response")
    assert set(SUPPORTED_DECODERS) - {"identity"} <= COMPRESSIONS


@pytest.mark.parametrize("coding", ["", "none", "aws-chunked", "Identity", "identity, identity", "x-unknown"])
def test_a_coding_that_httpx_passes_on_is_read(coding: str) -> None:
    ended = asked(Server(lambda: [WHOLE], headers=[*EVENT_STREAM, (b"content-encoding", coding.encode())]))
    assert (ended.outcome, ended.error) == (Outcome.COMPLETED, None)


@given(st.one_of(st.fixed_dictionaries({"data": values, "version": values}), values), st.sampled_from([200, 404, 500]))
def test_no_list_of_models_raises_another_error(body: Any, status: int) -> None:
    async def main() -> None:
        settings = ReplaySettings()
        with pytest.MonkeyPatch.context() as patch:
            server = Server(lambda: [json.dumps(body).encode()], status)
            patch.setattr("httpx.AsyncHTTPTransport", lambda **_: server)
            async with open_endpoint("http://127.0.0.1:9", model=None, api_key=None, settings=settings) as endpoint:
                assert endpoint.model.isprintable() and (endpoint.version or "").isprintable()
                assert endpoint.context_tokens is None or endpoint.context_tokens > 0

    try:
        bounded.run(main())
    except ConfigError as error:
        assert "names no model at /v1/models" in str(error)


@given(
    bodies, st.lists(st.tuples(st.sampled_from(["snapshot", "change"]), texts), max_size=4), st.sampled_from([200, 500])
)
def test_no_feed_raises_another_error(noise: bytes, told: list[tuple[str, str]], status: int) -> None:
    feed = "".join(f"event: {name}\ndata: {text}\n\n" for name, text in told).encode("utf-8", "surrogatepass") + noise
    server = httpx.MockTransport(lambda _: httpx.Response(status, headers=EVENT_STREAM, content=iter([feed])))
    with pytest.raises(LostServer) as caught:
        for view in watch("http://test", "key", server):
            assert isinstance(view["rows"], dict)
            json.dumps(view, allow_nan=False)
    assert len(str(caught.value)) < 500


@pytest.mark.slow
def test_a_feed_does_not_fill_the_memory_of_who_watches() -> None:
    def rows() -> Iterator[bytes]:
        yield b'event: snapshot\ndata: {"rows": {}}\n\n'
        for number in itertools.count():
            more = {f"{number}-{i}": 0 for i in range(50_000)}
            yield f"event: change\ndata: {json.dumps({'rows': more})}\n\n".encode()

    server = httpx.MockTransport(lambda _: httpx.Response(200, headers=EVENT_STREAM, content=rows()))
    with pytest.raises(LostServer, match="more than 100000 rows"):
        list(watch("http://test", "key", server))
