"""Requests of every kind, sent at once, and what must be equal in two servers' replies to them."""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
WORDS = "the sea was calm that night and nobody on the ship had slept for three days".split()
LOGPROB_SPREAD = 1e-3
"""How far a log probability may lie from that of another batch: sums of floats have another order there."""


@dataclass(frozen=True)
class Sent:
    """A request.

    body: its fields. headers: with its targets. chunks: the parts in which the body is sent, 1: whole. hang_up: after
    how many events of the stream the client is gone; ``None`` if it stays.
    """

    kind: str
    path: str
    body: dict[str, Any]
    headers: dict[str, str]
    chunks: int = 1
    hang_up: int | None = None


@dataclass
class Reply:
    """What a client got. text: by choice. cut: whether it left before the end."""

    status: int
    text: dict[int, str] = field(default_factory=dict)
    finish: dict[int, str | None] = field(default_factory=dict)
    tokens: dict[int, list[str]] = field(default_factory=dict)
    logprobs: dict[int, list[float]] = field(default_factory=dict)
    prompt_logprobs: list[float] = field(default_factory=list)
    cut: bool = False
    error: str = ""


KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0, "ignore_eos": True},
    "seed": {"temperature": 1.0},
    "seed, top p and k": {"temperature": 0.8, "top_p": 0.9, "top_k": 20},
    "n": {"temperature": 1.0, "n": 3},
    "many": {"temperature": 1.0, "n": 12, "max_tokens": 8},
    "stop": {"temperature": 0, "ignore_eos": True, "stop": ["e", "Q"], "min_tokens": 5},
    "penalties": {"temperature": 0, "ignore_eos": True, "presence_penalty": 0.7, "frequency_penalty": 0.4},
    "bad words": {"temperature": 0, "ignore_eos": True, "bad_words": ["a", "b"], "logit_bias": {"70": -50}},
    "logprobs": {"temperature": 0, "ignore_eos": True, "logprobs": 3},
    "prompt logprobs": {"temperature": 0, "ignore_eos": True, "prompt_logprobs": 1},
    "regex": {"temperature": 0, "structured_outputs": {"regex": "[a-f]{20,40}"}},
    "schema": {"temperature": 1.0, "structured_outputs": {"json": SCHEMA}},
}
SEEDED = frozenset(kind for kind, params in KINDS.items() if params["temperature"] > 0)
TARGETS: tuple[dict[str, str], ...] = (
    {},
    {"x-slo-ttft-ms": "300"},
    {"x-slo-ttft-ms": "1000", "x-slo-tds": "200"},
    {"x-slo-e2e-ms": "4000", "x-slo-class": "batch"},
    {"x-slo-class": "background"},
)


def requests(count: int, seed: int, models: Sequence[str]) -> list[Sent]:
    """``count`` requests, the same for the same ``seed``."""
    rng = np.random.default_rng(seed)
    kinds = sorted(KINDS)
    return [_request(i, kinds[i % len(kinds)], models[i % len(models)], rng) for i in range(count)]


def _request(number: int, kind: str, model: str, rng: np.random.Generator) -> Sent:
    words = " ".join(rng.choice(WORDS, size=int(rng.integers(2, 60))).tolist())
    streams = "prompt" not in kind and bool(rng.random() < 0.5)
    body: dict[str, Any] = {"model": model, "max_tokens": int(rng.integers(8, 80)), "stream": streams, **KINDS[kind]}
    if kind in SEEDED:
        body["seed"] = number
    if chats := kind in ("greedy", "seed", "schema") and bool(rng.random() < 0.4):
        body["messages"] = [{"role": "user", "content": f"{number} {words}"}]
    else:
        body["prompt"] = f"{number} {words}"
    return Sent(
        kind,
        "/v1/chat/completions" if chats else "/v1/completions",
        body,
        TARGETS[int(rng.integers(len(TARGETS)))],
        chunks=int(rng.integers(1, 6)),
        hang_up=int(rng.integers(1, 12)) if streams and rng.random() < 0.4 else None,
    )


async def send_all(
    url: str, sent: Sequence[Sent], at_once: int, done: asyncio.Event, limit_s: float = 600.0
) -> list[Reply]:
    """The replies, in the order of ``sent``; at most ``at_once`` wait at a time. done: set when all have come."""
    places = asyncio.Semaphore(at_once)
    limits = httpx.Limits(max_connections=at_once, max_keepalive_connections=at_once)

    async def one(client: httpx.AsyncClient, request: Sent) -> Reply:
        async with places:
            return await _send(client, request)

    try:
        async with httpx.AsyncClient(base_url=url, timeout=limit_s, limits=limits) as client:
            return list(await asyncio.gather(*(one(client, request) for request in sent)))
    finally:
        done.set()


async def _send(client: httpx.AsyncClient, request: Sent) -> Reply:
    content = json.dumps(request.body).encode()
    size = -(-len(content) // request.chunks)

    async def parts() -> AsyncIterator[bytes]:
        for begin in range(0, len(content), size):
            yield content[begin : begin + size]
            await asyncio.sleep(0)

    headers = request.headers | {"Content-Type": "application/json"}
    whole = content if request.chunks == 1 else parts()
    async with client.stream("POST", request.path, content=whole, headers=headers) as answer:
        reply = Reply(answer.status_code)
        if answer.status_code != 200 or not request.body["stream"]:
            body = await answer.aread()
            if answer.status_code == 200:
                _add(reply, json.loads(body))
            else:
                reply.error = body.decode()[:500]
            return reply
        events = 0
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                reply.error = line[:500]
            _add(reply, event)
            events += 1
            if events == request.hang_up:
                reply.cut = True
                break
    return reply


def _add(reply: Reply, data: dict[str, Any]) -> None:
    """Adds a whole answer, or an event of a stream."""
    for choice in data.get("choices", ()):
        index = choice["index"]
        told = choice.get("message") or choice.get("delta") or choice
        text = told.get("content") if "text" not in told else told["text"]
        reply.text[index] = reply.text.get(index, "") + (text or "")
        reply.finish[index] = choice.get("finish_reason") or reply.finish.get(index)
        if (logprobs := choice.get("logprobs")) and "tokens" in logprobs:
            reply.tokens.setdefault(index, []).extend(logprobs["tokens"])
            reply.logprobs.setdefault(index, []).extend(logprobs["token_logprobs"])
        for position in choice.get("prompt_logprobs") or ():
            reply.prompt_logprobs += sorted(one["logprob"] for one in (position or {}).values())


def difference(request: Sent, expected: Reply, got: Reply) -> str | None:
    """How ``got`` differs from what another server answered to the same request; ``None`` if it does not."""
    if got.status != 200 or got.error:
        return f"{got.status}: {got.error}"
    if got.cut or expected.cut:  # a client that left has a part
        for index in got.text.keys() & expected.text.keys():
            one, other = got.text[index], expected.text[index]
            if not (one.startswith(other) or other.startswith(one)):
                return f"choice {index}: {one!r}, not {other!r}"
        return None
    if got.text != expected.text:
        return f"{got.text!r}, not {expected.text!r}"
    if got.finish != expected.finish:
        return f"{got.finish}, not {expected.finish}"
    if got.tokens != expected.tokens:
        return f"{got.tokens}, not {expected.tokens}"
    for index, values in got.logprobs.items():
        if not _near(values, expected.logprobs[index]):
            return f"log probabilities of choice {index}: {values}, not {expected.logprobs[index]}"
    if not _near(got.prompt_logprobs, expected.prompt_logprobs):
        return f"log probabilities of the prompt: {got.prompt_logprobs}, not {expected.prompt_logprobs}"
    return None


def _near(values: Sequence[float], others: Sequence[float]) -> bool:
    return len(values) == len(others) and all(
        math.isclose(one, other, abs_tol=LOGPROB_SPREAD) for one, other in zip(values, others, strict=True)
    )
