"""The listener beside the TCP port: one application, one middleware, both ways in."""

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from sloserve.api import http3, lifecycle
from sloserve.api.middleware import SLOMiddleware
from sloserve.http3.answer_service import DEFAULT_CLASSIFY
from sloserve.http3.client_connection import connect
from sloserve.http3.client_settings import ClientSettings
from sloserve.http3.httpx_transport import H3Transport
from sloserve.scheduler.settings import PluginSettings
from sloserve.vllm_plugin.server.draining import Drain
from sloserve.wire.optional_http3 import Http3Front
from tests import bounded
from tests.http3.serving import run


async def reply(request: Request) -> JSONResponse:
    await request.body()
    return JSONResponse({"version": request.scope["http_version"]})


def arguments(port: int = 0) -> Any:
    certificates = {"ssl_certfile": None, "ssl_keyfile": None, "ssl_ca_certs": None, "ssl_cert_reqs": 0}
    return SimpleNamespace(host="127.0.0.1", port=port, enable_ssl_refresh=False, **certificates)


def settings(**http3: Any) -> PluginSettings:
    return PluginSettings.model_validate({"http3": {"enabled": True, "self_signed": True, **http3}})


@pytest.mark.slow
def test_one_application_is_served_both_ways() -> None:
    app = Starlette(routes=[Route("/v1/completions", reply, methods=["POST"])])
    app.state.engine_client = None
    built: list[SLOMiddleware] = []

    class Seen(SLOMiddleware):
        def __init__(self, inner: Any) -> None:
            super().__init__(inner)
            built.append(self)

    app.add_middleware(Seen)

    async def test() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as tcp:
            assert "alt-svc" not in (await tcp.post("/v1/completions")).headers
            (middleware,) = built
            said = await http3.start(middleware._http3, app, arguments(), settings(), DEFAULT_CLASSIFY)
            assert said is not None and "streams served by edf" in said
            port = int(said.split()[4].rstrip(","))
            told = await tcp.post("/v1/completions")
            assert told.headers["alt-svc"] == f'h3=":{port}"; ma=3600' and told.json() == {"version": "1.1"}
            transport = H3Transport(ClientSettings(ca_file=said.split()[-1]))
            async with httpx.AsyncClient(transport=transport, base_url=f"https://localhost:{port}") as quic:
                answer = await quic.post("/v1/completions", content=b"{}", headers={"x-request-id": "mine"})
                assert (answer.json(), answer.headers["x-request-id"]) == ({"version": "3"}, "mine")
                assert "alt-svc" not in answer.headers
                misspelt = await quic.post("/v1/completions", headers={"x-request-id": "\x7f"})
                assert misspelt.status_code == 400
            await middleware._http3.stop(0.0)
            assert "alt-svc" not in (await tcp.post("/v1/completions")).headers

    run(test())


@pytest.mark.slow
def test_clients_are_told_as_soon_as_the_engine_takes_no_more_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else they are told once the port on TCP is closed, which is after all requests have ended."""

    monkeypatch.setattr(lifecycle, "how_to_try", lambda *_, **__: "")

    async def test() -> None:
        app = Starlette(routes=[Route("/v1/completions", reply, methods=["POST"])])
        app.state.server = SimpleNamespace(started=True, should_exit=False, config=SimpleNamespace())
        app.state.server.config.timeout_graceful_shutdown = 1
        drain, front, shown = Drain(), Http3Front(), SimpleNamespace()
        app.state.engine_client = SimpleNamespace(
            vllm_config=shown, sloserve_front_end=SimpleNamespace(drain=drain, live=None)
        )
        shown.parallel_config = None
        shown.additional_config = {"sloserve": {"http3": {"enabled": True, "self_signed": True}}}
        app.state.args = arguments()
        await lifecycle.started(app, front, DEFAULT_CLASSIFY)
        serving: Any = front._serving
        certificate, port = serving.where.split()[-1], serving.listener.port
        client = await connect("localhost", port, ClientSettings(ca_file=certificate), settled=True)
        drain._until_s = 1e9
        drain.begins()
        await client.wait_unusable()
        told: Any = object()
        assert client.lost is None and front.advertising({"http_version": "1.1"}, told) is told
        await client.end()
        await front.stop(0.0)

    run(test())


def test_a_listener_that_cannot_be_leaves_tcp_alone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)

    async def test() -> None:
        front = Http3Front()
        said = await http3.start(front, None, arguments(), settings(), DEFAULT_CLASSIFY)
        port = int(str(said).split()[4].rstrip(","))
        assert await http3.start(Http3Front(), None, arguments(port), settings(), DEFAULT_CLASSIFY) is None
        assert await http3.start(Http3Front(), None, arguments(), PluginSettings(), DEFAULT_CLASSIFY) is None
        await front.stop(0.0)

    bounded.run(test())
    (record,) = caplog.records
    assert "HTTP/3 disabled; serving TCP only: cannot listen on 127.0.0.1 UDP port" in record.message


def test_a_server_that_stops_while_it_starts_does_not_listen_after_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once TCP answers, checks and certificates of HTTP/3 take a moment."""
    began, go = asyncio.Event(), asyncio.Event()

    async def slowly(front: Any, *_: Any) -> None:
        began.set()
        await go.wait()
        front._serving = listener

    class Stopped:
        linger_s: float | None = None

        async def stop(self, linger_s: float) -> None:
            self.linger_s = linger_s

    async def test() -> None:
        app = Starlette()
        app.state.server = SimpleNamespace(started=True, should_exit=False, config=SimpleNamespace())
        app.state.server.config.timeout_graceful_shutdown = 1
        app.state.args, app.state.engine_client = arguments(), SimpleNamespace(vllm_config=Configured())
        middleware, sent = SLOMiddleware(app), asyncio.Queue[Any]()
        for kind in ("startup", "shutdown"):
            await sent.put({"type": f"lifespan.{kind}"})
            if kind == "startup":
                serving = asyncio.create_task(middleware({"type": "lifespan", "app": app}, sent.get, nothing))
                await began.wait()
        await asyncio.sleep(0)
        go.set()
        await serving
        assert listener.linger_s is not None

    listener = Stopped()
    monkeypatch.setattr(lifecycle, "start", slowly)
    monkeypatch.setattr(lifecycle, "how_to_try", lambda *_, **__: "")
    run(test())


async def nothing(message: Any) -> None:
    pass


class Configured:
    parallel_config = None
    additional_config: dict[str, Any] = {}
