"""Stopping under load around a fake engine client: who may finish, who is told, and who comes no more."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from sloserve.core.errors import ShuttingDown
from sloserve.vllm_plugin.server import draining
from sloserve.vllm_plugin.server.draining import Drain
from tests import bounded


class Engine:
    """vLLM's AsyncLLM, as far as it is touched; its requests are by id what became of them."""

    def __init__(self, *requests: str) -> None:
        self.told: list[Exception] = []
        self.aborted: list[str] = []
        self.output_processor = SimpleNamespace(
            request_states=dict.fromkeys(requests), propagate_error=self.told.append
        )
        self.output_handler: Any = None

    async def abort(self, request_ids: list[str], internal: bool) -> None:
        assert internal
        self.aborted += request_ids
        self.output_processor.request_states.clear()


@pytest.fixture(autouse=True)
def without_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = SimpleNamespace(stopped=lambda error: error)
    monkeypatch.setitem(sys.modules, "sloserve.vllm_plugin.server.stopped", plain)
    monkeypatch.setattr(draining, "POLL_S", 0.001)


def serving(engine: Engine, body: Callable[[Callable[..., Awaitable[Any]]], Awaitable[None]]) -> None:
    """Runs ``body`` in an event loop that serves ``engine``; it is given what runs a call in another thread."""

    async def go() -> None:
        engine.output_handler = asyncio.create_task(asyncio.Event().wait())
        await body(asyncio.to_thread)
        engine.output_handler.cancel()

    bounded.run(go())


def test_who_finishes_in_time_is_left_alone_and_nobody_else_comes() -> None:
    engine, drain = Engine("a"), Drain()
    drain.in_flight = 1
    drain.check_open()

    async def body(thread: Callable[..., Awaitable[Any]]) -> None:
        async def end() -> None:
            while not drain.begun:
                await asyncio.sleep(0)
            with pytest.raises(ShuttingDown, match="accepts no more requests; retry in 30 s") as refused:
                drain.check_open()
            assert refused.value.retry_after_s == 30
            drain.check_running()  # what was accepted may still reach the engine
            engine.output_processor.request_states.clear()
            drain.in_flight = 0

        ending = asyncio.create_task(end())
        left_s = await thread(drain.run, engine, 1000.0)
        await ending
        assert 990 < left_s < 1000

    serving(engine, body)
    assert engine.told == engine.aborted == []


@pytest.mark.parametrize("timeout_s", [0.0, None])
def test_who_does_not_finish_is_told_and_taken_from_the_engine(timeout_s: float | None) -> None:
    engine, drain = Engine("a", "0_b"), Drain()
    drain.in_flight = 3  # one has not reached the engine yet

    async def body(thread: Callable[..., Awaitable[Any]]) -> None:
        assert await thread(drain.run, engine, timeout_s) == timeout_s
        with pytest.raises(ShuttingDown, match="stopped before the request began"):
            drain.check_running()
        assert await thread(drain.run, engine, 7.0) == 7.0  # vLLM shuts its client down twice

    serving(engine, body)
    assert engine.aborted == ["a", "0_b"]
    assert [str(error) for error in engine.told] == [
        "the server is shutting down and gave the request up; retry in 1 s"
    ]


def test_in_the_loop_itself_and_without_one_nothing_is_waited_for() -> None:
    engine, drain = Engine("a"), Drain()
    assert drain.run(engine, 5.0) == 5.0  # it never served

    async def body(thread: Callable[..., Awaitable[Any]]) -> None:
        assert drain.run(engine, 5.0) == 5.0

    serving(engine, body)
    assert not drain.begun and engine.told == []


def test_an_engine_that_fails_meanwhile_is_stopped_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    engine, drain = Engine("a"), Drain()
    engine.output_processor.propagate_error = {}.__getitem__

    async def body(thread: Callable[..., Awaitable[Any]]) -> None:
        assert await thread(drain.run, engine, 0.0) == 0.0

    serving(engine, body)
    assert "could not end the running requests" in caplog.text


def test_who_asked_for_it_is_told_when_the_stop_begins_or_at_once_if_it_has() -> None:
    engine, drain, told = Engine("a"), Drain(), []

    def tell() -> None:
        told.append((drain.begun, list(engine.output_processor.request_states)))
        asyncio.get_running_loop()  # it may use the event loop
        raise RuntimeError("is logged")

    async def body(thread: Callable[..., Awaitable[Any]]) -> None:
        drain.on_begin(tell)
        assert told == []
        await thread(drain.run, engine, 0.0)
        assert told == [(True, ["a"])] and engine.aborted == ["a"]
        drain.on_begin(lambda: told.append((drain.begun, [])))

    serving(engine, body)
    assert told[1:] == [(True, [])]
