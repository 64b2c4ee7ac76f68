"""An OpenAI endpoint whose every chunk a test decides, on a real socket: the timing of chunks is what is measured."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

START_LIMIT_S = 10.0

Script = Callable[[dict[str, Any], Request], "Awaitable[Response | list[Any]] | Response | list[Any]"]
"""The answer to a body: a response, or what is streamed: chunks, numbers of seconds to wait, events to wait for."""


def chunk(text: str, so_far: int | None = None, finish: str | None = None) -> dict[str, Any]:
    usage = {} if so_far is None else {"usage": {"prompt_tokens": 5, "completion_tokens": so_far}}
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish}], **usage}


def final(body: dict[str, Any], tokens: int, **more: Any) -> dict[str, Any]:
    prompt = body.get("prompt") or body["messages"][0]["content"].split()
    return {"choices": [], "usage": {"prompt_tokens": len(prompt), "completion_tokens": tokens}, **more}


def reply(body: dict[str, Any], **more: Any) -> list[Any]:
    """As many tokens as asked for, one a chunk, at once."""
    counted = body["stream_options"].get("continuous_usage_stats")
    n = body.get("max_tokens") or body["max_completion_tokens"]
    chunks: list[Any] = [chunk("a", i + 1 if counted else None, "length" if i + 1 == n else None) for i in range(n)]
    return [*chunks, final(body, n, **more), "[DONE]"]


@dataclass
class FakeServer:
    """Answers by ``script``, and keeps what it was asked.

    models: of ``/v1/models``; ``None``: it has no such page. models_page: that page in their place, or the
    whole response to it.
    """

    script: Script = lambda body, request: reply(body)
    models: list[dict[str, Any]] | None = field(default_factory=lambda: [{"id": "fake", "max_model_len": 4096}])
    models_page: Any = None
    api_key: str | None = None
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    url: str = ""

    @property
    def runs(self) -> list[tuple[dict[str, Any], dict[str, str]]]:
        """Bodies and headers but for the trial request before a run."""
        return list(zip(self.bodies, self.headers, strict=True))[1:]

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/models", self._models),
                Route("/v1/completions", self._generate, methods=["POST"]),
                Route("/v1/chat/completions", self._generate, methods=["POST"]),
            ]
        )

    async def _models(self, request: Request) -> Response:
        if self.models is None:
            return Response(status_code=404)
        if self.api_key is not None and request.headers.get("authorization") != f"Bearer {self.api_key}":
            return JSONResponse({"error": "Unauthorized"}, 401)
        if isinstance(self.models_page, Response):
            return self.models_page
        return JSONResponse({"data": self.models} if self.models_page is None else self.models_page)

    async def _generate(self, request: Request) -> Response:
        body = json.loads(await request.body())
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        answer = self.script(body, request)
        if not isinstance(answer, (Response, list)):
            answer = await answer
        if isinstance(answer, Response):
            return answer
        return StreamingResponse(_stream(answer), media_type="text/event-stream")


async def _stream(parts: list[Any]) -> AsyncIterator[str]:
    for part in parts:
        if isinstance(part, asyncio.Event):
            await part.wait()
        elif isinstance(part, float):
            await asyncio.sleep(part)
        elif isinstance(part, Exception):
            raise part
        else:
            yield f"data: {part if isinstance(part, str) else json.dumps(part)}\n\n"


@contextmanager
def serving(fake: FakeServer) -> Iterator[FakeServer]:
    """Runs ``fake`` on a free port in a thread of its own."""
    config = uvicorn.Config(fake.app(), port=0, log_level="critical", lifespan="off", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    started = threading.Event()
    inner = server.startup

    async def startup(*args: Any, **kwargs: Any) -> None:
        await inner(*args, **kwargs)
        started.set()

    server.startup = startup  # type: ignore[method-assign]
    thread.start()
    assert started.wait(START_LIMIT_S), "the fake server did not start"
    fake.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    try:
        yield fake
    finally:
        server.should_exit = True
        thread.join(START_LIMIT_S)
