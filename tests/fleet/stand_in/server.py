"""A stand-in for a served engine: the routes that an agent, a gateway and a puller use, without vLLM. Starts in 0.2 s.

    python -m tests.fleet.stand_in.server MODEL --uds PATH --served-model-name NAME [--step-s 0.01] [--max-num-seqs 64]

Takes the flags of ``sloserve serve``, and ignores those that it does not know. ``POST /stand_in`` changes
:class:`~tests.fleet.stand_in.engine.Faults`; ``GET /stand_in`` says what came.
"""

import argparse
import asyncio
import json
import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from sloserve.core.clock import SystemClock
from tests.fleet.stand_in.engine import Faults, StandIn
from tests.fleet.stand_in.other_routes import OtherRoutes

Handler = Callable[[Request], Awaitable[Response]]


def app(engine: StandIn, admin_key: str | None = None, others: OtherRoutes | None = None) -> ASGIApp:
    """The engine's routes. admin_key: without one there are none below ``/sloserve/``. others: its further routes."""
    routes = Routes(engine, admin_key)
    paths: dict[str, tuple[str, Handler]] = {
        "/health": ("GET", routes.done),
        "/ready": ("GET", routes.done),
        "/v1/models": ("GET", routes.models),
        "/v1/completions": ("POST", routes.complete),
        "/v1/chat/completions": ("POST", routes.complete),
        "/pause": ("POST", routes.pause),
        "/resume": ("POST", routes.resume),
        "/is_paused": ("GET", routes.is_paused),
        "/sleep": ("POST", routes.sleep),
        "/wake_up": ("POST", routes.wake_up),
        "/is_sleeping": ("GET", routes.is_sleeping),
        "/collective_rpc": ("POST", routes.collective_rpc),
        "/reset_prefix_cache": ("POST", routes.reset_prefix_cache),
        "/v1/load_lora_adapter": ("POST", routes.load_adapter),
        "/v1/unload_lora_adapter": ("POST", routes.unload_adapter),
        "/stand_in": ("POST", routes.set_faults),
    }
    if admin_key:
        paths |= {
            "/sloserve/park": ("POST", routes.park),
            "/sloserve/unpark": ("POST", routes.unpark),
            "/sloserve/reload": ("POST", routes.reload),
            "/sloserve/status": ("GET", routes.status),
            "/sloserve/tenants": ("PUT", routes.tenants),
            "/sloserve/settings": ("PUT", routes.settings),
        }
    made = [Route(path, handler, methods=[method]) for path, (method, handler) in paths.items()]
    made.append(Route("/stand_in", routes.stand_in, methods=["GET"]))
    made += (others or OtherRoutes(engine)).routes()
    return _guarded(Starlette(routes=made), engine, admin_key)


class Routes:
    def __init__(self, engine: StandIn, admin_key: str | None) -> None:
        self._engine, self._key = engine, admin_key

    async def done(self, request: Request) -> Response:
        return Response()

    async def models(self, request: Request) -> Response:
        engine = self._engine
        cards = [{"id": engine.name, "object": "model", "root": engine.weights, "parent": None}]
        cards += [{"id": n, "object": "model", "root": p, "parent": engine.name} for n, p in engine.adapters.items()]
        return JSONResponse({"object": "list", "data": cards})

    async def complete(self, request: Request) -> Response:
        try:
            body = json.loads(await request.body())
            call = Call(self._engine, body, request.url.path.endswith("/chat/completions"), request)
        except (ValueError, KeyError, TypeError, AttributeError) as wrong:
            return error(400, "BadRequestError", f"request body: {wrong!r}")
        if call.model not in (self._engine.name, *self._engine.adapters):
            return error(404, "NotFoundError", f"The model `{call.model}` does not exist.")
        if body.get("stream"):
            return StreamingResponse(call.stream(), media_type="text/event-stream")
        return await _unless_gone(request, call.whole())

    async def pause(self, request: Request) -> Response:
        await self._engine.pause(request.query_params.get("mode", "abort"))
        return JSONResponse({"status": "paused"})

    async def resume(self, request: Request) -> Response:
        await self._engine.resume()
        return JSONResponse({"status": "resumed"})

    async def is_paused(self, request: Request) -> Response:
        return JSONResponse({"is_paused": self._engine.is_paused})

    async def sleep(self, request: Request) -> Response:
        level = int(request.query_params.get("level", "1"))
        await self._engine.sleep(level, request.query_params.get("mode", "abort"))
        return JSONResponse({"status": "sleeping", "level": level})

    async def wake_up(self, request: Request) -> Response:
        tags = request.query_params.getlist("tags") or None
        awake = await self._engine.wake_up(tags)
        return JSONResponse({"status": "awake" if awake else "sleeping", "tags": tags})

    async def is_sleeping(self, request: Request) -> Response:
        return JSONResponse({"is_sleeping": self._engine.is_sleeping})

    async def collective_rpc(self, request: Request) -> Response:
        call = await request.json()
        if call["method"] == "reload_weights":
            self._engine.reload(call.get("kwargs", {}).get("weights_path"))
        return JSONResponse({"results": [None]})

    async def reset_prefix_cache(self, request: Request) -> Response:
        return JSONResponse({"success": True})

    async def load_adapter(self, request: Request) -> Response:
        wanted = await request.json()
        self._engine.adapters[wanted["lora_name"]] = wanted["lora_path"]
        return Response(f"Success: LoRA adapter '{wanted['lora_name']}' added successfully.")

    async def unload_adapter(self, request: Request) -> Response:
        wanted = await request.json()
        if self._engine.adapters.pop(wanted["lora_name"], None) is None:
            return error(404, "NotFoundError", f"The lora adapter '{wanted['lora_name']}' cannot be found.")
        return Response(f"Success: LoRA adapter '{wanted['lora_name']}' removed successfully.")

    async def park(self, request: Request) -> Response:
        parked = await self._engine.park()
        return JSONResponse([{"requests": parked, "kept": parked}])

    async def unpark(self, request: Request) -> Response:
        await self._engine.wake_up(None)
        return await self.status(request)

    async def reload(self, request: Request) -> Response:
        wanted = await request.json()
        if not wanted["weights_path"]:
            return error(400, "BadRequestError", "weights_path: there is nothing")
        if self._engine.is_sleeping:
            return error(409, "Conflict", "the engine is parked, asleep or paused; POST /sloserve/unpark first")
        await self._engine.pause("wait")
        self._engine.reload(wanted["weights_path"])
        self._engine.name = wanted["model"]
        await self._engine.resume()
        return JSONResponse({"model": self._engine.name})

    async def status(self, request: Request) -> Response:
        engine = self._engine
        engine.felt += 1
        if engine.faults.stuck == "core":
            await asyncio.Event().wait()
        running = sum(one.started for one in engine.running)
        service = {} if engine.service_s is None else {"tenant_service_s": engine.service_s}
        return JSONResponse(
            [{"rank": 0, "running": float(running), "scheduled_tokens": float(engine.computed), **service}]
        )

    async def tenants(self, request: Request) -> Response:
        self._engine.elsewhere_s.append((await request.json())["elsewhere_s"])
        return await self.status(request)

    async def settings(self, request: Request) -> Response:
        patch = await request.json()
        if "profile" in patch:  # as of most settings, a change needs a restart
            return error(400, "invalid_request_error", "profile: cannot change while the engine runs")
        self._engine.settings |= patch
        return JSONResponse({"settings": self._engine.settings})

    async def set_faults(self, request: Request) -> Response:
        self._engine.faults = Faults(**(asdict(self._engine.faults) | await request.json()))
        return JSONResponse(asdict(self._engine.faults))

    async def stand_in(self, request: Request) -> Response:
        engine = self._engine
        running = [one.request_id for one in engine.running]
        return JSONResponse({"running": running, "seen": engine.seen, "aborted": engine.aborted})


class Call:
    """One completion. Raises: KeyError, TypeError and the like for a body that is none."""

    def __init__(self, engine: StandIn, body: dict[str, Any], chat: bool, request: Request) -> None:
        self.model = body.get("model") or engine.name
        self._engine, self._chat, self._id = engine, chat, request.headers["x-request-id"]
        self._ids = bool(body.get("return_token_ids"))
        self._prompt = _chat_text(body["messages"]) if chat else _text(body["prompt"])
        self._tokens = int(body.get("max_completion_tokens") or body.get("max_tokens") or 16)
        self._usage = bool((body.get("stream_options") or {}).get("include_usage"))
        self._head = {"id": f"{'chatcmpl' if chat else 'cmpl'}-{self._id}", "created": int(SystemClock().now_s())}

    async def whole(self) -> Response:
        text = "".join([made async for made in self._generate()])
        content = {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        ids = {"token_ids": list(map(ord, text))} if self._ids else {}
        prompt = {"prompt_token_ids": list(map(ord, self._prompt))} if self._ids else {}
        in_choice, beside = ({}, prompt) if self._chat else (prompt, {})
        choice = {"index": 0, **content, "finish_reason": self._reason(len(text)), **ids, **in_choice}
        kind = "chat.completion" if self._chat else "text_completion"
        answer = {**self._head, "object": kind, "model": self.model, "choices": [choice], **beside}
        return JSONResponse({**answer, "usage": self._used(len(text))})

    async def stream(self) -> AsyncIterator[bytes]:
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        head = {**self._head, "object": kind, "model": self.model}
        made = 0
        prompt = {"prompt_token_ids": list(map(ord, self._prompt))} if self._ids else {}
        if self._chat:
            first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
            yield _event({**head, "choices": [first], **prompt})
        async for text in self._generate():
            made += 1
            content = {"delta": {"content": text}} if self._chat else {"text": text}
            ids = {"token_ids": [ord(text)]} if self._ids else {}
            ids |= prompt if made == 1 and not self._chat else {}
            reason = "length" if made == self._tokens else None
            yield _event({**head, "choices": [{"index": 0, **content, "finish_reason": reason, **ids}]})
        if made < self._tokens:
            content = {"delta": {}} if self._chat else {"text": ""}
            yield _event({**head, "choices": [{"index": 0, **content, "finish_reason": self._reason(made)}]})
        if self._usage:
            yield _event({**head, "choices": [], "usage": self._used(made)})
        yield b"data: [DONE]\n\n"

    def _generate(self) -> AsyncIterator[str]:
        return self._engine.generate(self.model, self._prompt, self._tokens, self._id)

    def _reason(self, made: int) -> str:
        return "length" if made == self._tokens else "abort"

    def _used(self, made: int) -> dict[str, int]:
        prompt = len(self._prompt)
        return {"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made}


def error(status: int, kind: str, message: str) -> Response:
    return JSONResponse({"error": {"message": message, "type": kind, "param": None, "code": status}}, status)


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def _text(prompt: Any) -> str:
    return prompt if isinstance(prompt, str) else "".join(map(chr, prompt))


def _chat_text(messages: list[dict[str, Any]]) -> str:
    def content(message: dict[str, Any]) -> str:
        parts = message["content"]
        return parts if isinstance(parts, str) else "".join(part.get("text", "") for part in parts)

    return "".join(f"{one['role']}: {content(one)}\n" for one in messages) + "assistant: "


async def _unless_gone(request: Request, answer: Awaitable[Response]) -> Response:
    """The answer, unless the client goes before, which aborts the request."""
    answering = asyncio.ensure_future(answer)
    gone = asyncio.ensure_future(request.receive())
    await asyncio.wait({answering, gone}, return_when=asyncio.FIRST_COMPLETED)
    gone.cancel()
    if not answering.done():
        answering.cancel()
        return Response(status_code=499)
    return answering.result()


def _guarded(inner: ASGIApp, engine: StandIn, admin_key: str | None) -> ASGIApp:
    """Ids of requests, the admin key, and the faults that a test asked for."""

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        request_id = headers.get(b"x-request-id") or uuid.uuid4().hex.encode()
        scope = {**scope, "headers": [*headers.items(), (b"x-request-id", request_id)]}

        async def repeating(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-request-id", request_id)]
            await send(message)

        path = scope["path"]
        if path in engine.faults.hang:
            await asyncio.Event().wait()
        if path in engine.faults.refuse:
            await error(500, "InternalServerError", "told to fail")(scope, receive, repeating)
        elif path.startswith("/sloserve/") and headers.get(b"authorization") != f"Bearer {admin_key}".encode():
            await error(401, "UnauthorizedError", "the admin key is needed")(scope, receive, repeating)
        else:
            await inner(scope, receive, repeating)

    return guarded


def server(engine: StandIn, uds: str, admin_key: str | None = None) -> uvicorn.Server:
    """Serves once its ``serve()`` runs, in a test's own event loop or a process of its own; ``started`` says when."""
    config = uvicorn.Config(app(engine, admin_key), uds=uds, lifespan="off", ws="none", log_level="warning")
    return uvicorn.Server(config)


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("model")
    parser.add_argument("--uds", required=True)
    parser.add_argument("--served-model-name")
    parser.add_argument("--max-num-seqs", type=int, default=64)
    parser.add_argument("--step-s", type=float, default=float(os.environ.get("STAND_IN_STEP_S", "0")))
    args, _ = parser.parse_known_args()
    name = args.served_model_name or args.model
    engine = StandIn(name, args.model, max_num_seqs=args.max_num_seqs, step_s=args.step_s)
    server(engine, args.uds, os.environ.get("SLOSERVE_ADMIN_KEY")).run()


if __name__ == "__main__":
    main()
