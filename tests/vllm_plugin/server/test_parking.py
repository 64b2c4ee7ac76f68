"""Parking from the API process: every rank swaps out before any sleeps, and failures say what state that leaves."""

import asyncio
from typing import Any

import pytest

from sloserve.core.errors import ConfigError, EngineError
from sloserve.vllm_plugin.server import engine_control, parking


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
    return asyncio.run(parking.park(engines, level))


@pytest.mark.parametrize("level", parking.LEVELS)
def test_all_ranks_swap_out_before_any_sleeps(level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    engines = Engines()
    assert parked(engines, monkeypatch, level) == [{"requests": 2, "kept": 2}, {"requests": 1, "kept": 0}]
    asyncio.run(parking.unpark(engines))
    assert engines.asked == [("sloserve_park", level), ("sleep", level, "keep"), ("wake",)]


@pytest.mark.parametrize(("fails", "said"), [("park", "rank 1: dead"), ("sleep", "out of luck")])
def test_what_fails_leaves_an_engine_that_unpark_wakes(fails: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engines = Engines(fails)
    with pytest.raises(EngineError, match=f"may not sleep: {said}; POST /sloserve/unpark has it go on"):
        parked(engines, monkeypatch)
    assert ("sleep", 1, "keep") not in engines.asked or fails == "sleep"


def test_a_level_that_forgets_the_weights_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    engines = Engines("wake")
    with pytest.raises(ConfigError, match="level: 2 is not one of 0, 1"):
        parked(engines, monkeypatch, 2)
    assert not engines.asked
    with pytest.raises(EngineError, match="the engine does not wake: out of luck"):
        asyncio.run(parking.unpark(engines))
