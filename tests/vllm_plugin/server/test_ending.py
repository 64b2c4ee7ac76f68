"""When a signal ends the process while an engine starts, and which processes end with their starter."""

import asyncio
import multiprocessing
import os
import signal
import sys
from types import ModuleType
from typing import Any

import pytest

from sloserve.core import process_death
from sloserve.vllm_plugin.server import ending
from tests import bounded


@pytest.fixture
def entry(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stand-in for vLLM's module that runs its HTTP server."""
    module: Any = ModuleType(ending._ENTRY)
    monkeypatch.setitem(sys.modules, ending._ENTRY, module)
    return module


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.usefixtures("entry")
def test_a_signal_ends_the_process_while_the_engine_starts(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as ended, ending.stoppable_start():
        os.kill(os.getpid(), number)
    assert ended.value.code == 128 + number
    assert signal.getsignal(number) is before


@pytest.mark.usefixtures("entry")
def test_a_signal_that_came_before_the_start_ends_the_process_before_it() -> None:
    async def within() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()  # as asyncio does on the first SIGINT
        with ending.stoppable_start():
            pytest.fail("the engine starts")

    with pytest.raises(SystemExit) as ended:
        bounded.run(within())
    assert ended.value.code == 128 + signal.SIGINT


def test_without_the_http_server_signals_are_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, ending._ENTRY, raising=False)
    before = signal.getsignal(signal.SIGTERM)
    with ending.stoppable_start():
        assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("name", "watched"),
    [
        ("EngineCore", True),
        ("EngineCore_DP1", True),
        ("VllmWorker-0", True),
        ("ApiServer_0", True),
        ("MainProcess", False),
        ("SpawnProcess-1", False),
    ],
)
def test_only_processes_that_vllm_started_end_with_their_starter(
    monkeypatch: pytest.MonkeyPatch, name: str, watched: bool
) -> None:
    calls: list[bool] = []
    monkeypatch.setattr(multiprocessing.current_process(), "name", name)
    monkeypatch.setattr(process_death, "end_with_starter", lambda ask: calls.append(ask))
    ending.end_with_starter()
    assert calls == [True] * watched


class App:
    """An application whose state goes when it ends, as vLLM's does."""

    class state:
        engine_client = object()


@pytest.mark.parametrize("has_failed", [True, False])
def test_a_server_whose_engine_failed_ends_with_status_1(entry: Any, has_failed: bool) -> None:
    ended = []

    async def serve_http(app: Any) -> Any:
        del app.state

        async def ending_of() -> None:
            ended.append(True)

        return ending_of()

    entry.serve_http = serve_http
    ending.fail_with_engine(lambda engine: has_failed and engine is App.state.engine_client)
    ending.fail_with_engine(lambda engine: False)  # a second call changes nothing

    async def run() -> None:
        app = App()
        app.state = App.state  # type: ignore[misc]
        await (await entry.serve_http(app))

    if has_failed:
        with pytest.raises(SystemExit) as status:
            bounded.run(run())
        assert status.value.code == 1
    else:
        bounded.run(run())
    assert ended == [True]
