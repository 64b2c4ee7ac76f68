"""One server for the tests of the serving surface, and schemathesis' plugin, which pyproject.toml loads for nobody."""

from collections.abc import Iterator

import httpx
import pytest

from tests.vllm.server import ADMIN_KEY, MAX_NUM_SEQS, USER_KEY, Server

SETTINGS = """
policy: edf
shadow_policy: sjf
tenants: {small: background}
admission: {mode: cap, max_waiting: {background: 2, batch: 64, interactive: 64, priority: 64}}
max_body_bytes: 100000
"""


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.import_plugin("schemathesis.pytest.plugin")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    config = tmp_path_factory.mktemp("config") / "serve.yaml"
    config.write_text(SETTINGS)
    flags = ["--slo-config", str(config), "--max-num-seqs", str(MAX_NUM_SEQS), "--api-key", USER_KEY]
    flags += ["--swap-space-gib", "0.02", "--swapping", "always"]
    flags += ["--http3", "--http3-self-signed"]
    running = Server(*flags, env={"SLOSERVE_ADMIN_KEY": ADMIN_KEY})
    try:
        running.wait_ready()
        yield running
    finally:
        if running.process.poll() is None:
            running.stop()


@pytest.fixture(scope="session")
def http(server: Server) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {USER_KEY}"}
    with httpx.Client(base_url=server.url, headers=headers, timeout=120) as client:
        yield client
