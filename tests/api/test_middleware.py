"""The middleware around a small app: what is read, bounded, echoed and told, without vLLM."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from sloserve.api.middleware import SLOMiddleware
from sloserve.core.clock import ManualClock
from sloserve.core.errors import QueueFull
from sloserve.core.finished import Latency
from sloserve.core.outcome import Outcome
from sloserve.core.predicted import Predicted, Quantiles
from sloserve.core.served import InEngine, ServedRequest
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.scheduler.settings import ADMIN_KEY
from sloserve.wire import context
from tests import bounded

SERVED = ServedRequest(
    slo=DEFAULT_CLASSES.slo("batch", Targets(ttft_s=0.5)),
    outcome=Outcome.COMPLETED,
    latency=Latency(ttft_s=0.25, tpot_s=0.01, e2e_s=1.25),
    output_tokens=101,
    waited_s=0.125,
    in_engine=InEngine(paused_steps=3, paused_s=0.0625, preempted_s=0.25),
)
TOLD = {
    "class": "batch",
    "outcome": "completed",
    "targets": {"ttft_ms": 500.0},
    "achieved": {"ttft_ms": 250.0, "tpot_ms": 10.0, "e2e_ms": 1250.0},
    "met": {"ttft": True},
    "good": True,
    "output_tokens": 101,
    "waited_ms": 125.0,
    "evictions": 0,
    "preempted_ms": 250.0,
    "paused_ms": 62.5,
    "paused_steps": 3,
}


class Engine:
    errored = False

    class vllm_config:
        additional_config = {"sloserve": {"max_body_bytes": 1000}}


def call(
    handler: Callable[[Request], Any], *, engine: Any = Engine, method: str = "POST", **request: Any
) -> httpx.Response:
    """One request to an app that has ``handler`` at /v1/completions behind the middleware."""

    async def go() -> httpx.Response:
        app = Starlette(routes=[Route("/v1/completions", handler, methods=["POST", "GET"])])
        app.state.engine_client = engine
        app.add_middleware(SLOMiddleware, clock=ManualClock(1_000_000.0))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return await client.request(method, "/v1/completions", **request)

    return bounded.run(go())


def serves(*served: ServedRequest, answer: Callable[[], Response]) -> Callable[[Request], Any]:
    """A handler that reads the body, has the engine serve requests, and answers."""

    async def handler(request: Request) -> Response:
        await request.body()
        http = context.current.get()
        assert http is not None
        http.served.extend(served)
        return answer()

    return handler


def test_the_handler_finds_what_the_request_states() -> None:
    seen: list[Any] = []

    async def handler(request: Request) -> Response:
        assert (await request.json())["prompt"] == "Hi"
        http = context.current.get()
        assert http is not None
        task = asyncio.create_task(asyncio.to_thread(context.current.get))
        seen.extend([http, await task is http, request.headers["x-request-id"]])
        return JSONResponse({})

    body = {"prompt": "Hi", "slo": {"tds": 5}, "service_tier": "flex"}
    answer = call(handler, json=body, headers={"x-slo-ttft-ms": "500", "x-tenant-id": "acme"})
    http, same_in_tasks, request_id = seen
    assert same_in_tasks and http.arrival_s == 0.0 and http.error is None
    assert http.headers.fields["slo_ttft_ms"].value == "500" and http.headers.tenant == "acme"
    assert http.body.fields["slo_tds"].value == 5 and http.body.tier == "flex"
    assert answer.headers["x-request-id"] == request_id and len(request_id) == 32
    assert context.current.get() is None


class Task:
    """A task in progress, as the front end shows it."""

    predicted = Quantiles(4.2, 9.8, 9.8)

    def report(self, served: Iterable[ServedRequest]) -> dict[str, Any]:
        return {"calls": 2, "elapsed_ms": 812.5, "due_in_ms": -3.0, "tools_ms": 640.0, "of": len([*served])}


@pytest.mark.parametrize("lists", [1, 2])
def test_the_task_of_a_request_is_in_its_report_and_headers(lists: int) -> None:
    async def handler(request: Request) -> Response:
        await request.body()
        http = context.current.get()
        assert http is not None
        http.task = Task()
        http.served.extend([SERVED] * lists)
        return JSONResponse({"usage": {}})

    answer = call(handler, json={"prompt": "Hi"}, headers={"x-slo-task-id": "a", "x-slo-report": "1"})
    assert answer.headers["x-slo-predicted-task-ms"] == "4200;p90=9800;p99=9800"
    wanted = {**TOLD, "task": Task().report([SERVED] * lists)}
    assert answer.json()["slo"] == (wanted if lists == 1 else [wanted] * lists)


def test_the_headers_of_clients_sessions_are_read_with_keys_and_without() -> None:
    seen: list[Any] = []

    async def handler(request: Request) -> Response:
        http = context.current.get()
        assert http is not None
        seen.append((http.headers.sessions, http.headers.final))
        return JSONResponse({})

    call(handler, json={}, headers={"X-Session-ID": "s", "x-dynamo-session-final": "true", "x-other-id": "o"})
    assert seen == [({"x-session-id": "s"}, True)]


def test_body_in_parts_is_read_whole() -> None:
    async def parts() -> AsyncIterator[bytes]:
        for byte in b'{"slo": {"class": "batch"}}':
            yield bytes([byte])

    async def handler(request: Request) -> Response:
        await request.body()
        http = context.current.get()
        assert http is not None
        return JSONResponse({"read": http.body.fields["slo_class"].value})

    assert call(handler, content=parts()).json() == {"read": "batch"}


def test_request_id_is_echoed_and_a_bad_one_refused() -> None:
    async def handler(request: Request) -> Response:
        return JSONResponse({"id": request.headers["x-request-id"]}, headers={"x-request-id": "another"})

    answer = call(handler, headers={"X-Request-Id": "mine-1"})
    assert answer.json() == {"id": "mine-1"} and answer.headers.get_list("x-request-id") == ["mine-1"]
    made = call(handler, headers={"X-Request-Id": ""})
    assert len(made.json()["id"]) == 32 and made.headers.get_list("x-request-id") == [made.json()["id"]]
    refused = call(handler, headers={"X-Request-Id": "x" * 200})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "x-request-id" and "x-request-id" not in refused.headers
    too_large = call(handler, content=b"x" * 1100, headers={"X-Request-Id": "mine-2"})
    assert too_large.status_code == 413 and too_large.headers["x-request-id"] == "mine-2"


def test_of_a_header_given_twice_the_first_counts_as_in_the_server() -> None:
    async def handler(request: Request) -> Response:
        await request.body()
        http = context.current.get()
        assert http is not None
        return JSONResponse({"id": request.headers["x-request-id"], "class": http.body.fields["slo_class"].value})

    types = [("content-type", "application/json"), ("content-type", "multipart/form-data; boundary=x")]
    body = b'{"slo": {"class": "batch"}}'
    answer = call(handler, content=body, headers=[*types, ("x-request-id", "mine-1"), ("x-request-id", "mine-2")])
    assert answer.json() == {"id": "mine-1", "class": "batch"} and answer.headers["x-request-id"] == "mine-1"
    assert call(handler, headers=[("x-request-id", "x" * 200), ("x-request-id", "mine-1")]).status_code == 400


def test_what_is_wrong_with_an_slo_waits_for_a_route_that_needs_one() -> None:
    async def handler(request: Request) -> Response:
        http = context.current.get()
        assert http is not None
        return JSONResponse({"error": str(http.error)})

    answer = call(handler, method="GET", headers={"x-slo-tffts-ms": "5"})
    assert answer.status_code == 200 and answer.json()["error"].startswith("x-slo-tffts-ms: '5' is not a known")


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("swallows", [True, False])
def test_body_beyond_the_limit_is_a_413(declared: bool, swallows: bool) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(11):
            yield b"x" * 100

    async def handler(request: Request) -> Response:
        try:
            await request.body()
        except Exception:
            if not swallows:
                raise
        return JSONResponse({"not": "seen"})

    answer = call(handler, content=b"x" * 1100 if declared else parts())
    assert answer.status_code == 413
    assert answer.json()["error"]["message"] == "request body: more than 1000 bytes; send less"
    assert call(serves(answer=lambda: JSONResponse({})), content=b"x" * 1000).status_code == 200


def test_rejection_gets_its_headers() -> None:
    async def handler(request: Request) -> Response:
        http = context.current.get()
        assert http is not None
        http.rejection = QueueFull("full", 3, "batch")
        return JSONResponse({}, 429)

    answer = call(handler)
    assert (answer.headers["retry-after"], answer.headers["x-slo-dropped-reason"]) == ("3", "rejected-saturated")


@pytest.mark.parametrize("headers", [{}, {"x-slo-report": "1"}])
def test_predictions_are_told_in_headers(headers: dict[str, str]) -> None:
    async def handler(request: Request) -> Response:
        http = context.current.get()
        assert http is not None
        http.predicted += [
            Predicted(Quantiles(0.12, 0.48, 0.48), Quantiles(1.0, 2.0, 2.0)),
            Predicted(Quantiles(0.2, 0.3, 0.3), None),
        ]
        return JSONResponse({})

    answer = call(handler, headers=headers)
    assert answer.headers["x-slo-predicted-ttft-ms"] == "200;p90=480;p99=480"
    assert answer.headers["x-slo-predicted-e2e-ms"] == "1000;p90=2000;p99=2000"


@pytest.mark.parametrize("asks", [{"headers": {"x-slo-report": "1"}}, {"json": {"slo": {"report": True}}}])
def test_report_in_a_body(asks: dict[str, Any]) -> None:
    handler = serves(SERVED, answer=lambda: JSONResponse({"usage": {"total_tokens": 3}, "text": "é"}))
    answer = call(handler, **asks)
    assert answer.json() == {"usage": {"total_tokens": 3}, "text": "é", "slo": TOLD}
    several = call(serves(SERVED, SERVED, answer=lambda: JSONResponse({})), **asks)
    assert several.json()["slo"] == [TOLD, TOLD]


def test_no_report_unless_asked_for_and_none_where_nothing_was_served() -> None:
    assert call(serves(SERVED, answer=lambda: JSONResponse({"a": 1}))).json() == {"a": 1}
    asks = {"x-slo-report": "1"}
    assert call(serves(answer=lambda: JSONResponse({"a": 1})), headers=asks).json() == {"a": 1}
    assert call(serves(SERVED, answer=lambda: Response(b"\x00", media_type="audio/wav")), headers=asks).content == b"\0"
    assert call(serves(SERVED, answer=lambda: JSONResponse([1])), headers=asks).json() == [1]


def events(*payloads: str) -> list[str]:
    return [f"{payload}\n\n" for payload in payloads]


CHUNK = '{"id":"c1","object":"text_completion","created":1,"model":"m","choices":[{"text":"data: [DONE] \\"usage\\""}]}'
USAGE = '{"id":"c1","choices":[],"usage":{"total_tokens":3}}'


@pytest.mark.parametrize("size", [None, 1, 7])
@pytest.mark.parametrize(
    ("sent", "index", "where"),
    [
        (events(": keep-alive", f"data: {CHUNK}", f"data: {USAGE}", "data: [DONE]"), 2, []),
        (events(f"data: {CHUNK}", "data: [DONE]"), 1, []),
        (
            events(
                'event: response.created\ndata: {"type":"response.created"}',
                'event: response.completed\ndata: {"type":"response.completed","response":{"usage":{}}}',
            ),
            1,
            ["response"],
        ),
        (
            events('event: response.incomplete\ndata: {"type":"response.incomplete","response":{"usage":{}}}'),
            0,
            ["response"],
        ),
        (
            events(
                'event: message_delta\ndata: {"type":"message_delta","usage":{"output_tokens":3}}',
                'event: message_stop\ndata: {"type":"message_stop"}',
            ),
            0,
            [],
        ),
    ],
)
def test_report_in_a_stream(sent: list[str], index: int, where: list[str], size: int | None) -> None:
    whole = "".join(sent)
    parts = sent if size is None else [whole[i : i + size] for i in range(0, len(whole), size)]

    async def stream() -> AsyncIterator[str]:
        for part in parts:
            yield part

    handler = serves(SERVED, answer=lambda: StreamingResponse(stream(), media_type="text/event-stream"))
    assert call(handler).text == whole
    told = call(handler, headers={"x-slo-report": "1"}).text.split("\n\n")
    assert told[-1] == "" and len([e for e in told if '"slo"' in e]) == 1
    chunk = json.loads(told[index].split("data: ", 1)[1])
    for key in where:
        chunk = chunk[key]
    assert chunk["slo"] == TOLD
    if len(sent) == len(told) - 1:  # changed in place
        untouched = [e for i, e in enumerate(told[:-1]) if i != index]
        assert untouched == [e.removesuffix("\n\n") for i, e in enumerate(sent) if i != index]
    else:
        assert (chunk["choices"], chunk["id"], chunk["model"]) == ([], "c1", "m")
        assert told[-2] == "data: [DONE]"


def test_without_a_key_there_are_no_admin_routes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ADMIN_KEY, raising=False)
    seen = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["path"])

    async def nothing(*_: Any) -> Any:
        return {"type": "http.request"}

    scope = {"type": "http", "path": "/sloserve/policy", "headers": [], "method": "PUT"}
    bounded.run(SLOMiddleware(inner)(scope, nothing, nothing))
    assert seen == ["/sloserve/policy"]


@pytest.mark.parametrize("wants_report", [False, True])
def test_the_tier_that_was_served_stands_in_the_answer(wants_report: bool) -> None:
    def answers(make: Callable[[], Response]) -> Callable[[Request], Any]:
        async def handler(request: Request) -> Response:
            http = context.current.get()
            assert http is not None
            http.tier = "flex"
            http.served.append(SERVED)
            return make()

        return handler

    headers = {"x-slo-report": "1"} if wants_report else {}
    whole = call(answers(lambda: JSONResponse({"object": "chat.completion", "service_tier": None})), headers=headers)
    assert whole.json()["service_tier"] == "flex" and ("slo" in whole.json()) is wants_report
    other = call(answers(lambda: JSONResponse({"type": "message", "role": "assistant"})), headers=headers)
    assert "service_tier" not in other.json()

    async def events() -> AsyncIterator[bytes]:
        yield b'data: {"id":"1","choices":[{"delta":{"content":"\\"choices\\":["}}]}\n\ndata: {"id":'
        yield b'"1","choices":[],"usage":{"total_tokens":3}}\n\n: still here\n\ndata: {"error":"x"}\n\ndata: [DONE]\n\n'

    streamed = call(answers(lambda: StreamingResponse(events(), media_type="text/event-stream")), headers=headers)
    data = [line.removeprefix("data: ") for line in streamed.text.splitlines() if line.startswith("data: {")]
    first, last, error = map(json.loads, data)
    assert first == {"service_tier": "flex", "id": "1", "choices": [{"delta": {"content": '"choices":['}}]}
    assert last["service_tier"] == "flex" and ("slo" in last) is wants_report and error == {"error": "x"}
    assert ": still here\n\n" in streamed.text and streamed.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("wants_report", [False, True])
def test_an_answer_is_the_same_however_its_stream_is_cut(wants_report: bool) -> None:
    begin = 'data: {"id":"c1","object":"text_completion","created":1,"model":"m","choices":['
    texts = [f'{begin}{{"index":0,"text":"word {i}"}}]}}' for i in range(4)]
    sent = events(
        *texts,
        texts[0] + "\n\n" + texts[1],
        'data: {"id":"c1","error":"x"}',
        ": still here",
        begin + '],"usage":{"total_tokens":3}}',
        texts[2],
    )
    whole = "".join([*sent, "data: [DONE]\n\n"])

    def answer(parts: list[str]) -> str:
        async def stream() -> AsyncIterator[str]:
            for part in parts:
                yield part

        async def handler(request: Request) -> Response:
            http = context.current.get()
            assert http is not None
            http.tier = "flex"
            http.served.append(SERVED)
            return StreamingResponse(stream(), media_type="text/event-stream")

        return call(handler, headers={"x-slo-report": "1"} if wants_report else {}).text

    cut = answer([whole[i : i + 7] for i in range(0, len(whole), 7)])
    assert cut == answer([*sent, "data: [DONE]\n\n"]) == answer([whole])
    assert cut.count('data: {"service_tier":"flex","id"') == 8 and cut.count('"slo"') == wants_report


class Standing:
    """A request of the engine that is complete unless it makes a further call."""

    standing = SERVED

    def __init__(self) -> None:
        self.ends: list[bool] = []

    def is_waiting(self) -> bool:
        return False

    def expire(self) -> int:
        return 1

    def answer_ends(self, *, begun: bool) -> None:
        self.ends.append(begun)


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_is_over_once_before_its_answer_is_and_reported_as_it_stands(stream: bool) -> None:
    request = Standing()

    async def parts() -> AsyncIterator[str]:
        yield 'data: {"id":"1","choices":[],"usage":{"total_tokens":3}}\n\n'
        assert request.ends == []
        yield "data: [DONE]\n\n"

    async def handler(_: Request) -> Response:
        http = context.current.get()
        assert http is not None
        http.requests.append(request)
        return StreamingResponse(parts(), media_type="text/event-stream") if stream else JSONResponse({"id": "1"})

    text = call(handler, headers={"x-slo-report": "1"}).text
    assert request.ends == [True]
    answer = text.splitlines()[0].removeprefix("data: ")
    assert json.loads(answer)["slo"] == TOLD


def test_a_request_is_over_where_its_handler_fails_before_any_answer() -> None:
    request = Standing()

    async def handler(_: Request) -> Response:
        http = context.current.get()
        assert http is not None
        http.requests.append(request)
        raise asyncio.CancelledError

    async def go() -> None:
        sent: list[Any] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await handler(Request(scope))

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "path": "/v1/x", "headers": [], "method": "GET", "http_version": "3"}
        with pytest.raises(asyncio.CancelledError):
            await SLOMiddleware(app)(scope, receive, send)
        assert sent == []

    bounded.run(go())
    assert request.ends == [False]


def stack(origins: list[str], *, between: bool, root_path: str = "") -> Any:
    """An app with middleware as vLLM's: CORS innermost, another one around it where ``between``, ours outermost."""

    class Between:
        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await self.app(scope, receive, send)

    async def answer(request: Request) -> Response:
        await request.body()
        return JSONResponse({})

    class Rooted(Starlette):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await super().__call__({**scope, "root_path": root_path}, receive, send)  # as FastAPI does

    app = Rooted(routes=[Route("/v1/completions", answer, methods=["POST"])])
    app.state.engine_client = Engine
    app.add_middleware(CORSMiddleware, allow_origins=origins, expose_headers=["x-theirs"])
    if between:
        app.add_middleware(Between)
    app.add_middleware(SLOMiddleware)
    return app


REQUESTS: dict[str, tuple[str, str, dict[str, Any], int]] = {
    "served": ("POST", "/v1/completions", {"json": {}}, 200),
    "too large": ("POST", "/v1/completions", {"content": b" " * 1001}, 413),
    "bad id": ("POST", "/v1/completions", {"json": {}, "headers": {"x-request-id": "x" * 300}}, 400),
    "ready": ("GET", "/ready", {}, 200),
    "not found": ("GET", "/no", {}, 404),
}


@pytest.mark.parametrize("between", [False, True])
@pytest.mark.parametrize("request_", REQUESTS)
def test_every_answer_may_be_read_by_a_page_of_an_allowed_origin(request_: str, between: bool) -> None:
    method, path, more, status = REQUESTS[request_]
    headers, more = more.get("headers", {}), {name: value for name, value in more.items() if name != "headers"}
    app = stack(["https://chat.example"], between=between)

    async def ask(origin: str) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return await client.request(method, path, headers={**headers, "origin": origin}, **more)

    answer = bounded.run(ask("https://chat.example"))
    assert answer.status_code == status
    assert answer.headers.get_list("access-control-allow-origin") == ["https://chat.example"]
    exposed = answer.headers["access-control-expose-headers"].split(", ")
    assert {"x-theirs", "retry-after", "x-request-id", "x-slo-dropped-reason"} <= set(exposed)
    assert "access-control-allow-origin" not in bounded.run(ask("https://other.example")).headers


def test_a_page_of_another_origin_may_not_read_admin_routes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ADMIN_KEY, "secret")
    with TestClient(stack(["*"], between=True)) as client:
        answer = client.get("/sloserve/status", headers={"origin": "https://chat.example"})
    assert answer.status_code == 401 and "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("root_path", ["", "/slo", "/re", "/v1", "/api/"])
def test_a_root_path_that_is_the_begin_of_a_path_of_ours_hides_none(
    root_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ADMIN_KEY, "secret")
    with TestClient(stack([], between=False, root_path=root_path)) as client:
        root = root_path.rstrip("/")
        assert [client.get(f"{at}/ready").status_code for at in ("", root)] == [200, 200]
        assert [client.get(f"{at}/sloserve/status").status_code for at in ("", root)] == [401, 401]
