"""Client libraries against a real server: replies, reports, predictions and refusals as an application sees them.

They stand in an environment of their own, as some need an older openai than the tests do: ``make interop``.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.record import NAMES, NODE, command_of
from tests.vllm.server import Server

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("SLOSERVE_INTEROP", ROOT / ".venv-interop" / "bin" / "python"))
PREDICTED = ["x-slo-predicted-e2e-ms", "x-slo-predicted-ttft-ms"]
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
def seen() -> Iterator[dict[str, dict[str, Any]]]:
    """What each client saw, after one of them has sent enough for predictions."""
    server = Server("--policy", "edf", "--admission", "predict")
    try:
        server.wait_ready()
        environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        found = {}
        for name in [*["openai-python"] * ROUNDS, *NAMES]:
            command = command_of(name, PYTHON, server.url)
            done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240)
            assert done.returncode == 0, done.stderr
            found[name] = next(json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"client"'))
        yield found
    finally:
        server.stop()


@pytest.mark.parametrize("client", NAMES)
def test_replies_and_streams_come_and_a_bad_slo_is_a_bad_request(client: str, seen: dict[str, dict[str, Any]]) -> None:
    found = seen[client]
    assert found["reply"] and found["stream"]
    assert "slo.ttft_ms: -5 is not a number of milliseconds above 0" in found["refused"]


@pytest.mark.parametrize("client", ["openai-python", NODE])
def test_openais_clients_keep_the_reports_of_bodies_and_streams(client: str, seen: dict[str, dict[str, Any]]) -> None:
    found = seen[client]
    assert found["report"]["class"] == "interactive"
    assert found["report"]["targets"] == {"ttft_ms": 500.0, "tpot_ms": 50.0}
    assert found["stream_report"]["class"] == "batch" and found["stream_report"]["targets"] == {"e2e_ms": 30000.0}


def test_predictions_come_in_headers_which_litellm_prefixes(seen: dict[str, dict[str, Any]]) -> None:
    assert seen["openai-python"]["headers"] == seen[NODE]["headers"] == PREDICTED
    assert seen["langchain-openai"]["headers"] == PREDICTED
    assert seen["litellm"]["headers"] == [f"llm_provider-{name}" for name in PREDICTED]
