"""Other weights in place: nothing changes for a path without any, and a failure says what state it leaves."""

import asyncio
import sys
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sloserve.core.errors import ConfigError, EngineError, EngineNotReady
from sloserve.vllm_plugin.server import engine_control, parking, reloading
from tests import bounded


class Client:
    """Stands for ``AsyncLLM`` over two ranks; notes the calls, and what the second rank has against a reload.

    answers: of the two ranks to the call that reads the weights, both None where they have read them. refuses: from the
    n-th time on that the second is asked; 0: never. unpausable, unemptied: what the pause, and emptying caches, end in.
    """

    def __init__(
        self,
        answers: Sequence[Any] = (None, None),
        refuses: int = 0,
        unpausable: BaseException | None = None,
        unemptied: Exception | None = None,
    ) -> None:
        self.asked: list[Any] = []
        self.answers, self.unemptied = answers, unemptied
        self._refuses, self._unpausable = refuses, unpausable
        self.renderer = self.engine_core = self  # parts of vLLM's client, whose names differ

    async def clear_mm_cache_async(self) -> None:
        self.asked.append("clear_mm_cache")

    async def pause_scheduler_async(self, mode: str, clear_cache: bool) -> None:
        assert (mode, clear_cache) == ("wait", True)
        self.asked.append("pause")
        await self.check_guarded()
        if self._unpausable is not None:
            raise self._unpausable

    async def check_guarded(self) -> None:
        """While it goes on no other call ends the pause; that is no failure yet."""
        with pytest.raises(EngineNotReady, match="other weights are to be read; wait"):
            await self.resume_generation()
        assert reloading.failed_reload(self) is None

    async def reset_mm_cache(self) -> None:
        self.asked.append("reset_mm_cache")
        if self.unemptied is not None:
            raise self.unemptied

    async def resume_generation(self) -> None:
        reloading.check_weights_known(self)  # as install() has it
        self.asked.append("resume")

    async def wake_up(self) -> None:
        self.asked.append("wake")

    async def call_all(self, _: Any, method: str, *args: Any, **limit: Any) -> list[Any]:
        self.asked.append((method.removeprefix("sloserve_"), *args))
        if method == "sloserve_reload":
            assert limit == {"limit_s": None}
            await self.check_guarded()
            if isinstance(self.answers, BaseException):
                raise self.answers
            return list(self.answers)
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
        bounded.run(reloading.reload(client, models, str(path), "new", api_processes))
    finally:
        names = [one.name for one in shared]
        assert (names == ["new"]) == (client.asked[-2:] == ["reset_mm_cache", "resume"])
    return names


def test_every_rank_is_asked_before_any_reads_and_requests_go_on_after_all_have(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    client = Client()
    assert reloaded(client, tmp_path) == ["new"]
    before, after, reload = ("reload_refused", False), ("reload_refused", True), ("reload", str(tmp_path), "new")
    assert client.asked == [before, "clear_mm_cache", "pause", after, reload, "reset_mm_cache", "resume"]


@pytest.mark.parametrize("when", [1, 2])
def test_what_one_rank_refuses_none_does_and_requests_go_on(tmp_path: Path, when: int) -> None:
    (tmp_path / "model.safetensors").touch()
    client = Client(refuses=when)
    with pytest.raises(EngineNotReady, match="it sleeps; wake it"):
        reloaded(client, tmp_path)
    paused = ["clear_mm_cache", "pause", ("reload_refused", True), "resume"] if when == 2 else []
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
    assert client.asked == [("reload_refused", False), "clear_mm_cache", "pause", "resume"]


def test_a_session_is_a_reason_even_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its reply goes on with its next input, after the pause."""
    pauses = Enum("PauseState", ["UNPAUSED", "PAUSED_NEW"])
    # vLLM takes seconds to import; tests/equality reads weights anew with the engine itself.
    monkeypatch.setitem(sys.modules, "vllm.v1.core.sched.interface", SimpleNamespace(PauseState=pauses))
    compat = SimpleNamespace(live_requests=lambda scheduler: scheduler.running)
    monkeypatch.setitem(sys.modules, "sloserve.vllm_plugin.engine.compat", compat)
    monkeypatch.setattr("sloserve.vllm_plugin.engine.compat", compat, raising=False)
    running = [SimpleNamespace(request_id=str(i), num_output_tokens=3, resumable=i == 1) for i in range(2)]
    scheduler = SimpleNamespace(pause_state=pauses.UNPAUSED, running=running, set_policies=None)
    engine = SimpleNamespace(scheduler=scheduler, model_executor=SimpleNamespace(is_sleeping=False))
    reason = reloading._refused(engine, paused=False)
    assert reason is not None and reason.startswith("1 outputs have begun")
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


def refused_by_all(client: Client) -> None:
    """Nothing may put the engine to work: neither unpark, nor parking, nor a route of vLLM's own."""
    before = list(client.asked)
    for call in (parking.unpark(client), parking.park(client), client.resume_generation()):
        with pytest.raises(EngineNotReady, match="nothing is served until one succeeds: POST /sloserve/reload again"):
            bounded.run(call)
    assert client.asked == before


@pytest.mark.parametrize(
    ("answers", "unemptied", "said"),
    [
        ((None, RuntimeError("no such tensor")), None, "failed: rank 1: no such tensor"),
        ((None, "it sleeps; wake it"), None, "failed: rank 1: it sleeps; wake it"),
        ((RuntimeError("x"), "it sleeps"), None, "failed: rank 0: x; rank 1: it sleeps"),
        ((None, None), RuntimeError("stuck"), "failed: the multimodal caches were not emptied: stuck"),
        (asyncio.CancelledError(), None, "broke off"),
    ],
)
def test_after_a_reload_that_failed_anywhere_nothing_is_served_until_one_succeeds_everywhere(
    tmp_path: Path, answers: Any, unemptied: Exception | None, said: str
) -> None:
    (tmp_path / "model.safetensors").touch()
    client = Client(answers, unemptied=unemptied)
    with pytest.raises((EngineError, asyncio.CancelledError)) as ended:
        reloaded(client, tmp_path)
    assert not isinstance(ended.value, EngineNotReady)
    assert "resume" not in client.asked
    failure = reloading.failed_reload(client)
    assert failure is not None and failure.startswith("the reload of '") and f"' {said}; ranks may" in failure
    refused_by_all(client)

    client.answers = ("it sleeps", "it sleeps")
    with pytest.raises(EngineNotReady, match="it sleeps"):
        reloaded(client, tmp_path)
    refused_by_all(client)

    client.answers, client.unemptied, client.asked = (None, None), None, []
    assert reloaded(client, tmp_path) == ["new"]
    assert client.asked[:2] == ["clear_mm_cache", "pause"], (
        "it is paused already, so that no rank is asked whether it runs"
    )
    assert client.asked[-1] == "resume" and reloading.failed_reload(client) is None
    bounded.run(parking.unpark(client))


def test_what_no_rank_read_leaves_an_engine_that_goes_on(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    client = Client(("it sleeps; wake it", "it runs"))
    with pytest.raises(EngineNotReady, match="it sleeps; wake it"):
        reloaded(client, tmp_path)
    assert client.asked[-1] == "resume" and reloading.failed_reload(client) is None


def test_a_pause_that_cannot_be_ended_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(self: Client) -> None:
        raise RuntimeError("out of luck")

    (tmp_path / "model.safetensors").touch()
    monkeypatch.setattr(Client, "resume_generation", fails)
    with pytest.raises(EngineError, match="is over, and the engine stays paused: out of luck; POST /sloserve/unpark"):
        reloaded(Client(refuses=2), tmp_path)


def test_what_ends_a_pause_is_guarded_whoever_calls_it() -> None:
    client = Client()
    called = []

    async def stock(self: Client, *args: Any) -> None:
        called.append(args)

    bounded.run(reloading._guarded(stock)(client, 1))
    setattr(client, reloading._UNSURE, "unsure")
    with pytest.raises(EngineNotReady, match="unsure"):
        bounded.run(reloading._guarded(stock)(client, 2))
    assert called == [(1,)]
