"""A real server whose EngineCore is suspended: health says so, and says that it is well again once it goes on."""

import os
import signal
from pathlib import Path

import httpx
import pytest

from tests.vllm.server import Server, complete

pytestmark = pytest.mark.vllm

TRIES = 20_000
"""Each takes at least a millisecond, and the core may be silent for two seconds."""


def test_a_suspended_core_is_noticed_and_forgiven(tmp_path: Path) -> None:
    config = tmp_path / "serve.yaml"
    config.write_text("hung_after_s: 2.0\n")
    server = Server("--slo-config", str(config), "--max-num-seqs", "4")
    try:
        server.wait_ready()
        (core,) = server.engine_pids()
        with httpx.Client(base_url=server.url, timeout=60) as http:
            os.kill(core, signal.SIGSTOP)
            try:
                assert until(http, "/health", 503)
                assert http.get("/ready").json() == {"status": "hangs"}
            finally:
                os.kill(core, signal.SIGCONT)
            assert until(http, "/health", 200) and until(http, "/ready", 200)
            assert complete(http, "Hello")
    finally:
        server.stop()


def until(http: httpx.Client, path: str, status: int) -> bool:
    """Whether the route comes to answer so."""
    return any(http.get(path).status_code == status for _ in range(TRIES))
