"""How much processor time does the front end add to a request and to a token, without engine, socket or noise?

Usage: python -m benchmarks.serving.front_end_cost [--requests 300] [--repeats 15]

One ASGI app that streams replies of an engine that does nothing, called directly: bare, and with our middleware and
observation around it. Thread CPU time, medians of interleaved repeats.
"""

import argparse
import asyncio
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

from benchmarks.publish import RESULTS, write_result
from sloserve.api.middleware import SLOMiddleware
from sloserve.core.clock import SystemClock
from sloserve.vllm_plugin.server.accept import FrontEnd

TOKENS = (1, 201)
CHUNK = b'data: {"id":"cmpl-1","object":"text_completion","choices":[{"index":0,"text":" word"}]}\n\n'
HEADERS = [(b"content-type", b"application/json"), (b"host", b"x"), (b"accept", b"*/*"), (b"user-agent", b"y")]
SLO = [(b"x-slo-ttft-ms", b"500"), (b"x-slo-tpot-ms", b"50"), (b"x-tenant-id", b"acme")]


class Kind(Enum):
    DELTA = 1


def engine() -> Any:
    """What the front end needs of an AsyncLLM."""
    config = {"sloserve": {"policy": "edf", "admission": {"mode": "cap"}, "tenants": {"acme": "interactive"}}}
    return SimpleNamespace(
        vllm_config=SimpleNamespace(additional_config=config), output_processor=SimpleNamespace(request_states={})
    )


async def replies(tokens: int) -> AsyncIterator[Any]:
    for i in range(tokens):
        one = SimpleNamespace(index=0, token_ids=[7], finish_reason="stop" if i == tokens - 1 else None)
        yield SimpleNamespace(outputs=[one], finished=i == tokens - 1, metrics=None, prompt_token_ids=[1, 2, 3])


def app(front_end: FrontEnd | None) -> Any:
    async def handler(request: Request) -> StreamingResponse:
        tokens = (await request.json())["max_tokens"]
        source: Any = replies(tokens)
        if front_end is not None:
            params = SimpleNamespace(extra_args=None, output_kind=Kind.DELTA, max_tokens=tokens, n=1)
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


def cpu_us(served: Any, tokens: int, requests: int) -> float:
    """Thread CPU time of a request, in microseconds."""
    body = json.dumps({"prompt": "word " * 200, "max_tokens": tokens, "slo": {"e2e_ms": 9000}}).encode()
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=15)
    given = parser.parse_args()
    apps = {"bare": app(None), "sloserve": app(FrontEnd(engine(), SystemClock()))}
    found: dict[str, list[list[float]]] = {name: [] for name in apps}
    for repeat in range(given.repeats):
        for name in apps if repeat % 2 == 0 else reversed(apps):
            found[name].append([cpu_us(apps[name], tokens, given.requests) for tokens in TOKENS])
    added = np.array(found["sloserve"]) - np.array(found["bare"])
    per_token = (added[:, 1] - added[:, 0]) / (TOKENS[1] - TOKENS[0])
    figures = {
        "added_us_per_request": float(np.median(added[:, 0])),
        "added_us_per_token": float(np.median(per_token)),
        "bare_us_per_request": float(np.median(np.array(found["bare"])[:, 0])),
    }
    for name, value in figures.items():
        print(f"{name:22}{value:10.2f}")
    write_result(RESULTS / "front_end_cost.json", {"figures": figures, "settings": vars(given)})


if __name__ == "__main__":
    main()
