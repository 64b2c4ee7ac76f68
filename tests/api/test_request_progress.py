"""What the middleware does for a client while its request waits: a header, comments, and the route of its progress."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from sloserve.api.middleware import SLOMiddleware
from sloserve.core.clock import ManualClock
from sloserve.core.predicted import Quantiles
from sloserve.scheduler.settings import ADMIN_KEY, plugin_settings
from sloserve.wire import context
from sloserve.wire.keys import hash_of
from sloserve.wire.progress import RequestProgress
from sloserve.wire.resolve import classify_by
from tests import bounded
from tests.client.virtual_time import run
from tests.http3.serving import ask, connected, listening, read

WAITS = RequestProgress("interactive", True, 0.5, position=3, remaining=Quantiles(1.2, 3.4, 5.6))
RUNS = RequestProgress("interactive", False, 2.0)
LINE = ": slo-queue position=3 p50_ms=1200 p90_ms=3400\n\n"
TOKENS = 'data: {"choices":[{"text":"a"}]}\n\ndata: [DONE]\n\n'
ASKS: list[dict[str, Any]] = [{"headers": {"x-slo-updates": "1"}}, {"json": {"slo": {"updates": True}}}]


class Call:
    """A request of one call of the engine, which has its first token after ``first_s``."""

    standing = None

    def __init__(self) -> None:
        self.now = WAITS

    def is_waiting(self) -> bool:
        return self.now.is_waiting

    def progress(self) -> RequestProgress:
        return self.now

    def expire(self) -> int:
        return 1

    def answer_ends(self, *, begun: bool) -> None:
        pass


class Site:
    """A server whose streams have their first token after 2.5 s of virtual time.

    says_first: what a stream says before its call of the engine.
    """

    def __init__(self, section: dict[str, Any] | None = None, *, says_first: str = "", fails: bool = False) -> None:
        self.says_first, self.fails = says_first, fails
        self.asks_meanwhile: Callable[[], Any] | None = None
        routes = [Route("/v1/completions", self._serve, methods=["POST"]), Route("/v1/models", self._list)]
        self.app = Starlette(routes=routes)

        class Engine:
            errored = False

            class vllm_config:
                additional_config = {"sloserve": section or {}}

        self.app.state.engine_client = Engine
        self.app.add_middleware(SLOMiddleware, clock=ManualClock(1_000_000.0))

    async def _list(self, request: Request) -> Response:
        return JSONResponse({})

    async def _serve(self, request: Request) -> Response:
        await request.body()
        http = context.current.get()
        assert http is not None
        if not self.says_first:
            http.requests.append(Call())
            http.places.append(3)
        kind = request.headers.get("x-kind", "text/event-stream")
        return StreamingResponse(self._tokens(http), media_type=kind)

    async def _tokens(self, http: context.HTTPContext) -> AsyncIterator[str]:
        if self.says_first:
            yield self.says_first
            http.requests.append(Call())
        await asyncio.sleep(1.25)
        if self.asks_meanwhile is not None:
            await self.asks_meanwhile()
        await asyncio.sleep(1.25)
        (call,) = http.requests
        assert isinstance(call, Call)
        call.now = RUNS
        if self.fails:
            yield 'data: {"error":{"message":"no"}}\n\ndata: [DONE]\n\n'
            return
        for event in TOKENS.split("\n\n")[:-1]:
            yield f"{event}\n\n"
            await asyncio.sleep(2)

    async def ask(self, path: str = "/v1/completions", method: str = "POST", **request: Any) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://test") as client:
            return await client.request(method, path, **request)


@pytest.mark.parametrize("asks", ASKS)
@pytest.mark.parametrize("more", [{}, {"x-slo-report": "1"}])
def test_a_client_that_asks_gets_comments_before_the_first_token(asks: dict[str, Any], more: dict[str, str]) -> None:
    answer = run(Site().ask(**{**asks, "headers": {**asks.get("headers", {}), **more}}))
    assert answer.text == LINE * 2 + TOKENS
    assert answer.headers["x-slo-queue-position"] == "3"


@pytest.mark.parametrize("is_inside", [False, True])
def test_middleware_that_compresses_leaves_the_stream_as_it_is(is_inside: bool) -> None:
    """Starlette's compresses no stream of events; in one that another has compressed no comment could be read."""

    class Compressed:
        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            async def marked(message: Any) -> None:
                if message["type"] == "http.response.start":
                    message["headers"] = [*message["headers"], (b"content-encoding", b"x-own")]
                await send(message)

            await self.app(scope, receive, marked if is_inside and scope["type"] == "http" else send)

    site = Site()
    outside = [one for one in site.app.user_middleware]
    site.app.user_middleware[:] = [Middleware(GZipMiddleware, minimum_size=1), *outside, Middleware(Compressed)]
    answer = run(site.ask(headers={"x-slo-updates": "1", "accept-encoding": "gzip"}))
    assert answer.text == (TOKENS if is_inside else LINE * 2 + TOKENS)


@pytest.mark.slow
def test_comments_come_over_http_3() -> None:
    first_token = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await read(receive)
        http, call = context.current.get(), Call()
        assert http is not None
        http.requests.append(call)
        head = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await first_token.wait()
        call.now = RUNS
        await send({"type": "http.response.body", "body": TOKENS.encode()})

    async def test() -> None:
        classify = classify_by(settings.rules, settings.header_rules)
        served = SLOMiddleware(app)
        async with listening(served, classify=classify) as listener, connected(listener) as client:
            reply = ask(client, "/v1/completions", "POST", body=True, x_slo_updates="1", x_slo_ttft_ms="500")
            await reply.send(b"{}", end=True)
            await reply.head()
            came = b""
            async for part in reply.body():
                came += part
                if came.count(LINE.encode()) >= 1:
                    first_token.set()
            assert came.replace(LINE.encode(), b"") == TOKENS.encode() and came.startswith(LINE.encode())

    settings = plugin_settings(None)
    bounded.run(test())


def test_with_several_api_processes_a_client_is_told_that_another_may_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sloserve.api.middleware.api_processes", lambda engine: 3)
    answer = run(Site().ask("/sloserve/requests/a", "GET"))
    assert answer.status_code == 404 and "another of the 3 API processes" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("section", "headers"),
    [
        ({}, {}),
        ({}, {"x-slo-updates": "0"}),
        ({"waiting_comments_s": 0.0}, {"x-slo-updates": "1"}),
        ({}, {"x-slo-updates": "1", "x-request-ttl-ms": "60000"}),
        ({}, {"x-slo-updates": "1", "x-kind": "text/plain"}),
    ],
)
def test_nobody_else_gets_any(section: dict[str, Any], headers: dict[str, str]) -> None:
    answer = run(Site(section).ask(headers=headers))
    assert answer.text == TOKENS and answer.headers["x-slo-queue-position"] == "3"


def test_a_header_beats_the_body_and_the_operator_sets_the_rate() -> None:
    body = {"slo": {"updates": True}}
    assert run(Site().ask(headers={"x-slo-updates": "0"}, json=body)).text == TOKENS
    assert run(Site({"waiting_comments_s": 0.4}).ask(json=body)).text == LINE * 6 + TOKENS


def test_comments_stand_behind_what_a_stream_says_before_it_waits() -> None:
    """A stream of /v1/responses says that the response was created, and calls the engine then."""
    created = "event: response.created\ndata: {}\n\n"
    answer = run(Site(says_first=created).ask(headers={"x-slo-updates": "1"}))
    assert answer.text == created + LINE * 2 + TOKENS and "x-slo-queue-position" not in answer.headers


def test_an_error_before_the_first_token_comes_as_the_server_writes_it_into_a_stream() -> None:
    answer = run(Site(fails=True).ask(headers={"x-slo-updates": "1"}))
    assert (
        answer.status_code == 200 and answer.text == LINE * 2 + 'data: {"error":{"message":"no"}}\n\ndata: [DONE]\n\n'
    )


@pytest.mark.parametrize("given", [{"headers": {"x-slo-updates": "often"}}, {"json": {"slo": {"updates": 1}}}])
def test_another_value_is_a_fault_of_the_request(given: dict[str, Any]) -> None:
    seen: list[Any] = []

    async def handler(request: Request) -> Response:
        await request.body()
        http = context.current.get()
        assert http is not None
        seen.append(http.error)
        return JSONResponse({})

    app = Starlette(routes=[Route("/v1/completions", handler, methods=["POST"])])
    app.add_middleware(SLOMiddleware, clock=ManualClock(1_000_000.0))

    async def go() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            await client.post("/v1/completions", **given)

    bounded.run(go())
    assert "updates" in str(seen[0])


KEYS = f"tenants: {{acme: {{keys: ['{hash_of('one')}', '{hash_of('two')}']}}, small: {{keys: ['{hash_of('small')}']}}}}"


def progress(site: Site, *asked: dict[str, str], **request: Any) -> list[httpx.Response]:
    """What clients are told of a request while it waits, and the first of them once it has ended."""
    found: list[httpx.Response] = []

    async def ask(headers: dict[str, str]) -> None:
        found.append(await site.ask("/sloserve/requests/mine", "GET", headers=headers))

    async def ask_all() -> None:
        for headers in asked:
            await ask(headers)

    async def test() -> None:
        site.asks_meanwhile = ask_all
        await site.ask(**request)
        await ask(asked[0])

    run(test())
    return found


def test_the_route_says_how_far_a_request_has_come_until_it_has_ended() -> None:
    now, after = progress(Site(), {}, headers={"x-request-id": "mine"})
    assert now.status_code == 200 and now.headers["cache-control"] == "no-store"
    told = json.loads(now.text)
    assert (told["state"], told["position"], told["waited_ms"]) == ("waiting", 3, 500)
    assert told["remaining_ttft_ms"] == {"p50": 1200, "p90": 3400, "p99": 5600}
    assert after.status_code == 404 and "x-request-id" in after.json()["error"]["message"]


def test_a_key_of_the_same_tenant_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ADMIN_KEY, "admin")
    path = tmp_path / "keys.yaml"
    path.write_text(KEYS)
    shown = [{"authorization": f"Bearer {key}"} for key in ("two", "small", "wrong", "admin")]
    own = {"x-request-id": "mine", "authorization": "Bearer one"}
    answers = progress(Site({"keys": str(path)}), *shown, {}, headers=own)
    assert [one.status_code for one in answers] == [200, 404, 401, 401, 401, 404]


def test_without_keys_the_tenant_that_a_proxy_names_is_the_one_that_asks() -> None:
    own = {"x-request-id": "mine", "x-tenant-id": "acme"}
    answers = progress(
        Site(), {"x-tenant-id": "acme"}, {"x-tenant-id": "other"}, {}, {"x-tenant-id": "a" * 200}, headers=own
    )
    assert [one.status_code for one in answers] == [200, 404, 404, 400, 404]


@pytest.mark.parametrize("from_flag", [True, False])
def test_a_server_with_a_key_of_vllm_asks_for_it(monkeypatch: pytest.MonkeyPatch, from_flag: bool) -> None:
    site = Site()
    if from_flag:
        site.app.state.args = type("Args", (), {"api_key": ["secret", "second"]})
    else:
        monkeypatch.setenv("VLLM_API_KEY", "second")
    shown = [{"authorization": f"Bearer {key}"} for key in ("second", "wrong")]
    answers = progress(site, *shown, {}, headers={"x-request-id": "mine"})
    assert [one.status_code for one in answers] == [200, 401, 401, 404]
