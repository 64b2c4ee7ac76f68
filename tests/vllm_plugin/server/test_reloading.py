"""Other weights in place: nothing changes for a path without any, and a failure says what state it leaves."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sloserve.core.errors import ConfigError, EngineError
from sloserve.vllm_plugin.server import reloading


class Client:
    """Stands for ``AsyncLLM``; notes the calls, and fails at the reload if it is to."""

    def __init__(self, fails: bool = False) -> None:
        self.asked: list[str] = []
        self._fails = fails

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **kwargs: Any) -> None:
            self.asked.append(name)
            if self._fails and name == "collective_rpc":
                raise RuntimeError("no such tensor")

        return call


def reloaded(client: Client, path: Path) -> list[str]:
    """Names that the server answers to afterwards."""
    shared = [SimpleNamespace(name="old", model_path="old")]
    try:
        asyncio.run(reloading.reload(client, SimpleNamespace(base_model_paths=shared), str(path), "new"))
    finally:
        names = [one.name for one in shared]
    return names


def test_caches_are_emptied_and_the_name_changes_before_requests_go_on(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    client = Client()
    assert reloaded(client, tmp_path) == ["new"]
    pause, reload, *resets, resume = client.asked
    assert (pause, reload, resume) == ("pause_generation", "collective_rpc", "resume_generation")
    assert resets == ["reset_prefix_cache", "reset_mm_cache"]


def test_a_path_without_weights_changes_nothing(tmp_path: Path) -> None:
    client = Client()
    for path in (tmp_path, tmp_path / "missing", Path("a\0b")):
        with pytest.raises(ConfigError, match="weights_path: "):
            reloaded(client, path)
    assert not client.asked


def test_weights_that_were_not_read_leave_a_paused_engine(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    client = Client(fails=True)
    with pytest.raises(EngineError, match="no such tensor; kill it"):
        reloaded(client, tmp_path)
    assert "resume_generation" not in client.asked
