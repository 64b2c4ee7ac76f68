"""The admin routes as vLLM's endpoint plugin: the same routes behind the same key, and none without one."""

from importlib.metadata import entry_points
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from sloserve.api.admin import PREFIX
from sloserve.api.endpoint_plugin import AdminRoutes
from sloserve.scheduler.settings import ADMIN_KEY
from sloserve.vllm_plugin.server import engine_control

BEARER = {"Authorization": "Bearer secret"}


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> FastAPI:
    """Stands for vLLM's, with an engine of one rank."""

    async def status(engine: Any) -> list[dict[str, Any]]:
        assert engine == "the engine"
        return [{"rank": 0}]

    monkeypatch.setattr(engine_control, "status", status)
    monkeypatch.setenv(ADMIN_KEY, "secret")
    app = FastAPI()
    app.state.engine_client = "the engine"
    return app


def check_routes(app: FastAPI) -> None:
    client = TestClient(app)
    assert client.get(PREFIX + "status", headers=BEARER).json() == [{"rank": 0}]
    assert client.get(PREFIX + "status").status_code == 401
    assert client.get(PREFIX + "docs", headers=BEARER).status_code == 404


def test_the_routes_are_there_with_a_key(app: FastAPI) -> None:
    AdminRoutes().attach_router(app)
    check_routes(app)


def test_without_a_key_there_are_none_and_the_log_says_why(
    app: FastAPI, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(ADMIN_KEY)
    AdminRoutes().attach_router(app)
    assert TestClient(app).get(PREFIX + "status", headers=BEARER).status_code == 404
    assert ADMIN_KEY in caplog.text


def test_ready_is_there_without_a_key(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ADMIN_KEY)
    app.state.engine_client = None
    AdminRoutes().attach_router(app)
    answer = TestClient(app).get("/ready")
    assert (answer.status_code, answer.json()) == (200, {"status": "ready"})


def test_vllm_finds_the_plugin_by_its_name() -> None:
    (found,) = entry_points(group="vllm.endpoint_plugins", name="sloserve")
    assert found.load() is AdminRoutes


@pytest.mark.vllm
@pytest.mark.parametrize("plugins", ["sloserve", None])
def test_vllm_loads_it_where_it_is_named(app: FastAPI, monkeypatch: pytest.MonkeyPatch, plugins: str | None) -> None:
    from vllm.plugins.endpoint_plugins.interface import EndpointPlugin, attach_endpoint_plugins

    if plugins is None:
        monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    else:
        monkeypatch.setenv("VLLM_PLUGINS", plugins)
    assert isinstance(AdminRoutes(), EndpointPlugin)
    attach_endpoint_plugins(app, ("generate",))
    if plugins:
        check_routes(app)
    else:
        assert TestClient(app).get(PREFIX + "status", headers=BEARER).status_code == 404
