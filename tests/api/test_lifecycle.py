"""``/ready``, refusals while stopping, and what is printed and bounded at start, around a small app without vLLM."""

import asyncio
import shlex
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from sloserve.api.lifecycle import LINGER_S, how_to_try
from sloserve.api.middleware import SLOMiddleware
from sloserve.core.errors import ShuttingDown
from sloserve.wire import context
from tests import bounded


class Drain:
    stopping = False

    def on_begin(self, call: Any) -> None:
        pass

    def check_open(self) -> None:
        if self.stopping:
            raise ShuttingDown("the server is shutting down and accepts no more requests; retry in 7 s", 7)


class FrontEnd:
    def __init__(self) -> None:
        self.drain, self.stopped = Drain(), 0
        self.core_check, self.hanging = self, False
        self.live = None

    async def hangs(self, ask: Any) -> bool:
        return self.hanging

    def count_stopped(self) -> None:
        self.stopped += 1


class Engine:
    errored = False
    vllm_config = SimpleNamespace(additional_config={"sloserve": {}}, parallel_config=SimpleNamespace())

    def __init__(self) -> None:
        self.sloserve_front_end = FrontEnd()


def arguments(**given: Any) -> Any:
    stock = {"host": "127.0.0.1", "port": 8000, "uds": None, "ssl_certfile": None, "api_key": None, "model": "m"}
    return SimpleNamespace(**{**stock, "served_model_name": None, **given})


@pytest.fixture
def app() -> Starlette:
    async def reply(request: Request) -> JSONResponse:
        await request.body()
        return JSONResponse({})

    made = Starlette(routes=[Route("/v1/completions", reply, methods=["POST"]), Route("/health", reply)])
    made.state.engine_client = Engine()
    made.add_middleware(SLOMiddleware)
    return made


def call(app: Starlette, *requests: tuple[str, str]) -> list[httpx.Response]:
    async def go() -> list[httpx.Response]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return [await client.request(method, path) for method, path in requests]

    return bounded.run(go())


def test_ready_follows_the_engine(app: Starlette) -> None:
    engine = app.state.engine_client
    engine.sloserve_front_end.hanging = True
    (hangs,) = call(app, ("GET", "/ready"))
    assert (hangs.status_code, hangs.json()["status"]) == (503, "hangs")
    engine.sloserve_front_end.hanging = False
    engine.sloserve_weights_unsure = "the reload failed"
    (unsure,) = call(app, ("GET", "/ready"))
    assert (unsure.status_code, unsure.json()["status"]) == (503, "reload-failed")
    del engine.sloserve_weights_unsure
    found = []
    for engine.errored, engine.sloserve_front_end.drain.stopping in ((False, False), (True, False), (True, True)):
        found += [(a.status_code, a.json()["status"]) for a in call(app, ("GET", "/ready"))]
    assert found == [(200, "ready"), (503, "failed"), (503, "stopping")]


def test_while_stopping_new_work_is_refused_and_the_rest_is_served(app: Starlette) -> None:
    app.state.engine_client.sloserve_front_end.drain.stopping = True
    refused, alive = call(app, ("POST", "/v1/completions"), ("GET", "/health"))
    check_refused(refused)
    assert alive.status_code == 200
    call(app, ("GET", "/ready"))
    assert app.state.engine_client.sloserve_front_end.stopped == 1


def check_refused(answer: httpx.Response) -> None:
    assert answer.headers["x-request-id"]
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "7")
    assert answer.json()["error"] == {
        "message": "the server is shutting down and accepts no more requests; retry in 7 s",
        "type": "Service Unavailable",
        "param": None,
        "code": 503,
    }


def test_a_request_that_the_stop_overtakes_is_refused_rather_than_failed(app: Starlette) -> None:
    async def failing(request: Request) -> JSONResponse:
        app.state.engine_client.sloserve_front_end.drain.stopping = True
        return JSONResponse({"error": {"message": "cannot schedule new futures after shutdown"}}, 500)

    app.router.routes.append(Route("/failing", failing, methods=["POST"]))
    check_refused(*call(app, ("POST", "/failing")))
    assert app.state.engine_client.sloserve_front_end.stopped == 1


@pytest.mark.parametrize("version", ["1.1", "3"])
@pytest.mark.parametrize("stopping", [True, False])
def test_who_still_sends_when_the_server_waits_no_longer_is_refused(
    app: Starlette, stopping: bool, version: str
) -> None:
    """The answer was 500, with a traceback in the log for each."""
    sent: list[Any] = []
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": [], "http_version": version}

    async def test() -> None:
        reading = asyncio.Event()

        async def receive() -> Any:
            reading.set()
            await asyncio.Event().wait()

        async def send(message: Any) -> None:
            sent.append(message)

        task = asyncio.create_task(app({**scope, "query_string": b""}, receive, send))
        await reading.wait()
        app.state.engine_client.sloserve_front_end.drain.stopping = stopping
        task.cancel()
        await task

    if stopping and version == "1.1":
        bounded.run(test())
        assert sent[0]["status"] == 503 and (b"retry-after", b"7") in sent[0]["headers"]
    else:
        with pytest.raises(asyncio.CancelledError):
            bounded.run(test())
        assert not sent


def test_a_request_that_the_engine_accepted_is_not_counted_as_refused(app: Starlette) -> None:
    async def failing(request: Request) -> JSONResponse:
        http = context.current.get()
        assert http is not None
        http.requests.append(SimpleNamespace(standing=None, answer_ends=lambda begun: None))  # type: ignore[arg-type]
        app.state.engine_client.sloserve_front_end.drain.stopping = True
        return JSONResponse({}, 500)

    app.router.routes.append(Route("/failing", failing, methods=["POST"]))
    check_refused(*call(app, ("POST", "/failing")))
    assert app.state.engine_client.sloserve_front_end.stopped == 0


def begin(app: Starlette, rank: int = 0) -> Any:
    """Starts ``app`` as uvicorn does; its server listens a moment after the app has started."""
    app.state.server = SimpleNamespace(
        config=SimpleNamespace(timeout_graceful_shutdown=None), started=False, should_exit=False
    )
    app.state.args = arguments()
    app.state.engine_client.vllm_config.parallel_config._api_process_rank = rank

    async def go() -> None:
        incoming: asyncio.Queue[Any] = asyncio.Queue()
        outgoing: asyncio.Queue[Any] = asyncio.Queue()
        await incoming.put({"type": "lifespan.startup"})
        serving = asyncio.create_task(app({"type": "lifespan", "asgi": {}}, incoming.get, outgoing.put))
        assert (await outgoing.get())["type"] == "lifespan.startup.complete"
        app.state.server.started = True
        others = asyncio.all_tasks() - {asyncio.current_task(), serving}
        await asyncio.gather(*others)
        await incoming.put({"type": "lifespan.shutdown"})
        await serving

    bounded.run(go())
    return app.state.server


def test_at_start_a_command_is_printed_once_and_the_end_is_bounded(
    app: Starlette, capsys: pytest.CaptureFixture[str]
) -> None:
    assert begin(app).config.timeout_graceful_shutdown == LINGER_S
    assert capsys.readouterr().out == how_to_try(arguments())
    assert begin(app, rank=1).config.timeout_graceful_shutdown == LINGER_S  # another of several API servers
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (arguments(), ["http://127.0.0.1:8000/v1/completions"]),
        (arguments(host="0.0.0.0", port=1), ["http://127.0.0.1:1/v1/completions"]),
        (arguments(host=None, ssl_certfile="c"), ["https://127.0.0.1:8000/v1/completions"]),
        (arguments(host="::"), ["http://[::1]:8000/v1/completions"]),
        (arguments(host="box.example"), ["http://box.example:8000/v1/completions"]),
        (arguments(uds="/run/a b"), ["--unix-socket", "/run/a b", "http://localhost/v1/completions"]),
        (arguments(api_key=["k"]), ["Authorization: Bearer YOUR_API_KEY"]),
        (arguments(served_model_name=["it's"]), ['"model": "it\'s"']),
    ],
)
def test_the_command_fits_where_the_server_listens(args: Any, expected: list[str]) -> None:
    (line,) = [line for line in how_to_try(args).splitlines() if line.startswith("  curl ")]
    words = shlex.split(line)
    assert all(any(part in word for word in words) for part in expected)
    assert "k" not in words


def test_a_key_from_the_environment_is_named_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    assert '"Authorization: Bearer $VLLM_API_KEY"' in how_to_try(arguments())
    assert "Authorization: Bearer YOUR_API_KEY" in how_to_try(arguments(), has_keys=True)
