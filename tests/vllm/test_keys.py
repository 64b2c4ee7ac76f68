"""A real server with a file of keys and two API server processes: what a tenant reaches, and what is counted of it."""

import os
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import httpx
import pytest

from sloserve.wire.keys import hash_of
from tests.bounded import within
from tests.vllm.server import ADMIN_KEY, MODEL, Server

pytestmark = pytest.mark.vllm

KEYS = f"""
tenants:
  acme: {{keys: ['{hash_of("one")}'], class: batch, models: ['{MODEL}'], quota: {{tokens_per_minute: 600}}}}
  small: {{keys: ['{hash_of("small")}'], models: [another-model], quota: {{requests_per_minute: 4}}}}
  monitoring: {{keys: ['{hash_of("m")}'], metrics: true}}
"""


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys.yaml"
    path.write_text(KEYS)
    return path


@pytest.fixture(scope="module")
def server(keys: Path) -> Iterator[Server]:
    running = Server("--policy", "edf", "--keys", str(keys), api_servers=2, env={"SLOSERVE_ADMIN_KEY": ADMIN_KEY})
    try:
        running.wait_ready()
        yield running
    finally:
        if running.process.poll() is None:
            assert running.stop() == 0


def ask(server: Server, key: str | None, path: str = "/v1/completions", **more: object) -> httpx.Response:
    """Send a request on a connection of its own, which either process may accept."""
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    headers |= more.pop("headers", {})  # type: ignore[arg-type]
    method = str(more.pop("method", "POST"))
    body = {"model": MODEL, "prompt": "hello", "max_tokens": 4, "ignore_eos": True} | more
    return httpx.request(
        method, server.url + path, headers=headers, json=body if method == "POST" else None, timeout=120
    )


def test_a_key_opens_its_tenants_routes_and_models(server: Server) -> None:
    assert ask(server, None).status_code == ask(server, "wrong").status_code == HTTPStatus.UNAUTHORIZED
    served = ask(server, "one", slo={"class": "priority", "report": True}, headers={"x-tenant-id": "small"})
    assert served.status_code == HTTPStatus.OK and served.json()["slo"]["class"] == "batch"
    assert served.headers["x-ratelimit-limit-tokens"] == "600"
    listed = {key: ask(server, key, "/v1/models", method="GET").json()["data"] for key in ("one", "small", "m")}
    assert [len(models) for models in listed.values()] == [1, 0, 1]
    hidden, unknown = ask(server, "small"), ask(server, "small", model="no-such-model")
    assert hidden.status_code == unknown.status_code == HTTPStatus.NOT_FOUND
    assert hidden.json()["error"]["message"] == (unknown.json()["error"]["message"].replace("no-such-model", MODEL))
    message = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
    anthropic = ask(server, None, "/v1/messages", headers={"x-api-key": "one"}, **message)
    assert anthropic.status_code == HTTPStatus.OK, anthropic.text
    assert ask(server, None, "/v1/messages", **message).json()["error"]["type"] == "authentication_error"
    assert ask(server, "one", "/metrics", method="GET").status_code == HTTPStatus.FORBIDDEN
    page = ask(server, "m", "/metrics", method="GET")
    assert page.status_code == HTTPStatus.OK
    assert 'sloserve:tenant_requests_total{outcome="completed",tenant="acme"}' in page.text
    assert 'tenant="small"' not in page.text, "neither of its requests reached the engine, nor did the header's"
    assert ask(server, "one", "/reset_prefix_cache").status_code == HTTPStatus.FORBIDDEN


def test_both_processes_share_limits_and_read_a_changed_file(server: Server, keys: Path) -> None:
    answers = [ask(server, "small", model="no-such-model") for _ in range(8)]
    codes = [answer.status_code for answer in answers]
    assert codes.count(HTTPStatus.NOT_FOUND) <= 4 and codes[-1] == HTTPStatus.TOO_MANY_REQUESTS
    assert 1 <= int(answers[-1].headers["retry-after"]) <= 15
    assert HTTPStatus.TOO_MANY_REQUESTS in [ask(server, "one", max_tokens=400).status_code for _ in range(6)]
    refused = ask(server, "one")
    assert "tokens per minute are used" in refused.json()["error"]["message"]
    keys.write_text(KEYS.replace(hash_of("m"), hash_of("new")))
    os.utime(keys)
    with within("both processes to read the file again"):
        while any(ask(server, "m", "/v1/models", method="GET").status_code == HTTPStatus.OK for _ in range(8)):
            pass  # each request looks at the file, at most once a second
    assert ask(server, "new", "/v1/models", method="GET").status_code == HTTPStatus.OK
