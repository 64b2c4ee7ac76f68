"""LiteLLM's proxy in front of two servers, with the settings of docs/litellm.md and with its own.

The servers are stand-ins that answer as ours do, so that no engine is needed; ``make interop`` installs LiteLLM.
"""

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from sloserve.core.errors import QueueFull
from sloserve.wire import errors
from tests.bounded import within
from tests.docs.pages import ROOT, blocks_of
from tests.ports import free_port

LITELLM = ROOT / ".venv-interop" / "bin" / "litellm"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not LITELLM.exists(), reason="NOT TESTED: no LiteLLM; make interop installs it"),
]
HELLO = {"model": "chat", "messages": [{"role": "user", "content": "Hello"}]}
FULL = QueueFull("the queue of class 'batch' is full; retry in 7 s", 7, "batch")
REPORT = {"class": "batch", "good": True}


class StandIn(ThreadingHTTPServer):
    """Answers as a server of ours whose queue of class batch is full."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.seen: list[tuple[dict[str, str], dict[str, Any]]] = []


class Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: StandIn

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.seen.append((headers, body))
        common = {"id": "c", "created": 1, "model": body["model"]}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        if headers.get("x-slo-class") == "batch":
            status = errors.status(FULL)
            self.answer(status, errors.body(status, str(FULL)), dict(errors.headers(FULL)))
        elif body.get("stream"):
            chunk = {**common, "object": "chat.completion.chunk"}
            delta = {"index": 0, "delta": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}
            chunks = [{**chunk, "choices": [delta]}, {**chunk, "choices": [], "usage": usage, "slo": REPORT}]
            text = "".join(f"data: {json.dumps(one)}\n\n" for one in chunks) + "data: [DONE]\n\n"
            self.answer(200, text, {"content-type": "text/event-stream"})
        else:
            choice = {"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}
            whole = {**common, "object": "chat.completion", "choices": [choice], "usage": usage, "slo": REPORT}
            self.answer(200, whole, {"x-slo-predicted-ttft-ms": "120;p90=480"})

    def answer(self, status: int, body: Any, headers: dict[str, str]) -> None:
        raw = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        for name, value in {"content-type": "application/json", "content-length": str(len(raw)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(raw)


@contextmanager
def proxied(tmp_path: Path, provider: str, **changed: Any) -> Iterator[tuple[httpx.Client, list[StandIn]]]:
    """Run LiteLLM with the page's settings, but for ``changed``, before two servers."""
    (page,) = (yaml.safe_load(one.code) for one in blocks_of(ROOT / "docs" / "litellm.md") if one.language == "yaml")
    servers = [StandIn(), StandIn()]
    for server, model in zip(servers, page["model_list"], strict=True):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/v1"
        model["litellm_params"] |= {"model": f"{provider}/m", "api_base": address, "api_key": "k"}
    page["general_settings"]["dangerously_permit_weak_or_unset_master_key"] = True
    settings, port = tmp_path / "proxy.yaml", free_port()
    settings.write_text(yaml.safe_dump(page | changed))
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    command = [LITELLM, "--config", settings, "--host", "127.0.0.1", "--port", str(port)]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=tmp_path, env=environment)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as client:
            with within("LiteLLM to start", 120.0):
                while not _is_up(client):
                    assert process.poll() is None, (tmp_path / "log").read_text()
                    threading.Event().wait(0.2)
            yield client, servers
    finally:
        process.terminate()
        process.wait(60)
        for server in servers:
            server.shutdown()
            server.server_close()


def _is_up(client: httpx.Client) -> bool:
    try:
        return client.get("/health/liveliness").status_code == 200
    except httpx.HTTPError:
        return False


def seen(servers: list[StandIn]) -> int:
    """Return how many requests have reached a server."""
    return sum(len(server.seen) for server in servers)


@pytest.mark.parametrize("provider", ["hosted_vllm", "openai"])
def test_slos_pass_and_a_full_queue_shuts_no_other_class_out(provider: str, tmp_path: Path) -> None:
    with proxied(tmp_path, provider) as (client, servers):
        route = "/v1/chat/completions"
        stated = {"x-slo-class": "interactive", "x-slo-ttft-ms": "500"}
        plain = client.post(route, json={**HELLO, "slo": {"report": True}}, headers=stated)
        assert plain.json()["slo"] == REPORT
        assert plain.headers["llm_provider-x-slo-predicted-ttft-ms"] == "120;p90=480"
        headers, body = next(server.seen[0] for server in servers if server.seen)
        assert stated.items() <= headers.items() and body["slo"] == {"report": True}
        options = {"stream": True, "stream_options": {"include_usage": True}, "slo": {"report": True}}
        streamed = client.post(route, json={**HELLO, **options}, headers=stated).text
        assert "Hi" in streamed and '"slo"' not in streamed, "LiteLLM keeps reports of streams: docs/litellm.md"
        for _ in range(2):  # each reaches a server, once
            before = seen(servers)
            refused = client.post(route, json=HELLO, headers={"x-slo-class": "batch"})
            assert refused.status_code == 429 and seen(servers) == before + 1
            assert refused.headers["llm_provider-retry-after"] == "7"
            assert refused.headers["llm_provider-x-slo-dropped-reason"] == "rejected-saturated"
            assert "retry in 7 s" in refused.text
        assert client.post(route, json=HELLO, headers=stated).status_code == 200


def test_litellms_own_settings_shut_every_class_out_for_a_full_queue_of_one(tmp_path: Path) -> None:
    """What the page warns of; if this fails, LiteLLM has become better than the page says."""
    with proxied(tmp_path, "openai", router_settings={}) as (client, servers):
        for _ in range(2):
            client.post("/v1/chat/completions", json=HELLO, headers={"x-slo-class": "batch"})
        before = seen(servers)
        other = client.post("/v1/chat/completions", json=HELLO, headers={"x-slo-class": "interactive"})
        assert (other.status_code, seen(servers)) == (429, before) and "cooldown" in other.text
