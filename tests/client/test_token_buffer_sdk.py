"""The token buffer around streams of the official SDK: over a transport that a test scripts, and over a socket."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import openai
import pytest
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from sloserve.client import TokenBuffer
from tests.client.fake_server import FakeServer
from tests.client.virtual_time import START_S, LoopClock, ThreadClocks, run

pytestmark = pytest.mark.slow  # the SDK alone takes half a second to import

URL = "http://reply.test/v1"
LIMIT_S = 10.0
TDS = 5.0
WORDS = ["Slow ", "tokens ", "are ", "read ", "at ", "leisure."]
WORDS_AT_S = [0.5, 0.5, 0.5, 0.5, 3.0, 3.0]
EXPECTED_S = [0.5, 0.7, 0.9, 1.1, 3.0, 3.2]


def event(data: dict[str, Any] | str) -> bytes:
    return f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n".encode()


def chunk(delta: dict[str, Any] | None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    return {
        "id": "c",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": choices,
        "usage": None,
        **more,
    }


USAGE = {"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9}
EVENTS: list[tuple[float, bytes]] = [
    (0.4, event(chunk({"role": "assistant", "content": ""}))),
    *((at_s, event(chunk({"content": word}))) for at_s, word in zip(WORDS_AT_S, WORDS, strict=True)),
    (3.0, event(chunk({}, finish="stop"))),
    (3.0, event(chunk(None, usage=USAGE, slo={"good": True}))),
    (3.0, event("[DONE]")),
]
FAILURE = event({"error": {"message": "the engine died", "type": "server_error"}})


class Transport:
    """Streams ``events`` at their times, by a thread's or the loop's clock, and notes that its stream was closed."""

    def __init__(self, events: list[tuple[float, bytes]]) -> None:
        self.events, self.clocks, self.ended = events, ThreadClocks(), threading.Event()

    def client(self) -> openai.OpenAI:
        transport = httpx.MockTransport(lambda request: self._answer(self._body()))
        return openai.OpenAI(base_url=URL, api_key="none", http_client=httpx.Client(transport=transport))

    def async_client(self) -> openai.AsyncOpenAI:
        transport = httpx.MockTransport(lambda request: self._answer(self._async_body()))
        return openai.AsyncOpenAI(base_url=URL, api_key="none", http_client=httpx.AsyncClient(transport=transport))

    def _answer(self, body: Any) -> httpx.Response:
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=body)

    def _body(self) -> Iterator[bytes]:
        try:
            for at_s, data in self.events:
                self.clocks.sleep(START_S + at_s - self.clocks.now_s())
                yield data
        finally:
            self.ended.set()

    async def _async_body(self) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        try:
            for at_s, data in self.events:
                await asyncio.sleep(START_S + at_s - loop.time())
                yield data
        finally:
            self.ended.set()


def ask(client: Any) -> Any:
    return client.chat.completions.create(model="m", messages=[{"role": "user", "content": "?"}], stream=True)


def texts(chunks: list[Any]) -> list[str]:
    return [c.choices[0].delta.content for c in chunks if c.choices and c.choices[0].delta.content]


def check_whole(chunks: list[Any]) -> None:
    assert texts(chunks) == WORDS
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage.completion_tokens == 6
    assert chunks[-1].model_extra == {"slo": {"good": True}}


def test_a_stream_of_the_sdk() -> None:
    transport = Transport(EVENTS)
    stream = ask(transport.client())
    with TokenBuffer(stream, tds=TDS, clock=transport.clocks, sleep=transport.clocks.sleep) as buffer:
        check_whole(list(buffer))
    report = buffer.report()
    assert report.releases_s == pytest.approx(EXPECTED_S)
    assert report.arrivals_s == pytest.approx(WORDS_AT_S)
    assert [(s.at_s, s.duration_s) for s in report.stalls] == [(pytest.approx(1.3), pytest.approx(1.7))]
    assert stream.response.is_closed


def test_an_async_stream_of_the_sdk() -> None:
    transport = Transport(EVENTS)

    async def main() -> None:
        clock = LoopClock()
        handed = []
        async with TokenBuffer(await ask(transport.async_client()), tds=TDS, clock=clock) as buffer:
            async for piece in buffer:
                handed.append((clock.now_s() - START_S, piece))
        check_whole([piece for _, piece in handed])
        assert [at_s for at_s, piece in handed if texts([piece])] == pytest.approx(EXPECTED_S)

    run(main())
    assert transport.ended.is_set()


def test_an_error_in_the_stream_is_the_sdks() -> None:
    transport = Transport([*EVENTS[:4], (0.6, FAILURE)])
    buffer = TokenBuffer(ask(transport.client()), tds=TDS, clock=transport.clocks, sleep=transport.clocks.sleep)
    chunks = []
    with pytest.raises(openai.APIError, match="the engine died"):
        for piece in buffer:
            chunks.append(piece)
    assert texts(chunks) == WORDS[:3]
    assert buffer.report().qoe == 0.0


def test_closing_early_closes_the_response() -> None:
    transport = Transport(EVENTS)

    async def main() -> None:
        async with TokenBuffer(await ask(transport.async_client()), tds=TDS, clock=LoopClock()) as buffer:
            await anext(buffer)
            assert not transport.ended.is_set()
        assert transport.ended.is_set()

    run(main())


def stalled(gone: threading.Event) -> Any:
    """A script: one token, then nothing until the client hangs up."""

    async def body() -> AsyncIterator[bytes]:
        try:
            yield EVENTS[1][1]
            await asyncio.Event().wait()
        finally:
            gone.set()

    def script(sent: dict[str, Any], request: Request) -> Response:
        return StreamingResponse(body(), media_type="text/event-stream")

    return script


def test_closing_hangs_up_on_a_server_that_has_paused_the_request(fake: FakeServer) -> None:
    """The thread waits for a token that does not come; the server must learn at once that nobody wants it."""
    gone = threading.Event()
    fake.script = stalled(gone)
    with openai.OpenAI(base_url=f"{fake.url}/v1", api_key="none", max_retries=0) as client:
        with TokenBuffer(ask(client)) as buffer:
            assert texts([next(buffer)]) == WORDS[:1]
        assert gone.wait(LIMIT_S)
        assert list(buffer) == []


def test_the_connection_is_kept_for_the_next_request(fake: FakeServer) -> None:
    """A buffer that read to the end leaves the pool's connection alone."""
    answer = b"".join(data for _, data in EVENTS)
    fake.script = lambda body, request: Response(answer, media_type="text/event-stream")
    with openai.OpenAI(base_url=f"{fake.url}/v1", api_key="none", max_retries=0) as client:
        for _ in range(3):
            with TokenBuffer(ask(client), tds=10_000.0) as buffer:
                check_whole(list(buffer))
