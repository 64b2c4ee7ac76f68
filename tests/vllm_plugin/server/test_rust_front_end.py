"""What is served beside vLLM's Rust front end; the front end itself runs in tests/vllm/test_rust_front_end.py."""

import socket
import urllib.request
from pathlib import Path

import pytest

from sloserve.core.errors import ConfigError
from sloserve.engine.metrics.engine_page import PageWriter
from sloserve.vllm_plugin.server import rust_front_end
from tests.ports import free_port


def _metrics(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


@pytest.mark.parametrize("host", ["", "127.0.0.1:"])
def test_the_schedulers_metrics_are_served_without_a_python_front_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, host: str
) -> None:
    from sloserve.engine.metrics import engine_page

    page = PageWriter(["interactive", "batch"], 0, tmp_path)
    page.set_policies("edf", None, None)
    page.values[engine_page.Layout.at["plans"]] = 7
    monkeypatch.setattr(rust_front_end, "find_pages", lambda: engine_page.find_pages(tmp_path))
    port = free_port()
    monkeypatch.setenv(rust_front_end.METRICS_PORT, f"{host}{port}")
    monkeypatch.setenv(rust_front_end.RUST_FRONT_END, "1")
    for _ in range(2):
        rust_front_end.serve_metrics()
    assert 'sloserve:scheduler_policy_info{engine="0",policy="edf"' in _metrics(port)
    page.close()


@pytest.mark.parametrize("value", ["no", "0", "65536", "127.0.0.1:", "1.5"])
def test_a_value_that_is_no_port_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(rust_front_end.METRICS_PORT, value)
    monkeypatch.setenv(rust_front_end.RUST_FRONT_END, "1")
    with pytest.raises(ConfigError, match="SLOSERVE_METRICS_PORT: '.*' is not PORT or HOST:PORT"):
        rust_front_end.serve_metrics()


def test_beside_vllm_s_python_front_end_no_port_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(rust_front_end.METRICS_PORT, "no port")
    monkeypatch.setenv(rust_front_end.RUST_FRONT_END, "0")
    rust_front_end.serve_metrics()


def test_a_port_that_another_process_has_leaves_the_engine_without_these_metrics(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(rust_front_end.RUST_FRONT_END, "1")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv(rust_front_end.METRICS_PORT, f"127.0.0.1:{port}")
        rust_front_end.serve_metrics()
    assert f"cannot listen on 127.0.0.1 port {port}" in caplog.text
