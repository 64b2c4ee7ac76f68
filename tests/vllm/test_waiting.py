"""A real server with one seat: what clients see while their requests wait for it, on every route that streams."""

import contextlib
import re
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai import OpenAI

from tests import bounded
from tests.vllm.server import MODEL, USER_KEY, Server
from tests.whole import sampled

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

SETTINGS = "waiting_comments_s: 0.05\n"
LINE = re.compile(r": slo-queue position=(\d+)(?: p50_ms=(\d+) p90_ms=(\d+))?")
HELLO = [{"role": "user", "content": "Hi"}]
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "Hi", "max_tokens": 4},
    "/v1/chat/completions": {"messages": HELLO, "max_tokens": 4},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 4},
    "/v1/messages": {"messages": HELLO, "max_tokens": 4},
}
TOKEN = dict(zip(ROUTES, ('"text":', '"delta":', "output_text.delta", "content_block_delta"), strict=True))
"""What an event with a token has in it."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    config = tmp_path_factory.mktemp("config") / "serve.yaml"
    config.write_text(SETTINGS)
    started = Server("--slo-config", str(config), "--max-num-seqs", "1", "--api-key", USER_KEY)
    try:
        started.wait_ready()
        yield started
    finally:
        started.stop()


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {USER_KEY}"}
    with httpx.Client(base_url=server.url, headers=headers, timeout=120) as client:
        yield client


@contextlib.contextmanager
def taken_seat(http: httpx.Client) -> Iterator[None]:
    """The one seat is taken, and another request waits for it, until the block ends, and runs for some time then."""
    long = {"model": MODEL, "prompt": "Hi", "max_tokens": 600, "ignore_eos": True, "stream": True}
    with http.stream("POST", "/v1/completions", json=long) as running:
        lines = running.iter_lines()  # kept, as the stream ends with it
        next(lines)
        asked: dict[str, Any] = {"json": {**long, "max_tokens": 100}, "headers": {"x-request-id": "second"}}
        second = threading.Thread(target=lambda: http.post("/v1/completions", **asked))
        second.start()
        with bounded.within("the second request"):
            while progress(http, "second").status_code == 404:
                pass
        yield
    with bounded.within("the end of the request that waited second"):
        second.join()


def progress(http: httpx.Client, request_id: str) -> httpx.Response:
    return http.get(f"/sloserve/requests/{request_id}")


def streamed(http: httpx.Client, path: str, headers: dict[str, str]) -> tuple[httpx.Headers, list[str]]:
    body = {"model": MODEL, "stream": True, **ROUTES[path]}
    with http.stream("POST", path, json=body, headers=headers) as response:
        response.raise_for_status()
        return response.headers, list(response.iter_lines())


@pytest.mark.parametrize("path", sampled(ROUTES, ["/v1/chat/completions", "/v1/messages"]))
def test_a_stream_that_waits_has_comments_until_its_first_token(http: httpx.Client, path: str) -> None:
    for _ in range(10):
        http.post("/v1/completions", json={"model": MODEL, "prompt": "Hi", "max_tokens": 2}).raise_for_status()
    with taken_seat(http):
        headers, lines = streamed(http, path, {"x-slo-updates": "1", "x-slo-report": "1"})
    comments = [found for line in lines if (found := LINE.fullmatch(line)) is not None]
    assert len(comments) >= 2, lines
    places = [int(found[1]) for found in comments]
    assert places[0] <= 2 and places == sorted(places, reverse=True) and places[-1] == 1
    assert all(found[2] is not None and int(found[2]) <= int(found[3]) for found in comments)
    last = max(number for number, line in enumerate(lines) if line.startswith(":"))
    tokens = [number for number, line in enumerate(lines) if TOKEN[path] in line]
    assert tokens and last < min(tokens), lines
    assert all(line == "" for number, line in enumerate(lines) if number and lines[number - 1].startswith(":"))
    assert path == "/v1/responses" or int(headers["x-slo-queue-position"]) in (0, 2)


def test_openai_s_client_reads_a_stream_with_comments(server: Server, http: httpx.Client) -> None:
    with OpenAI(base_url=f"{server.url}/v1", api_key=USER_KEY, max_retries=0) as client, taken_seat(http):
        asked: dict[str, Any] = {"model": MODEL, "max_tokens": 4, "extra_headers": {"x-slo-updates": "1"}}
        with client.chat.completions.with_streaming_response.create(messages=HELLO, stream=True, **asked) as raw:  # type: ignore[call-overload]
            seen = list(raw.iter_lines())
        plain = client.chat.completions.create(messages=HELLO, stream=True, **asked)  # type: ignore[call-overload]
        chunks = list(plain)
        told = client.responses.create(
            model=MODEL, input="Hi", max_output_tokens=4, stream=True, extra_body={"slo": {"updates": True}}
        )
        kinds = [event.type for event in told]
    assert any(LINE.fullmatch(line) for line in seen)
    assert chunks[-1].choices[0].finish_reason == "length"
    assert kinds[0] == "response.created" and kinds[-1] in ("response.completed", "response.incomplete")


def test_the_route_says_how_far_a_request_has_come(http: httpx.Client) -> None:
    found: list[Any] = []

    def ask() -> None:
        body = {"model": MODEL, "prompt": "Hi", "max_tokens": 300, "ignore_eos": True}
        http.post("/v1/completions", json=body, headers={"x-request-id": "mine"}).raise_for_status()

    asking = threading.Thread(target=ask)
    with bounded.within("a request that waits and then runs"):
        with taken_seat(http):
            asking.start()
            while (answer := progress(http, "mine")).status_code == 404:
                pass
            found.append(answer.raise_for_status().json())
            bare = httpx.get(answer.url)
        while (answer := progress(http, "mine")).status_code == 200:
            found.append(answer.json())
        asking.join()
    assert bare.status_code == 401 and "position" not in bare.text
    assert found[0]["state"] == "waiting" and found[0]["position"] == 2 and found[0]["class"] == "interactive"
    assert found[-1]["state"] == "running" and found[-1]["position"] is None
    assert progress(http, "mine").status_code == 404
