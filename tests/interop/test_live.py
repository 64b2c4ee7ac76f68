"""Client libraries and load generators against a real server: what an application sees, and what a result file says.

They stand in environments of their own, as some need other versions than the tests do: ``make interop``.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from sloserve.cli import app
from sloserve.engine.recording.reading import find_recording
from sloserve.sim.recorded_timed_trace import FILE, aiperf_command, write_timed_trace
from sloserve.vllm_plugin.server.tiny_model import resolve_model
from tests.interop.record import NAMES, NODE, RECORDED, command_of
from tests.sim.test_recorded_timed_trace import PROMPTS, STRETCH, make_recording
from tests.vllm.server import MODEL, Server

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("SLOSERVE_INTEROP", ROOT / ".venv-interop" / "bin" / "python"))
PREDICTED = [
    f"x-slo-{name}" for name in ("predicted-e2e-ms", "predicted-tpot-ms", "predicted-ttft-ms", "queue-position")
]
"""Headers of ours in a response."""
TEN = {
    "guidellm": (
        "guidellm run --backend kind=openai_http,target={url},model={model} --tokenizer kind=hf_auto,model={tokenizer} "
        "--profile kind=constant,rate=5 --constraint kind=max_requests,count=10 --output kind=json,path=guidellm.json "
        "--data kind=synthetic_text,prompt_tokens=20,output_tokens=8 --disable-console",
        "guidellm.json",
    ),
    "aiperf": (
        "aiperf profile --url {url} -m {model} --tokenizer {tokenizer} --endpoint-type chat --streaming --ui none "
        "--request-count 10 --concurrency 2 --isl 20 --osl 8 --output-artifact-dir aiperf",
        "aiperf/profile_export.jsonl",
    ),
}
"""Ten requests of each load generator, and its file for `sloserve judge`."""
ROUNDS = 12
"""Predictions appear once a class has served about nine requests, and a round has one of each class."""

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(
        not (PYTHON.exists() and (PYTHON.parents[1] / "node_modules" / "openai").exists()),
        reason="NOT TESTED: no client libraries; make interop installs them",
    ),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Its comments come so often that no stream of a client that asks for them has its first token before one."""
    config = tmp_path_factory.mktemp("config") / "serve.yaml"
    config.write_text("waiting_comments_s: 0.0005\n")
    started = Server("--policy", "edf", "--admission", "predict", "--slo-config", str(config))
    try:
        started.wait_ready()
        yield started
    finally:
        started.stop()


@pytest.fixture(scope="module")
def seen(server: Server) -> dict[str, dict[str, Any]]:
    """What each client saw, after one of them has sent enough for predictions."""
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    found = {}
    for name in [*["openai-python"] * ROUNDS, *NAMES]:
        command = command_of(name, PYTHON, server.url)
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
        assert done.returncode == 0, done.stderr
        found[name] = next(json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"client"'))
    return found


@pytest.mark.parametrize("client", NAMES)
def test_replies_and_streams_come_and_a_bad_slo_is_a_bad_request(client: str, seen: dict[str, dict[str, Any]]) -> None:
    found = seen[client]
    assert found["reply"] and found["stream"]
    assert "slo.ttft_ms: -5 is not a number of milliseconds above 0" in found["refused"]


def test_the_streams_that_clients_read_have_comments_while_they_wait(server: Server) -> None:
    body = {"model": MODEL, "prompt": "Hello", "max_tokens": 2, "stream": True, "slo": {"updates": True}}
    with httpx.Client(base_url=server.url, timeout=60) as http:
        streams = [http.post("/v1/completions", json=body).raise_for_status().text for _ in range(10)]
    assert all(one.startswith(": slo-queue position=1") for one in streams)


@pytest.mark.parametrize("client", ["openai-python", NODE])
def test_openais_clients_keep_the_reports_of_bodies_and_streams(client: str, seen: dict[str, dict[str, Any]]) -> None:
    found = seen[client]
    assert found["report"]["class"] == "interactive"
    assert found["report"]["targets"] == {"ttft_ms": 500.0, "tpot_ms": 50.0}
    assert found["stream_report"]["class"] == "batch" and found["stream_report"]["targets"] == {"e2e_ms": 30000.0}


def test_predictions_come_in_headers_which_litellm_prefixes(seen: dict[str, dict[str, Any]]) -> None:
    assert seen["openai-python"]["headers"] == seen[NODE]["headers"] == PREDICTED
    assert seen["langchain-openai"]["headers"] == PREDICTED
    prefixed = [f"llm_provider-{name}" for name in PREDICTED]
    assert seen["litellm"]["headers"] == seen["litellm-proxy"]["headers"] == prefixed


def test_litellms_proxy_keeps_the_reports_of_bodies(seen: dict[str, dict[str, Any]]) -> None:
    assert seen["litellm-proxy"]["report"]["targets"] == {"ttft_ms": 500.0, "tpot_ms": 50.0}


def test_open_webui_finds_the_model_and_states_slos_by_headers_and_by_custom_parameters(server: Server) -> None:
    requests = json.loads((RECORDED / "open-webui.json").read_text())["requests"]
    with httpx.Client(base_url=server.url, timeout=60) as http:
        listed = http.get("/v1/models").raise_for_status().json()["data"]
        title, chat, refused = (http.post(one["path"], json=one["body"], headers=one["headers"]) for one in requests)
    assert [one["id"] for one in listed] == [MODEL]
    assert title.json()["slo"]["targets"] == {"ttft_ms": 500.0, "tpot_ms": 50.0}
    *chunks, end = [line[6:] for line in chat.text.splitlines() if line.startswith("data: ")]
    assert end == "[DONE]" and json.loads(chunks[-1])["slo"]["class"] == "batch"
    assert refused.status_code == 400 and refused.headers["content-type"] == "application/json"


@pytest.mark.parametrize("tool", TEN)
def test_results_of_load_generators_are_judged(tool: str, server: Server, tmp_path: Path) -> None:
    command, result = TEN[tool]
    tokenizer = resolve_model(MODEL)
    words = command.format(url=server.url, model=MODEL, tokenizer=tokenizer).split()
    words[0] = str(PYTHON.parents[1] / "load" / "bin" / words[0])
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    judged = CliRunner().invoke(app, ["judge", str(tmp_path / result), "--goodput", "ttft:60000,tpot:60000"])
    assert f"{tool}: 10 requests, 10 completed" in judged.output
    assert "all targets 100.0 %   10 of 10" in judged.output


def test_aiperf_sends_an_exported_recording_by_the_printed_command(server: Server, tmp_path: Path) -> None:
    make_recording(tmp_path / "recordings")
    _, recording = find_recording(tmp_path / "recordings", None)
    assert write_timed_trace(recording, tmp_path) == (4, 1)
    command = aiperf_command(tmp_path / FILE, STRETCH).replace("MODEL", MODEL).replace("URL", server.url)
    words = [*command.split(), "--tokenizer", str(resolve_model(MODEL)), "--ui", "none"]
    words = [str(PYTHON.parents[1] / "load" / "bin" / words[0]), *words[1:], "--output-artifact-dir", "aiperf"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    result = tmp_path / "aiperf" / "profile_export.jsonl"
    rows = [json.loads(line)["metrics"] for line in result.read_text().splitlines()]
    sent = sorted(row["input_sequence_length"]["value"] for row in rows)
    assert sent == sorted(tokens for number, (tokens, _) in PROMPTS.items() if number < 5)
    judged = CliRunner().invoke(app, ["judge", str(result), "--goodput", "ttft:60000,tpot:60000"])
    assert "aiperf: 4 requests, 4 completed" in judged.output
