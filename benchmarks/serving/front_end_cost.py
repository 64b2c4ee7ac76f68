"""How much processor time does the front end add to a request and to a token, without engine, socket or noise?

Usage: python -m benchmarks.serving.front_end_cost [--requests 100] [--rounds 10] [--repeats 3]

One ASGI app that streams replies of an engine that does nothing, called directly: bare, and with our middleware and
observation around it. Four kinds of requests: with three targets, with a service tier besides, with a report, with
both. Each has another limit of output tokens, as where vLLM allows what a prompt leaves of the model's length. Thread
CPU time in interleaved pairs; a repeat is the median of its rounds, and the figure that of the repeats.
"""

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator
from enum import Enum
from types import SimpleNamespace
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from benchmarks.arguments import parser_for
from benchmarks.publish import RESULTS, write_result
from sloserve.api.middleware import SLOMiddleware
from sloserve.core.clock import SystemClock
from sloserve.vllm_plugin.server.front_end import FrontEnd

TOKENS = (1, 201)
MODEL_TOKENS = 8192
CHUNK = b'data: {"id":"cmpl-1","object":"text_completion","choices":[{"index":0,"text":" word"}]}\n\n'
HEADERS = [(b"content-type", b"application/json"), (b"host", b"x"), (b"accept", b"*/*"), (b"user-agent", b"y")]
TARGETS: dict[str, Any] = {"e2e_ms": 9000}
BODIES: dict[str, dict[str, Any]] = {
    "slo": {"slo": TARGETS},
    "tier": {"slo": TARGETS, "service_tier": "auto"},
    "report": {"slo": TARGETS | {"report": True}},
    "tier and report": {"slo": TARGETS | {"report": True}, "service_tier": "auto"},
}
SLO = [(b"x-slo-ttft-ms", b"500"), (b"x-slo-tpot-ms", b"50"), (b"x-tenant-id", b"acme")]


class Kind(Enum):
    DELTA = 1


def engine() -> Any:
    """What the front end needs of an AsyncLLM."""
    config = {"sloserve": {"policy": "edf", "admission": {"mode": "cap"}, "tenants": {"acme": "interactive"}}}
    return SimpleNamespace(
        vllm_config=SimpleNamespace(additional_config=config),
        output_processor=SimpleNamespace(request_states={}, add_request=None),
    )


async def replies(tokens: int) -> AsyncIterator[Any]:
    for i in range(tokens):
        one = SimpleNamespace(index=0, token_ids=[7], finish_reason="stop" if i == tokens - 1 else None)
        yield SimpleNamespace(outputs=[one], finished=i == tokens - 1, metrics=None, prompt_token_ids=[1, 2, 3])


def app(front_end: FrontEnd | None) -> Any:
    limits = itertools.cycle(range(MODEL_TOKENS // 2, MODEL_TOKENS))

    async def handler(request: Request) -> StreamingResponse:
        tokens = (await request.json())["max_tokens"]
        source: Any = replies(tokens)
        if front_end is not None:
            params = SimpleNamespace(extra_args=None, output_kind=Kind.DELTA, max_tokens=next(limits), n=1)
            observed = front_end.accept({"prompt_token_ids": [7] * 200}, params)
            source = front_end.watch(observed, source, Kind.DELTA)

        async def stream() -> AsyncIterator[bytes]:
            async for _ in source:
                yield CHUNK

        return StreamingResponse(stream(), media_type="text/event-stream")

    served = Starlette(routes=[Route("/v1/completions", handler, methods=["POST"])])
    if front_end is not None:
        served.state.engine_client = engine()
        served.add_middleware(SLOMiddleware)
    return served


def cpu_us(served: Any, stated: dict[str, Any], tokens: int, requests: int) -> float:
    """Thread CPU time of a request, in microseconds."""
    body = json.dumps({"prompt": "word " * 200, "max_tokens": tokens, **stated}).encode()
    headers = [*HEADERS, *SLO, (b"content-length", str(len(body)).encode())]
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "query_string": b"", "headers": headers}
    scope |= {"asgi": {"version": "3.0", "spec_version": "2.4"}, "http_version": "1.1", "root_path": ""}

    async def one() -> None:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            pass

        await served(dict(scope), receive, send)

    async def all_of_them() -> float:
        await one()
        started = time.thread_time()
        for _ in range(requests):
            await one()
        return (time.thread_time() - started) / requests * 1e6

    return asyncio.run(all_of_them())


def pair_us(apps: list[Any], stated: dict[str, Any], requests: int, ours_first: bool) -> list[float]:
    """What ours adds to a request of one token and to each further token, and the bare app's time for either."""
    found = {}
    for is_ours in (ours_first, not ours_first):
        one, many = (cpu_us(apps[is_ours], stated, n, max(requests * TOKENS[0] // n, 10)) for n in TOKENS)
        found[is_ours] = one, (many - one) / (TOKENS[1] - TOKENS[0])
    bare, ours = found[False], found[True]
    return [ours[0] - bare[0], ours[1] - bare[1], *bare]


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--requests", type=int, default=100, help="of one token, for each app and round")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    apps = [app(None), app(FrontEnd(engine(), SystemClock()))]
    shape = given.repeats, given.rounds, len(BODIES), 4
    found = np.array(
        [
            pair_us(apps, stated, given.requests, bool(turn % 2))
            for turn in range(given.repeats * given.rounds)
            for stated in BODIES.values()
        ]
    ).reshape(shape)
    of_repeats = np.median(found, axis=1)
    figures = {}
    names = ("added_us_per_request", "added_us_per_token", "bare_us_per_request", "bare_us_per_token")
    for i, kind in enumerate(BODIES):
        figures[kind] = {name: [round(us, 2) for us in sorted(of_repeats[:, i, j])] for j, name in enumerate(names)}
        told = "  ".join(f"{name} {us[len(us) // 2]:.2f}" for name, us in figures[kind].items())
        print(f"{kind:16} {told}")
    write_result(RESULTS / "front_end_cost.json.gz", {"figures": figures, "settings": vars(given)})


if __name__ == "__main__":
    main()
