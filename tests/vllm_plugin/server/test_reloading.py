"""Other weights in place: nothing changes for a path without any, and a failure says what state it leaves."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sloserve.core.errors import ConfigError, EngineError, EngineNotReady
from sloserve.vllm_plugin.server import engine_control, reloading


class Client:
    """Stands for ``AsyncLLM`` over two ranks; notes the calls, and what the second rank has against a reload.

    fails: at the reload. refuses: from the n-th time on that it is asked; 0: never. unpausable: what the pause ends in.
    """

    def __init__(self, fails: bool = False, refuses: int = 0, unpausable: BaseException | None = None) -> None:
        self.asked: list[Any] = []
        self._fails, self._refuses, self._unpausable = fails, refuses, unpausable

    async def pause_generation(self, mode: str, clear_cache: bool) -> None:
        assert (mode, clear_cache) == ("wait", True)
        self.asked.append("pause")
        if self._unpausable is not None:
            raise self._unpausable

    async def reset_mm_cache(self) -> None:
        self.asked.append("reset_mm_cache")

    async def resume_generation(self) -> None:
        self.asked.append("resume")

    async def call_all(self, _: Any, method: str, *args: Any, **limit: Any) -> list[Any]:
        self.asked.append((method.removeprefix("sloserve_"), *args))
        if method == "sloserve_reload":
            assert limit == {"limit_s": None}
            return [None, RuntimeError("no such tensor") if self._fails else None]
        times = sum(call[0] == "reload_refused" for call in self.asked)
        return [None, "it sleeps; wake it" if self._refuses and times >= self._refuses else None]


@pytest.fixture(autouse=True)
def ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_control, "call_all", lambda client, *args, **how: client.call_all(client, *args, **how))


def reloaded(client: Client, path: Path, api_processes: int = 1) -> list[str]:
    """Names that the server answers to afterwards."""
    shared = [SimpleNamespace(name="old", model_path="old")]
    models = SimpleNamespace(base_model_paths=shared)
    try:
        asyncio.run(reloading.reload(client, models, str(path), "new", api_processes))
    finally:
        names = [one.name for one in shared]
        assert (names == ["new"]) == (client.asked[-3:-2] == [("reload", str(path), "new")])
    return names


def test_every_rank_is_asked_before_any_reads_and_requests_go_on_after_all_have(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    client = Client()
    assert reloaded(client, tmp_path) == ["new"]
    before, after, reload = ("reload_refused", False), ("reload_refused", True), ("reload", str(tmp_path), "new")
    assert client.asked == [before, "pause", after, reload, "reset_mm_cache", "resume"]


@pytest.mark.parametrize("when", [1, 2])
def test_what_one_rank_refuses_none_does_and_requests_go_on(tmp_path: Path, when: int) -> None:
    (tmp_path / "model.safetensors").touch()
    client = Client(refuses=when)
    with pytest.raises(EngineNotReady, match="it sleeps; wake it"):
        reloaded(client, tmp_path)
    paused = ["pause", ("reload_refused", True), "resume"] if when == 2 else []
    assert client.asked == [("reload_refused", False), *paused]


@pytest.mark.parametrize(
    ("unpausable", "seen"),
    [(RuntimeError("Failed to reset the KV connector cache."), EngineError), (asyncio.CancelledError(), None)],
)
def test_an_engine_that_cannot_be_paused_goes_on(
    tmp_path: Path, unpausable: BaseException, seen: type[BaseException] | None
) -> None:
    (tmp_path / "model.safetensors").touch()
    client = Client(unpausable=unpausable)
    with pytest.raises(seen or type(unpausable), match="not read: .* cannot be paused: Failed" if seen else None):
        reloaded(client, tmp_path)
    assert client.asked == [("reload_refused", False), "pause", "resume"]


def test_a_session_is_a_reason_even_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its reply goes on with its next input, after the pause."""
    from vllm.v1.core.sched.interface import PauseState

    from sloserve.vllm_plugin.engine import compat

    running = [SimpleNamespace(request_id=str(i), num_output_tokens=3, resumable=i == 1) for i in range(2)]
    scheduler = SimpleNamespace(pause_state=PauseState.UNPAUSED, running=running, set_policies=None)
    engine = SimpleNamespace(scheduler=scheduler, model_executor=SimpleNamespace(is_sleeping=False))
    monkeypatch.setattr(compat, "live_requests", lambda of: of.running)
    reason = reloading._refused(engine, paused=False)
    assert reason is not None and reason.startswith("1 replies have begun")
    running.pop()
    assert reloading._refused(engine, paused=False) is None


def test_a_server_of_several_processes_would_take_the_name_in_one(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    client = Client()
    with pytest.raises(ConfigError, match="2 API processes.*--api-server-count 1"):
        reloaded(client, tmp_path, api_processes=2)
    assert not client.asked


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
    assert client.asked[-1] == ("reload", str(tmp_path), "new")
