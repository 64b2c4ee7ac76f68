"""The table of routes in docs/slos-on-the-wire.md names every route of vLLM, and a call that pools refuses SLOs."""

import importlib.util
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sloserve.api import callers
from sloserve.wire import context
from sloserve.wire.context import HTTPContext

PAGE = Path(__file__).parents[3] / "docs" / "slos-on-the-wire.md"
ROUTE = re.compile(
    r"\.(?:get|post|put|patch|delete|head|websocket|api_route|add_api_route|add_route|add_websocket_route|mount)\("
    r'\s*f?"(/[^"]*)"'
)
SUPERVISORS = ("cli", "launchers")
"""Their applications answer beside or before the server's own."""
DEVELOPMENT = ("serve/dev", "rl/online")
ENGINE_CALL = re.compile(r"engine_client\.(generate|encode)\(|label_reads\(")


def vllm_entrypoints() -> Path:
    spec = importlib.util.find_spec("vllm")
    assert spec is not None and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "entrypoints"


def rows() -> list[tuple[frozenset[str], str]]:
    """The routes of each row of the table, and what it says of them."""
    table = PAGE.read_text(encoding="utf-8").partition("## Routes")[2].partition("\n## ")[0]
    cells = [line.strip("|").split(" | ") for line in table.splitlines() if line.startswith("| `/")]
    return [(frozenset(re.findall(r"`(/[^`]*)`", routes)), says) for routes, says in cells]


def routes_of(*folders: str) -> set[str]:
    """vLLM's routes, as its source declares them below these folders of its entry points; all without folders."""
    root, found = vllm_entrypoints(), set()
    for file in root.rglob("*.py"):
        at = file.relative_to(root).as_posix()
        if at.startswith(folders) if folders else not at.startswith((*SUPERVISORS, *DEVELOPMENT)):
            found |= set(ROUTE.findall(file.read_text(encoding="utf-8")))
    return found


@pytest.mark.slow
def test_every_route_of_vllm_is_in_the_table_once() -> None:
    listed = [route for routes, _ in rows() for route in routes]
    assert len(listed) == len(set(listed))
    served = routes_of() | {"/metrics"}
    assert set(listed) - (routes_of(*DEVELOPMENT) - served) == served, "a route came, went or was renamed"


@pytest.mark.slow
def test_routes_stand_where_what_they_call_puts_them() -> None:
    kept, pools, either, _, nothing = (routes for routes, _ in rows())
    assert pools == routes_of("pooling")
    assert routes_of("speech_to_text/realtime") == {"/v1/realtime"}
    # Whatever calls the engine is below one of these folders; a new one has to be looked at.
    root = vllm_entrypoints()
    callers = {
        file.relative_to(root).parent.as_posix()
        for file in root.rglob("*.py")
        if ENGINE_CALL.search(file.read_text(encoding="utf-8"))
    }
    assert callers == {
        "generate", "generate/beam_search", "generate/generative_scoring", "generate/structured_decisions",
        "openai/chat_completion", "openai/completion", "openai/responses", "pooling/base",
        "scale_out/token_in_token_out", "speech_to_text/base", "speech_to_text/realtime",
    }  # fmt: skip
    generating = routes_of(
        "generate", "openai", "anthropic", "cohere", "scale_out/token_in_token_out", "speech_to_text/tr"
    )
    assert kept == generating - nothing - either


@pytest.mark.vllm
def test_a_call_that_pools_is_refused_before_the_engine_sees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.exceptions import VLLMValidationError
    from vllm.v1.engine.async_llm import AsyncLLM

    from sloserve.vllm_plugin.server.front_end_of import ATTRIBUTE
    from sloserve.vllm_plugin.server.install import install
    from tests.vllm_plugin.server.fake_engine import Metrics, Server

    counted = Metrics()
    monkeypatch.setattr("sloserve.engine.metrics.collectors.install", lambda *_: counted)
    install()

    class Client(AsyncLLM):
        def __init__(self) -> None:
            """Start no engine."""

        def __del__(self) -> None:
            """There is none to stop."""

    engine: Any = Client()
    other: Any = Client()
    setattr(engine, ATTRIBUTE, Server().front_end)
    params = SimpleNamespace()
    http = HTTPContext(0.0)
    http.read_headers([(b"x-slo-e2e-ms", b"5")])
    token = context.current.set(http)
    try:
        with pytest.raises(VLLMValidationError, match="this route keeps no SLO"):
            engine.encode("text", params, "id")
        other.encode("text", params, "id")  # an engine that runs another scheduler than ours
        context.current.set(HTTPContext(0.0))
        engine.encode("text", params, "id")
    finally:
        context.current.reset(token)
    assert counted.reasons == ["invalid-request"]


@pytest.mark.slow
def test_a_tenants_key_opens_every_route_that_calls_the_engine_and_none_that_controls_it() -> None:
    kept, pools, either, _, _ = (routes for routes, _ in rows())
    calling = {route for route in kept | pools | either if not route.startswith(("/abort", "/inference/v1/abort"))}
    assert {route for route in calling if not callers.is_clients(route)} == set()
    development = {route for route in routes_of(*DEVELOPMENT) if not route.startswith("/v1/")}
    assert {route for route in development if callers.is_clients(route)} == set()
    for route in (
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "/start_profile",
        "/scale_elastic_ep",
        "/metrics",
    ):
        assert not callers.is_clients(route)
