"""Routes of a stand-in engine beside OpenAI's chat and completions, in the shapes of vLLM 0.32."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.fleet.stand_in.engine import StandIn


class OtherRoutes:
    """They know texts by the engine's own rule; ``responses`` are the stored ones, if the engine stores any."""

    def __init__(self, engine: StandIn) -> None:
        self._engine = engine
        self.stores = False
        self.responses: dict[str, str] = {}
        self.bodies: list[tuple[str, dict[str, Any]]] = []
        """Route and body of each request, a form's as its fields."""

    def routes(self) -> list[Route]:
        handlers: dict[str, Callable[[Request], Awaitable[Response]]] = {
            "/v1/responses": self.respond,
            "/v1/messages": self.message,
            "/v1/messages/count_tokens": self.count,
            "/v1/embeddings": self.embed,
            **dict.fromkeys(("/rerank", "/v1/rerank", "/v2/rerank"), self.rerank),
            **dict.fromkeys(("/score", "/v1/score"), self.score),
            **dict.fromkeys(("/v1/audio/transcriptions", "/v1/audio/translations"), self.transcribe),
        }
        return [Route(path, handler, methods=["POST"]) for path, handler in handlers.items()]

    async def _read(self, request: Request) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(await request.body())
        self.bodies.append((request.url.path, body))
        return body

    def _made(self, request: Request, prompt: str, tokens: int) -> AsyncIterator[str]:
        return self._engine.generate(self._engine.name, prompt, tokens, request.headers["x-request-id"])

    async def respond(self, request: Request) -> Response:
        body = await self._read(request)
        before = ""
        if (previous := body.get("previous_response_id")) is not None:
            if previous not in self.responses:
                message = f"Response with id '{previous}' not found."
                return JSONResponse({"error": {"message": message, "type": "invalid_request_error", "code": 404}}, 404)
            before = self.responses[previous]
        prompt = before + said(body["input"])
        tokens = body.get("max_output_tokens") or 16
        id = body.get("request_id") or "resp_own"
        head = {"id": id, "created_at": 1, "model": body["model"], "object": "response", "parallel_tool_calls": True}
        head |= {"temperature": 1.0, "tool_choice": "auto", "tools": [], "top_p": 1.0, "background": False}
        head |= {"service_tier": "auto", "truncation": "disabled", "instructions": body.get("instructions")}
        usage = {
            "input_tokens": len(prompt),
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": tokens,
            "output_tokens_details": {"reasoning_tokens": 0, "tool_output_tokens": 0},
            "total_tokens": len(prompt) + tokens,
        }

        def whole(text: str) -> dict[str, Any]:
            if self.stores and body.get("store", True):
                self.responses[id] = prompt + text
            return {**head, "output": [item(text)], "status": "completed", "usage": usage, "user": None}

        def item(text: str, status: str = "completed") -> dict[str, Any]:
            content = [{"type": "output_text", "text": text, "annotations": []}] if text else []
            return {"id": "msg_1", "type": "message", "role": "assistant", "status": status, "content": content}

        async def events() -> AsyncIterator[bytes]:
            number = 0

            def event(kind: str, **values: Any) -> bytes:
                nonlocal number
                data = {**values, "sequence_number": number, "type": kind}
                number += 1
                return f"event: {kind}\ndata: {json.dumps(data)}\n\n".encode()

            begun = {**head, "output": [], "status": "in_progress", "usage": None}
            at = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
            yield event("response.created", response=begun)
            yield event("response.in_progress", response=begun)
            yield event("response.output_item.added", output_index=0, item=item("", "in_progress"))
            part = {"type": "output_text", "text": "", "annotations": []}
            yield event("response.content_part.added", **at, part=part)
            text = ""
            async for made in self._made(request, prompt, tokens):
                text += made
                yield event("response.output_text.delta", **at, delta=made, logprobs=[])
            yield event("response.output_text.done", **at, text=text, logprobs=[])
            yield event("response.content_part.done", **at, part={**part, "text": text})
            yield event("response.output_item.done", output_index=0, item=item(text))
            yield event("response.completed", response=whole(text))

        if body.get("stream"):
            return StreamingResponse(events(), media_type="text/event-stream")
        return JSONResponse(whole("".join([made async for made in self._made(request, prompt, tokens)])))

    async def message(self, request: Request) -> Response:
        body = await self._read(request)
        prompt, tokens = said(body.get("system") or "") + said(body["messages"]), body["max_tokens"]
        head = {"id": "msg_1", "type": "message", "role": "assistant", "model": body["model"]}
        usage = {"input_tokens": len(prompt), "output_tokens": tokens}
        end = {"stop_reason": "max_tokens", "stop_sequence": None}

        async def events() -> AsyncIterator[bytes]:
            def event(kind: str, **values: Any) -> bytes:
                return f"event: {kind}\ndata: {json.dumps({'type': kind, **values})}\n\n".encode()

            begun = {**head, "content": [], "usage": {**usage, "output_tokens": 0}, **dict.fromkeys(end)}
            yield event("message_start", message=begun)
            yield event("content_block_start", index=0, content_block={"type": "text", "text": ""})
            async for made in self._made(request, prompt, tokens):
                yield event("content_block_delta", index=0, delta={"type": "text_delta", "text": made})
            yield event("content_block_stop", index=0)
            yield event("message_delta", delta=end, usage=usage)
            yield event("message_stop")

        if body.get("stream"):
            return StreamingResponse(events(), media_type="text/event-stream")
        text = "".join([made async for made in self._made(request, prompt, tokens)])
        return JSONResponse({**head, "content": [{"type": "text", "text": text}], **end, "usage": usage})

    async def count(self, request: Request) -> Response:
        body = await self._read(request)
        return JSONResponse({"input_tokens": len(said(body["messages"]))})

    async def embed(self, request: Request) -> Response:
        body = await self._read(request)
        texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
        data = [{"object": "embedding", "index": i, "embedding": [float(len(t))]} for i, t in enumerate(texts)]
        tokens = sum(map(len, texts))
        usage = {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0}
        return JSONResponse({"object": "list", "model": body["model"], "data": data, "usage": usage})

    async def rerank(self, request: Request) -> Response:
        body = await self._read(request)
        found = [
            {"index": i, "document": {"text": text}, "relevance_score": 1.0 / (1 + abs(len(text) - len(body["query"])))}
            for i, text in enumerate(body["documents"])
        ]
        found.sort(key=lambda one: -float(str(one["relevance_score"])))
        tokens = len(body["query"]) + sum(map(len, body["documents"]))
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return JSONResponse({"id": "rerank-1", "model": body["model"], "usage": usage, "results": found})

    async def score(self, request: Request) -> Response:
        body = await self._read(request)
        tokens = len(body["text_1"]) + len(body["text_2"])
        data = [{"index": 0, "object": "score", "score": 1.0 / tokens}]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0}
        return JSONResponse({"id": "score-1", "object": "list", "model": body["model"], "data": data, "usage": usage})

    async def transcribe(self, request: Request) -> Response:
        async with request.form() as form:
            fields: dict[str, Any] = {name: value for name, value in form.multi_items() if isinstance(value, str)}
            file: Any = form["file"]
            recording: bytes = await file.read()
        self.bodies.append((request.url.path, {**fields, "file": recording, "name": file.filename}))
        text = "".join([made async for made in self._made(request, str(len(recording)), 8)])
        return JSONResponse({"text": text, "usage": {"type": "duration", "seconds": 1}})


def said(content: Any) -> str:
    """Return the text of a prompt, in whichever of the shapes."""
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        return said(content.get("content") or content.get("text") or "")
    return "".join(said(one) for one in content)
