"""A core that answers late, never, or is busy by order, in virtual time."""

import asyncio
from pathlib import Path

import pytest

from sloserve.core.clock import ManualClock
from sloserve.engine.metrics.process_page import REFRESH_S, Board, Boards
from sloserve.vllm_plugin.server.core_check import CONTROL_LIMITS, CoreCheck
from tests.client.virtual_time import run

LIMIT_S = 300.0


def check_of(boards: Boards | None = None) -> CoreCheck:
    """boards: of its API process; ``None`` where that is the only one."""
    return CoreCheck(LIMIT_S, boards or Boards(Board(0, 0), ManualClock()))


class Core:
    def __init__(self) -> None:
        self.questions = 0
        self.answers = asyncio.Event()
        self.answers.set()

    async def ask(self) -> None:
        self.questions += 1
        await self.answers.wait()


def test_only_a_question_that_stays_open_for_too_long_tells_of_a_hang(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        core = Core()
        check = check_of()
        for _ in range(3):  # hours without anybody who asks are no silence
            assert not await check.hangs(core.ask)
            await asyncio.sleep(10_000.0)
        core.answers.clear()
        assert not await check.hangs(core.ask)
        await asyncio.sleep(LIMIT_S - 1.0)  # a long step
        assert not await check.hangs(core.ask)
        await asyncio.sleep(1.0)
        assert await check.hangs(core.ask) and await check.hangs(core.ask)
        assert core.questions == 4, "one at a time"
        core.answers.set()
        assert not await check.hangs(core.ask) and not await check.hangs(core.ask)

    run(test())
    assert "has not responded for 300 s" in caplog.text


def test_an_answer_that_is_here_and_not_read_counts() -> None:
    """The process itself was stopped: its timers are over before it looks at its sockets."""

    async def test() -> None:
        core = Core()
        check = check_of()
        core.answers.clear()
        assert not await check.hangs(core.ask)
        await asyncio.sleep(2 * LIMIT_S)
        asyncio.get_running_loop().call_soon(core.answers.set)
        assert not await check.hangs(core.ask)

    run(test())


def test_what_an_operator_orders_may_take_as_long_as_it_likes() -> None:
    async def test() -> None:
        core = Core()
        check = check_of()
        core.answers.clear()

        assert not await check.hangs(core.ask)
        with pytest.raises(OSError, match="no such weights"), check.controlling():
            await asyncio.sleep(10 * LIMIT_S)
            assert not await check.hangs(core.ask)
            raise OSError("no such weights")
        await asyncio.sleep(LIMIT_S - 1.0)
        assert not await check.hangs(core.ask)
        await asyncio.sleep(1.0)
        assert await check.hangs(core.ask)
        core.answers.set()

    run(test())


@pytest.mark.parametrize("dies", [False, True])
def test_what_another_api_process_orders_is_no_hang_either(tmp_path: Path, dies: bool) -> None:
    """Each process asks the core for itself; a call of one keeps the core from answering all."""
    clock = ManualClock()
    own, other = (Boards(Board.published((), 0, rank, tmp_path), clock, tmp_path) for rank in range(2))

    async def test() -> None:
        core, check, ordering = Core(), check_of(own), check_of(other)
        with ordering.controlling():
            await asyncio.sleep(10_000.0)  # before the question came: it says nothing of this silence
        core.answers.clear()
        assert not await check.hangs(core.ask)
        await asyncio.sleep(1.0)
        with ordering.controlling():
            await asyncio.sleep(5 * LIMIT_S)
            assert not await check.hangs(core.ask), "the call goes on"
        if dies:
            other.own.close()
            clock.advance_to(clock.now_s() + REFRESH_S)
        await asyncio.sleep(LIMIT_S - 2.0)
        assert await check.hangs(core.ask) is dies, "the call is over, and who made it may be gone"
        await asyncio.sleep(1.0)
        assert await check.hangs(core.ask)
        core.answers.set()

    run(test())


def test_a_control_call_does_not_hide_a_hang() -> None:
    async def test() -> None:
        core = Core()
        check = check_of()
        core.answers.clear()
        assert not await check.hangs(core.ask)
        await asyncio.sleep(LIMIT_S)
        with check.controlling():
            await asyncio.sleep(1.0)
            assert await check.hangs(core.ask), "it hung before the call came"
        assert await check.hangs(core.ask)

        core.answers.set()
        await asyncio.sleep(0.0)
        assert not await check.hangs(core.ask)
        await asyncio.sleep(1.0)
        core.answers.clear()
        with check.controlling(), check.controlling():
            assert not await check.hangs(core.ask)
            await asyncio.sleep(CONTROL_LIMITS * LIMIT_S - 1.0)
            assert not await check.hangs(core.ask)
            await asyncio.sleep(1.0)
            assert await check.hangs(core.ask), "the call never returns"
        core.answers.set()

    run(test())


def test_an_error_is_an_answer() -> None:
    async def test() -> None:
        async def ask() -> None:
            raise RuntimeError("the engine runs another scheduler")

        check = check_of()
        for _ in range(3):
            assert not await check.hangs(ask)
            await asyncio.sleep(LIMIT_S)

    run(test())
