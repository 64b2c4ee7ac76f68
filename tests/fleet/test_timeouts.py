"""A limit of an HTTP client that is reached is named with its value."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from sloserve.core.errors import EngineError
from sloserve.fleet.agent import engine_client
from sloserve.fleet.agent.engine_client import EngineClient
from sloserve.fleet.contract.endpoint import Refusal, Refused
from sloserve.fleet.gateway import agent_connections
from sloserve.fleet.gateway.agent_connections import AgentConnections, BrokenResponse
from tests import bounded

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n"


async def _hangs(*given: Any, **named: Any) -> Any:
    await asyncio.Event().wait()


def _no_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no connection be made from now on, and have clients that are made from now on give up soon."""
    for module in (engine_client, agent_connections):
        monkeypatch.setattr(module, "_CONNECT_S", 0.05)
    monkeypatch.setattr(asyncio.get_running_loop(), "create_unix_connection", _hangs)


async def _served(path: Path, response: bytes) -> asyncio.Server:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(response)
        await reader.read()
        writer.close()

    return await asyncio.start_unix_server(handle, path)


def test_a_control_call_names_the_connection_or_the_response(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        client = EngineClient(tmp_path / "e", "key")
        async with await _served(tmp_path / "e", b""):
            with pytest.raises(EngineError, match=r"GET /health: no response within 0\.1 s"):
                await client.call("GET", "/health", limit_s=0.1)
            await client.close()
            _no_connections(monkeypatch)
            client = EngineClient(tmp_path / "e", "key")
            with pytest.raises(EngineError, match=r"GET /health: no connection within 0\.05 s"):
                await client.call("GET", "/health", limit_s=60.0)
            await client.close()

    bounded.run(test())


def test_an_agent_without_a_connection_has_not_seen_the_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)

    async def test() -> None:
        agents = AgentConnections(0.5)
        endpoint = f"unix:{tmp_path}/a"
        async with await _served(tmp_path / "a", HEAD):
            answer = await agents.send(endpoint, "a/0", "/v1/x", [], b"{}", "m")
            with pytest.raises(BrokenResponse, match=r"nothing came for 0\.5 s"):
                await answer.read()
            answer.close()
        async with await _served(tmp_path / "a", b""):
            with pytest.raises(Refused) as refused:
                await agents.send(endpoint, "a/0", "/v1/x", [], b"{}", "m")
            assert refused.value.reason is Refusal.DIED and "nothing came for 0.5 s" in caplog.text
            await agents.close()
            _no_connections(monkeypatch)
            agents = AgentConnections(0.5)
            with pytest.raises(Refused) as refused:
                await agents.send(endpoint, "a/0", "/v1/x", [], b"{}", "m")
            assert refused.value.reason is Refusal.FAILED and "no connection within 0.05 s" in caplog.text
        await agents.close()

    bounded.run(test())
