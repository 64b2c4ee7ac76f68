"""An engine with our scheduler under vLLM's Rust front end, where its binary is: vLLM's wheel for GPUs has it.

``SLOSERVE_TEST_RUST`` names one that was taken from such a wheel of the same version.
"""

import concurrent.futures
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import vllm

from sloserve.core.clock import SystemClock
from sloserve.vllm_plugin.server.rust_front_end import METRICS_PORT, RUST_FRONT_END
from sloserve.vllm_plugin.server.tiny_model import resolve_model
from tests import bounded
from tests.orphans import kill_with_children
from tests.ports import free_port

BINARY = Path(os.environ.get("SLOSERVE_TEST_RUST") or Path(vllm.__file__).parent / "vllm-rs")

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.skipif(not os.access(BINARY, os.X_OK), reason=f"no executable vllm-rs at {BINARY}"),
]

SERVE = """
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser, command = FlexibleArgumentParser(), ServeSubcommand()
command.subparser_init(parser.add_subparsers(dest="subparser"))
args = parser.parse_args()
command.validate(args)
command.cmd(args)
"""
"""``vllm serve``, which the CPU build has no command for."""

LIMIT_S = 180.0


def waiting() -> Iterator[None]:
    """Yield again and again until ``LIMIT_S`` is over; who asks ends the wait before that."""
    clock = SystemClock()
    end_s = clock.monotonic_s() + LIMIT_S
    while clock.monotonic_s() < end_s:
        yield
        time.sleep(0.1)


class RustServer:
    """A server of one place, and the port of its scheduler's metrics."""

    def __init__(self, log: Path) -> None:
        port = free_port()
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", port))
            metrics_port = free_port()
        self.log, self.metrics_url = log, f"http://127.0.0.1:{metrics_port}/metrics"
        environment = {
            **os.environ,
            RUST_FRONT_END: "1",
            "VLLM_RUST_FRONTEND_PATH": str(BINARY),
            METRICS_PORT: str(metrics_port),
            "HF_HUB_OFFLINE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        }
        flags = ["--served-model-name", "tiny", "--dtype", "float32", "--enforce-eager", "--max-model-len", "2048"]
        flags += ["--host", "127.0.0.1", "--port", str(port), "--max-num-seqs", "1"]
        flags += ["--scheduler-cls", "sloserve.vllm_plugin.SLOScheduler"]
        flags += ["--additional-config", '{"sloserve": {"policy": "edf"}}']
        command = [sys.executable, "-c", SERVE, "serve", str(resolve_model("builtin:tiny")), *flags]
        with log.open("w") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=LIMIT_S)
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        for _ in waiting():
            assert self.process.poll() is None, self.log.read_text()
            try:
                if self.http.get("/v1/models").is_success:
                    self.complete(1)  # the first step of all takes longest
                    return
            except httpx.TransportError:
                continue
        raise AssertionError(self.log.read_text())

    def complete(self, tokens: int, **more: object) -> str:
        body = {"model": "tiny", "prompt": "Hello", "max_tokens": tokens, "temperature": 0, "ignore_eos": True, **more}
        answer = self.http.post("/v1/completions", json=body).raise_for_status()
        return str(answer.json()["choices"][0]["text"])

    def metrics(self) -> str:
        return httpx.get(self.metrics_url).raise_for_status().text

    def stop(self) -> None:
        self.http.close()
        self.process.terminate()
        try:
            self.process.wait(60)
        finally:
            kill_with_children(self.process)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RustServer]:
    made = RustServer(tmp_path_factory.mktemp("rust") / "log")
    try:
        yield made
    finally:
        made.stop()


def test_the_engine_orders_by_what_vllm_xargs_state(server: RustServer) -> None:
    ended: list[str] = []

    def send(name: str, **xargs: object) -> str:
        text = server.complete(60, vllm_xargs=xargs)
        ended.append(name)
        return text

    with bounded.within("the replies", LIMIT_S), concurrent.futures.ThreadPoolExecutor(7) as pool:
        replies = [pool.submit(send, f"batch-{k}", slo_class="batch") for k in range(6)]
        assert any('sloserve:queue_requests{class="batch",engine="0"} 5.0' in server.metrics() for _ in waiting())
        replies.append(pool.submit(send, "urgent", slo_class="interactive", slo_ttft_ms=500))
        assert len({reply.result() for reply in replies}) == 1, "greedy replies do not depend on the order"
    assert ended.index("urgent") <= 2, ended


def test_a_wrong_slo_is_served_without_it_and_headers_are_not_read(server: RustServer) -> None:
    plain = server.complete(8)
    assert server.complete(8, vllm_xargs={"slo_ttft_ms": "soon"}) == plain
    answer = server.http.post(
        "/v1/completions",
        json={"model": "tiny", "prompt": "Hello", "max_tokens": 8, "temperature": 0, "slo": {"report": True}},
        headers={"x-slo-ttft-ms": "none", "x-slo-report": "1"},
    )
    assert answer.is_success and "slo" not in answer.json()
    assert server.http.get("/sloserve/status").status_code == 404
    assert "is served without its SLO: slo_ttft_ms: 'soon'" in server.log.read_text()
    assert 'sloserve:scheduler_policy_info{engine="0",policy="edf"' in server.metrics()
