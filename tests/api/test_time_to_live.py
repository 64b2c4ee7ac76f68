"""A request's time to live: the 429, and that whoever serves the request learns that its client has left."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from sloserve.api import time_to_live
from sloserve.api.middleware import SLOMiddleware
from sloserve.wire import context
from tests.client.virtual_time import run


class Call:
    """A request of one call of the engine."""

    standing = None

    def __init__(self) -> None:
        self.waiting = True
        self.expired = 0

    def answer_ends(self, *, begun: bool) -> None:
        pass

    def is_waiting(self) -> bool:
        return self.waiting

    def expire(self) -> int:
        self.expired += 1
        return 7


class App:
    """Answers after ``first_s``, in one piece or streamed, and notes what became of it.

    preamble: what a stream says before it calls the engine, as that of ``/v1/responses`` does.
    """

    def __init__(
        self, first_s: float, *, stream: bool, starts_s: float | None = None, preamble: bytes | None = None
    ) -> None:
        self.call = Call()
        self.ended = ""
        self._first_s = first_s
        self._starts_s = starts_s
        self._stream = stream
        self._preamble = preamble

    async def tokens(self) -> AsyncIterator[bytes]:
        try:
            if self._preamble is not None:
                yield self._preamble
                http = context.current.get()
                assert http is not None
                http.requests.append(self.call)
            await asyncio.sleep(self._first_s if self._starts_s is None else self._starts_s)
            self.call.waiting = False
            await asyncio.sleep(self._first_s - (self._starts_s or self._first_s))
            yield b"data: one\n\n"
            self.ended = "completed"
        except BaseException:
            self.ended = "aborted"
            raise

    async def handle(self, request: Request) -> Response:
        await request.body()
        http = context.current.get()
        assert http is not None
        if self._preamble is None:
            http.requests.append(self.call)
        if self._stream:
            return StreamingResponse(self.tokens(), media_type="text/event-stream")
        return await whole_or_nothing(request, self.tokens())


async def whole_or_nothing(request: Request, tokens: AsyncIterator[bytes]) -> Response:
    """As vLLM serves a reply in one piece: it listens for the client's leaving meanwhile."""

    async def read() -> Response:
        return JSONResponse([part.decode() async for part in tokens])

    async def left() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(read()), asyncio.create_task(left())]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks[0 if tasks[1].done() else 1 :][:1]:
        task.cancel()
    return tasks[0].result() if not tasks[1].done() else JSONResponse(None)


def serve(app: App, ttl_ms: str | None) -> tuple[httpx.Response, float]:
    """The answer, and after how many seconds of virtual time it was complete."""

    async def go() -> tuple[httpx.Response, float]:
        loop = asyncio.get_running_loop()
        served = Starlette(routes=[Route("/v1/completions", app.handle, methods=["POST"])])
        served.add_middleware(SLOMiddleware)
        began_s = loop.time()
        headers = {} if ttl_ms is None else {"x-request-ttl-ms": ttl_ms}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(served), base_url="http://test") as client:
            answer = await client.post("/v1/completions", json={}, headers=headers, timeout=None)
        return answer, loop.time() - began_s

    return run(go())


@pytest.mark.parametrize("stream", [False, True])
def test_who_has_no_token_in_time_gets_a_429_and_its_work_is_ended(stream: bool) -> None:
    app = App(10.0, stream=stream)
    answer, took_s = serve(app, "250")
    assert answer.status_code == 429
    assert answer.headers["x-slo-dropped-reason"] == "rejected-ttl-expired" and answer.headers["retry-after"] == "7"
    assert answer.headers["x-llm-d-request-dropped-reason"] == "rejected-ttl-expired"
    assert answer.json()["error"]["message"] == (
        "no token within the 250 ms of x-request-ttl-ms; retry in 7 s or allow for more"
    )
    assert app.ended == "aborted" and app.call.expired == 1
    assert took_s == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("ttl_ms", [None, "2000"])
def test_who_has_one_is_served(stream: bool, ttl_ms: str | None) -> None:
    app = App(1.0, stream=stream)
    answer, _ = serve(app, ttl_ms)
    assert answer.status_code == 200 and "one" in answer.text
    assert app.ended == "completed" and not app.call.expired


def test_a_reply_in_one_piece_that_has_begun_is_not_given_up() -> None:
    app = App(10.0, stream=False, starts_s=0.1)
    answer, took_s = serve(app, "250")
    assert answer.status_code == 200 and app.ended == "completed" and took_s == pytest.approx(10.0, abs=0.01)


CREATED = b'event: response.created\ndata: {"type":"response.created"}\n\n'


def test_events_before_the_first_token_do_not_count_as_one() -> None:
    app = App(10.0, stream=True, preamble=CREATED)
    answer, _ = serve(app, "250")
    assert answer.status_code == 429 and app.ended == "aborted" and app.call.expired == 1
    app = App(0.1, stream=True, preamble=CREATED)
    answer, _ = serve(app, "250")
    assert answer.status_code == 200 and answer.content == CREATED + b"data: one\n\n" and app.ended == "completed"


def test_what_is_held_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_to_live, "MAX_HELD_BYTES", 10)
    answer, _ = serve(App(1.0, stream=True, preamble=CREATED), "250")
    assert answer.status_code == 200 and answer.content == CREATED + b"data: one\n\n"


async def obeys(receive: Receive, send: Send) -> None:
    """Learns that its client has left, and answers all the same, as vLLM's server does."""
    while (await receive())["type"] != "http.disconnect":
        pass
    await JSONResponse(None)({"type": "http"}, receive, send)


async def swallows(receive: Receive, send: Send) -> None:
    """Makes nothing of a body that is too large, for long."""
    try:
        while (await receive())["type"] != "http.disconnect":
            pass
    except Exception:
        await asyncio.sleep(2.0)
    await JSONResponse(None)({"type": "http"}, receive, send)


@pytest.mark.parametrize(("app", "body"), [(obeys, b"{}"), (swallows, b"x" * 1001)])
def test_one_request_has_one_answer(app: Any, body: bytes) -> None:
    sent: list[Message] = []
    failed: list[Exception] = []

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(receive, send)
        except Exception as error:
            failed.append(error)

    async def receive() -> Message:
        received.append(1)
        if len(received) > 1:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": body}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start" and sent:
            raise RuntimeError("a second answer")
        sent.append(message)

    received: list[int] = []
    served = SLOMiddleware(handle)
    engine = SimpleNamespace(vllm_config=SimpleNamespace(additional_config={"sloserve": {"max_body_bytes": 1000}}))
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/completions",
        "headers": [(b"x-request-ttl-ms", b"250"), (b"x-request-id", b"mine")],
        "app": SimpleNamespace(state=SimpleNamespace(engine_client=engine)),
    }
    run(served(scope, receive, send))
    assert not failed and [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert sent[0]["status"] == 429 and (b"x-request-id", b"mine") in sent[0]["headers"]
