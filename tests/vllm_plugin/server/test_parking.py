"""Parking from the API process: every rank swaps out before any sleeps, and failures say what state that leaves."""

import asyncio
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from sloserve.core.errors import ConfigError, EngineError
from sloserve.vllm_plugin.server import engine_control, parking
from tests import bounded


class Engines:
    """Stands for vLLM's client of two ranks; notes what it is asked for, and fails at what it is told to."""

    def __init__(self, fails: str = "") -> None:
        self.asked: list[tuple[Any, ...]] = []
        self._fails = fails

    def _note(self, *call: Any) -> None:
        self.asked.append(call)
        if self._fails == call[0]:
            raise RuntimeError("out of luck")

    async def sleep(self, level: int, mode: str) -> None:
        self._note("sleep", level, mode)

    async def wake_up(self) -> None:
        self._note("wake")

    async def call_all(self, _: Any, method: str, *args: Any) -> list[Any]:
        self._note(method, *args)
        return [
            {"requests": 2, "kept": 2},
            RuntimeError("dead") if self._fails == "park" else {"requests": 1, "kept": 0},
        ]


def parked(engines: Engines, monkeypatch: pytest.MonkeyPatch, level: int = 1) -> Any:
    monkeypatch.setattr(engine_control, "call_all", engines.call_all)
    return bounded.run(parking.park(engines, level))


@pytest.mark.parametrize("level", parking.LEVELS)
def test_all_ranks_swap_out_before_any_sleeps(level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    engines = Engines()
    assert parked(engines, monkeypatch, level) == [{"requests": 2, "kept": 2}, {"requests": 1, "kept": 0}]
    bounded.run(parking.unpark(engines))
    assert engines.asked == [("sloserve_park", level), ("sleep", level, "keep"), ("wake",)]


@pytest.mark.parametrize(("fails", "said"), [("park", "rank 1: dead"), ("sleep", "out of luck")])
def test_an_engine_that_was_not_parked_goes_on(fails: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause that parking begins stays nowhere, also on the rank on which nothing failed."""
    engines = Engines(fails)
    with pytest.raises(EngineError, match=f"the engine was not parked: {said}; its requests go on"):
        parked(engines, monkeypatch)
    assert ("sleep", 1, "keep") not in engines.asked or fails == "sleep"
    assert engines.asked[-1] == ("wake",)


def test_a_call_that_is_broken_off_leaves_no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    engines = Engines()

    async def sleep(level: int, mode: str) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(engines, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        parked(engines, monkeypatch)
    assert engines.asked == [("sloserve_park", 1), ("wake",)]


def test_an_engine_that_neither_parks_nor_wakes_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    engines = Engines("park")

    async def wake_up() -> None:
        raise RuntimeError("deaf")

    monkeypatch.setattr(engines, "wake_up", wake_up)
    with pytest.raises(
        EngineError, match="rank 1: dead, and the engine stays paused: deaf; POST /sloserve/unpark resumes it"
    ):
        parked(engines, monkeypatch)


def test_a_level_that_forgets_the_weights_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    engines = Engines("wake")
    with pytest.raises(ConfigError, match="level: 2 is not one of 0, 1"):
        parked(engines, monkeypatch, 2)
    assert not engines.asked
    with pytest.raises(EngineError, match="the engine does not wake: out of luck"):
        bounded.run(parking.unpark(engines))


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> Any:
    """vLLM's EngineCore, as far as parking extends it: one whose calls to workers fail where the test says so."""

    class EngineCore:
        def __init__(self, **scheduler: Any) -> None:
            self.told = 0
            self.scheduler = SimpleNamespace(**scheduler)
            if scheduler:
                self.scheduler.weights_changed = lambda: setattr(self, "told", self.told + 1)

        def collective_rpc(self, method: str, fails: bool = False) -> str:
            if fails:
                raise RuntimeError("out of luck")
            return method

    module = ModuleType("vllm.v1.engine.core")
    module.EngineCore = EngineCore  # type: ignore[attr-defined]
    for name in ("vllm", "vllm.v1", "vllm.v1.engine"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    parking.install()
    return EngineCore


def test_an_engine_is_extended_once(core: Any) -> None:
    once = core.collective_rpc
    assert core.sloserve_park is not None
    parking.install()
    assert core.collective_rpc is once


@pytest.mark.parametrize(("method", "told"), [("reload_weights", 1), ("finish_weight_update", 1), ("add_lora", 0)])
def test_the_scheduler_is_told_when_weights_change(core: Any, method: str, told: int) -> None:
    engine = core(parked=False)
    assert engine.collective_rpc(method) == method
    assert engine.told == told


def test_whatever_is_called_while_parked_may_have_changed_weights(core: Any) -> None:
    engine = core(parked=True)
    engine.collective_rpc("unknown")
    with pytest.raises(RuntimeError, match="out of luck"):
        engine.collective_rpc("unknown", fails=True)
    assert engine.told == 2


def test_other_schedulers_are_left_alone(core: Any) -> None:
    assert core().collective_rpc("reload_weights") == "reload_weights"
