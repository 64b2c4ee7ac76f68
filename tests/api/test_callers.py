"""Keys and trusted proxies in front of a small app: whose a request is, and what it may reach."""

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.websockets import WebSocket

from sloserve.api import callers
from sloserve.api.callers import Callers
from sloserve.api.middleware import SLOMiddleware
from sloserve.core.clock import ManualClock
from sloserve.core.errors import ConfigError
from sloserve.core.slo import DEFAULT_CLASSES
from sloserve.scheduler.server_keys import read_server_keys
from sloserve.scheduler.settings import ADMIN_KEY, plugin_settings
from sloserve.vllm_plugin.server.stated import warn_operator
from sloserve.wire import context
from sloserve.wire.keys import LOOK_S, hash_of
from tests import bounded

KEYS = f"""
tenants:
  acme: {{keys: ['{hash_of("one")}', '{hash_of("two")}'], class: batch, models: [chat]}}
  small: {{keys: ['{hash_of("small")}'], quota: {{requests: 1}}}}
  monitoring: {{keys: ['{hash_of("m")}'], models: [], metrics: true}}
"""
NAMES = [("x-tenant-id", "other"), ("x-llm-d-inference-fairness-id", "third")]


class Site:
    """An app with many routes behind the middleware, which says what it sees of a request."""

    def __init__(self, section: dict[str, Any], peer: str = "127.0.0.1") -> None:
        self.clock, self.peer = ManualClock(1000.0), peer
        self.seen: list[Any] = []
        self.waiting: Any = None
        paths = ("/v1/{a:path}", "/v2/{a:path}", "/score", "/tokenize", "/invocations", "/health", "/ping", "/version",
                 "/load", "/sleep", "/pause", "/docs", "/collective_rpc", "/inference/v1/{a:path}")  # fmt: skip
        routes = [Route(path, self._route, methods=["GET", "POST"]) for path in paths]
        self.app = Starlette(routes=[*routes, Mount("/metrics", routes=[Route("/", self._route)])])
        self.app.router.routes.append(WebSocketRoute("/v1/realtime", self._socket))
        self.app.state.engine_client = SimpleNamespace(
            errored=False, vllm_config=SimpleNamespace(additional_config={"sloserve": section})
        )
        self.app.add_middleware(SLOMiddleware, clock=self.clock)

    async def _route(self, request: Request) -> JSONResponse:
        await request.body()
        http, tenant = context.current.get(), context.key_tenant.get()
        assert http is not None
        named = [name for name, _ in NAMES if name in request.headers]
        self.seen.append((http.headers.tenant, http.slo_class, None if tenant is None else tenant.name, named))
        if self.waiting is not None:
            await self.waiting()
        return JSONResponse({})

    async def _socket(self, socket: WebSocket) -> None:
        await socket.accept()
        tenant = context.key_tenant.get()
        await socket.send_text("none" if tenant is None else tenant.name)
        await socket.close()

    def ask(self, path: str = "/v1/completions", key: str | None = None, **request: Any) -> httpx.Response:
        async def go() -> httpx.Response:
            return await self.asked(path, key, **request)

        return bounded.run(go())

    async def asked(self, path: str, key: str | None = None, **request: Any) -> httpx.Response:
        headers = [*request.pop("headers", []), *([] if key is None else [("authorization", f"Bearer {key}")])]
        transport = httpx.ASGITransport(self.app, client=(self.peer, 1234))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(request.pop("method", "POST"), path, headers=headers, **request)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys.yaml"
    path.write_text(KEYS)
    return path


@pytest.fixture
def site(keys: Path) -> Site:
    return Site({"keys": str(keys)})


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    warn_operator.cache_clear()
    caplog.set_level(logging.WARNING)
    yield lambda: [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    warn_operator.cache_clear()


def test_the_key_alone_decides_whose_a_request_is(site: Site) -> None:
    assert site.ask(key="one", headers=NAMES).status_code == 200, "two names that contradict each other do not count"
    assert site.ask(headers=[*NAMES, ("x-api-key", "two")]).status_code == 200
    assert site.ask(key="small", json={"vllm_xargs": {"sloserve_tenant": "acme"}}).status_code == 200
    assert site.seen == [("acme", "batch", "acme", [])] * 2 + [("small", None, "small", [])]


@pytest.mark.parametrize("shown", [[], [("authorization", "Bearer wrong")], [("authorization", "Basic one")],
                                   [("authorization", "one")], [("x-api-key", "")], [("x-api-key", "on")],
                                   [("authorization", f"Bearer {hash_of('one')}")]])  # fmt: skip
@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/score", "/sleep", "/metrics", "/no-such-route", "/v1/models"]
)
def test_without_a_known_key_no_byte_of_a_body_is_read(site: Site, path: str, shown: list[tuple[str, str]]) -> None:
    async def go() -> list[Any]:
        sent: list[Any] = []

        async def receive() -> Any:
            raise AssertionError("nothing is received before the key is known")

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(name.encode(), value.encode()) for name, value in shown]
        scope = {"type": "http", "http_version": "1.1", "method": "POST", "path": path, "raw_path": path.encode(),
                 "query_string": b"", "root_path": "", "scheme": "http", "headers": headers, "client": ("10.0.0.1", 1),
                 "server": ("test", 80)}  # fmt: skip
        await site.app(scope, receive, send)
        return sent

    start, end = bounded.run(go())
    headers = dict(start["headers"])
    assert start["status"] == 401 and headers[b"www-authenticate"] == b"Bearer" and headers[b"connection"] == b"close"
    assert b"no key of this server is shown" in end["body"] and site.seen == []


@pytest.mark.slow
def test_errors_have_the_form_of_their_route(site: Site) -> None:
    openai, anthropic = site.ask("/v1/completions").json(), site.ask("/v1/messages").json()
    assert openai["error"]["code"] == 401 and openai["error"]["type"] == "Unauthorized"
    assert anthropic["type"] == "error" and anthropic["error"]["type"] == "authentication_error"
    assert site.ask("/v1/messages", key="one", content=b"x" * (40 << 20)).json()["error"]["type"] == "request_too_large"


@pytest.mark.parametrize("path", sorted(callers.OPEN | {"/ready"}))
def test_routes_that_say_whether_the_server_lives_need_no_key(site: Site, path: str) -> None:
    assert site.ask(path, method="GET").status_code == 200


@pytest.mark.parametrize(
    ("path", "acme", "monitoring", "admin"),
    [
        ("/v1/completions", 200, 200, 401),
        ("/inference/v1/generate", 200, 200, 401),
        ("/tokenize", 200, 200, 401),
        ("/metrics/", 403, 200, 200),
        ("/load", 403, 200, 200),
        ("/sleep", 403, 403, 200),
        ("/collective_rpc", 403, 403, 200),
        ("/docs", 403, 403, 200),
        ("/v1/load_lora_adapter", 403, 403, 200),
        ("/inference/v1/abort_requests", 403, 403, 200),
        # Starlette's router takes these for the routes without a line feed.
        ("/v1/load_lora_adapter%0A", 403, 403, 200),
        ("/inference/v1/abort_requests%0A", 403, 403, 200),
        ("/v1x", 403, 403, 404),
    ],
)
def test_a_tenant_reaches_routes_of_clients_and_the_admin_key_the_others(
    monkeypatch: pytest.MonkeyPatch, keys: Path, path: str, acme: int, monitoring: int, admin: int
) -> None:
    monkeypatch.setenv(ADMIN_KEY, "root-key")
    site = Site({"keys": str(keys)})
    found = [site.ask(path, key=key, method="GET").status_code for key in ("one", "m", "root-key")]
    assert found == [acme, monitoring, admin]


def test_without_an_admin_key_nobody_reaches_routes_of_operators(site: Site) -> None:
    assert [site.ask("/sleep", key=key).status_code for key in ("one", "m", "")] == [403, 403, 401]


def test_a_preflight_is_answered_before_key_and_body(site: Site) -> None:
    """A browser sends neither with it: a page of another origin could never have used a server with keys."""
    page = "https://chat.example"
    cors = Middleware(CORSMiddleware, allow_origins=[page], allow_methods=["*"], allow_headers=["*"])
    site.app.user_middleware.append(cors)  # innermost, where vLLM has it
    asked = [("origin", page), ("access-control-request-method", "POST")]
    asked.append(("access-control-request-headers", "authorization"))
    answer = site.ask(method="OPTIONS", headers=asked)
    assert answer.status_code == 200 and answer.headers["access-control-allow-headers"] == "authorization"
    assert site.ask(method="OPTIONS", headers=[("origin", page)]).status_code == 401, "no preflight: it needs a key"
    refused = site.ask(headers=[("origin", page)])
    assert refused.status_code == 401 and refused.headers["access-control-allow-origin"] == page
    assert not site.seen


def test_a_changed_file_counts_within_the_look_interval_and_a_faulty_one_does_not(keys: Path, site: Site) -> None:
    def write(text: str) -> None:
        keys.write_text(text)
        os.utime(keys, ns=(0, int(site.clock.now_s() * 1e9)))
        site.clock.advance_to(site.clock.now_s() + LOOK_S)

    assert site.ask(key="one").status_code == 200
    write(KEYS.replace(hash_of("one"), hash_of("new")))
    assert [site.ask(key=key).status_code for key in ("one", "new")] == [401, 200]
    write("tenants: [")
    assert [site.ask(key=key).status_code for key in ("one", "new")] == [401, 200]
    keys.unlink()
    site.clock.advance_to(site.clock.now_s() + LOOK_S)
    assert [site.ask(key=key).status_code for key in ("one", "new")] == [401, 200]


def test_a_server_whose_file_has_a_fault_does_not_start(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text("tenants: {a: {keys: [sk-secret]}}")
    settings = plugin_settings({"sloserve": {"keys": str(path)}})
    with pytest.raises(ConfigError, match="is not sha256: and 64 hexadecimal digits; `sloserve key` makes both"):
        Callers(settings, ManualClock())

    async def start() -> list[Any]:
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "lifespan.startup"}

        async def send(message: Any) -> None:
            sent.append(message["type"])

        with pytest.raises(ConfigError):
            await Site({"keys": str(path)}).app({"type": "lifespan", "asgi": {"version": "3.0"}}, receive, send)
        return sent

    assert bounded.run(start()) == ["lifespan.startup.failed"]


def test_requests_in_progress_are_limited_by_tenant(site: Site) -> None:
    async def go() -> None:
        answers: list[httpx.Response] = []

        async def waiting() -> None:
            site.waiting = None
            answers.append(await site.asked("/v1/completions", "small"))
            answers.append(await site.asked("/v1/completions", "one"))

        site.waiting = waiting
        assert (await site.asked("/v1/completions", "small")).status_code == 200
        refused, other = answers
        assert (refused.status_code, refused.headers["retry-after"], other.status_code) == (429, "1", 200)
        assert refused.json()["error"]["message"].startswith("1 of 1 requests of yours are in progress")
        assert (await site.asked("/v1/completions", "small")).status_code == 200

    bounded.run(go())


@pytest.mark.parametrize(("key", "says"), [("one", "acme"), (None, None), ("wrong", None)])
def test_a_websocket_needs_a_key(site: Site, key: str | None, says: str | None) -> None:
    async def go() -> list[Any]:
        sent: list[Any] = []
        received = iter([{"type": "websocket.connect"}, {"type": "websocket.disconnect", "code": 1000}])

        async def receive() -> Any:
            return next(received)

        async def send(message: Any) -> None:
            sent.append(message)

        shown = [] if key is None else [(b"authorization", f"Bearer {key}".encode())]
        scope = {"type": "websocket", "path": "/v1/realtime", "headers": shown, "client": ("10.0.0.1", 1),
                 "query_string": b"", "extensions": {"websocket.http.response": {}}, "subprotocols": []}  # fmt: skip
        await site.app(scope, receive, send)
        return sent

    sent = bounded.run(go())
    if says is None:
        assert sent[0]["type"] == "websocket.http.response.start" and sent[0]["status"] == 401
    else:
        assert [m.get("text") for m in sent if m["type"] == "websocket.send"] == [says]


def test_http3_knows_the_tenant_by_the_same_key(keys: Path) -> None:
    found = Callers(plugin_settings({"sloserve": {"keys": str(keys)}}), ManualClock())
    stated = [(b"x-tenant-id", b"small"), (b"x-slo-class", b"priority")]
    slo, tenant = found.classify([*stated, (b"authorization", b"Bearer one")], ("10.0.0.1", 1))
    assert (slo.slo_class.name, tenant) == ("batch", "acme")
    slo, tenant = found.classify(stated, ("10.0.0.1", 1))
    assert (slo.slo_class.name, tenant) == ("interactive", None), "it is refused: it may not be sent first"


@pytest.mark.parametrize("promises", ["any", "gateway"])
@pytest.mark.parametrize(
    ("peer", "trusted", "counts"),
    [
        ("127.0.0.1", None, True),
        ("10.0.0.1", None, False),
        ("10.0.0.1", ["10.0.0.0/8"], True),
        ("10.0.0.1", "*", True),
        ("10.0.0.1", "127.0.0.1, 10.0.0.1", True),
        ("127.0.0.1", [], False),
    ],
)
def test_without_keys_a_header_counts_from_trusted_proxies_alone(
    warnings: Callable[[], list[str]], peer: str, trusted: Any, counts: bool, promises: str
) -> None:
    section = {} if trusted is None else {"trusted_proxies": trusted}
    section["admission"] = {"promises": promises}
    site = Site(section, peer)
    for _ in range(2):
        assert site.ask(headers=NAMES[:1]).status_code == 200
    assert site.seen == [("other" if counts else None, None, None, ["x-tenant-id"])] * 2
    settings = plugin_settings({"sloserve": section})
    assert Callers(settings, ManualClock()).classify([(b"x-tenant-id", b"other")], (peer, 1))[1] == (
        "other" if counts else None
    )
    rules = (
        Callers(settings, ManualClock())
        .caller({"type": "http", "path": "/v1/completions", "headers": [], "client": (peer, 1)})
        .rules
    )
    assert rules.trusts_proxy is counts
    assert rules.trusts_gateway is (counts and promises == "gateway"), "other proxies pass on what clients state"
    said = [line for line in warnings() if "trusted_proxies" in line]
    assert len(said) == (0 if counts else 1)
    if not counts:
        assert f"a header (x-tenant-id) from {peer} names a tenant and is ignored" in said[0]


def test_without_keys_every_route_is_open(warnings: Callable[[], list[str]]) -> None:
    site = Site({}, "10.0.0.1")
    assert [site.ask(path).status_code for path in ("/v1/completions", "/sleep", "/score")] == [200] * 3
    assert warnings() == [] and site.seen[0] == (None, None, None, [])


def test_the_example_is_a_file_of_keys() -> None:
    example = Path(__file__).parents[2] / "configs" / "keys-server.yaml"
    found = {tenant.name: tenant for tenant in read_server_keys(example, DEFAULT_CLASSES)}
    assert found["acme"].slo_class == "interactive" and found["acme"].quota.requests == 64
    assert found["monitoring"].metrics and not found["monitoring"].may_use("chat")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trusted", "counts"), [(["127.0.0.1"], True), (["203.0.113.9"], False), (["203.0.113.0/24", "::1"], False)]
)
def test_a_client_cannot_state_the_address_of_a_trusted_proxy(trusted: list[str], counts: bool) -> None:
    """Uvicorn believes what this machine says in X-Forwarded-For, and sets the client's address to that."""
    site = Site({"trusted_proxies": trusted})

    async def go() -> None:
        config = uvicorn.Config(site.app, port=0, log_level="critical", lifespan="on", timeout_graceful_shutdown=1)
        config.load()
        server = uvicorn.Server(config)
        site.app.state.server = server  # as vLLM's launcher does
        serving = asyncio.create_task(server.serve())
        try:
            await bounded.until(lambda: server.started)
            port = server.servers[0].sockets[0].getsockname()[1]
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
                stated = {"x-forwarded-for": "203.0.113.9", "x-tenant-id": "acme"}
                assert (await client.post("/v1/completions", headers=stated)).status_code == 200
        finally:
            server.should_exit = True
            await serving

    bounded.run(go())
    assert site.seen[0][0] == ("acme" if counts else None)
