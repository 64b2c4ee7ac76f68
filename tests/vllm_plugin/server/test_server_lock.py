"""Two API processes that change policies at once: every rank ends with the same, and each answer tells what was so."""

import asyncio
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.datastructures import State

from sloserve.api.admin import PREFIX, AdminApp
from sloserve.core.clock import ManualClock
from sloserve.core.errors import EngineError
from sloserve.engine.metrics import page_folder
from sloserve.engine.metrics.process_page import Board, Boards
from sloserve.vllm_plugin.server import engine_control, server_lock
from sloserve.vllm_plugin.server.live_settings import LiveSettings
from sloserve.vllm_plugin.server.server_lock import ServerLock
from tests import bounded

KEY = "secret"
POLICIES = ("edf", "sjf")


class Rank:
    """Follows what it is told last."""

    def __init__(self) -> None:
        self.policy = "fcfs"

    def answer(self, method: str, *args: Any) -> Any:
        if method == "sloserve_set_policies":
            self.policy = args[1]
            return None
        return {"policy": self.policy}


class Process:
    """One API process of a server, whose calls reach the ranks one after another, in an order of its own."""

    def __init__(self, ranks: list[Rank]) -> None:
        clock = ManualClock()
        live = LiveSettings(None, 2, Boards(Board(4, 1), clock), clock)
        engine = SimpleNamespace(ranks=ranks, sloserve_front_end=SimpleNamespace(processes=2, live=live))
        self.state = State({"engine_client": engine})
        self._admin = AdminApp(KEY)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._admin({**scope, "app": self}, receive, send)

    async def put(self, policy: str) -> list[dict[str, Any]]:
        transport = httpx.ASGITransport(app=self)
        headers = {"Authorization": f"Bearer {KEY}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://server", headers=headers) as client:
            answer = await client.put(PREFIX + "policy", json={"policy": policy})
            found: list[dict[str, Any]] = answer.raise_for_status().json()
            return found


@pytest.fixture(autouse=True)
def looks_at_each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_lock, "LOOK_AGAIN_S", 0.0)


@pytest.fixture
def put_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[list[Rank]], list[Any]]:
    async def call_all(engine: Any, method: str, *args: Any) -> list[Any]:
        found = []
        for rank in engine.ranks:
            found.append(rank.answer(method, *args))
            await asyncio.sleep(0)
        return found

    async def both(ranks: list[Rank]) -> list[Any]:
        processes = Process(ranks), Process(ranks[::-1])
        puts = (process.put(policy) for process, policy in zip(processes, POLICIES, strict=True))
        return list(await asyncio.gather(*puts))

    monkeypatch.setattr(engine_control, "call_all", call_all)
    monkeypatch.setattr(page_folder, "page_folder", lambda: tmp_path)
    return lambda ranks: bounded.run(both(ranks))


def test_two_changes_at_once_leave_all_ranks_with_one_policy(put_at_once: Callable[[list[Rank]], list[Any]]) -> None:
    ranks = [Rank(), Rank()]
    answers = put_at_once(ranks)
    assert answers == [[{"policy": policy}] * 2 for policy in POLICIES]
    assert len({rank.policy for rank in ranks}) == 1


def test_the_lock_is_the_server_s_and_ends_with_it(tmp_path: Path) -> None:
    file = page_folder.lock_file(tmp_path)
    assert page_folder.lock_file(tmp_path) == file
    file.touch()
    page_folder.sweep(tmp_path)
    assert file.exists(), "the process that started this one lives"
    gone = file.with_name(file.name.replace("-", "1-", 1))
    gone.touch()
    page_folder.sweep(tmp_path)
    assert file.exists() and not gone.exists()


def test_what_cannot_be_locked_changes_nothing(tmp_path: Path) -> None:
    async def change() -> None:
        async with ServerLock().held(lambda: tmp_path / "nowhere" / "lock"):
            raise AssertionError("made without the lock")

    with pytest.raises(EngineError, match="nothing was changed, since another API process may be changing something"):
        bounded.run(change())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("dies", [False, True])
def test_a_forked_child_has_no_part_in_the_lock(tmp_path: Path, dies: bool) -> None:
    """It outlives the change, or the process that died in the midst of it: others make theirs."""
    file = tmp_path / "lock"
    (runs, has_begun), (waits, ends) = os.pipe(), os.pipe()

    async def change() -> None:
        async with ServerLock().held(lambda: file):
            if os.fork() == 0:
                os.close(ends)
                os.write(has_begun, b"x")
                os.read(waits, 1)
                os._exit(0)
            if dies:
                os._exit(0)

    if (process := os.fork()) == 0:
        bounded.run(change())
        os._exit(0)
    with bounded.within("the end of the child and the start of its own"):
        os.waitpid(process, 0)
        os.read(runs, 1)
    try:
        with file.open() as other:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        for fd in (runs, has_begun, waits, ends):
            os.close(fd)


def test_two_of_one_server_have_it_in_turn_and_one_that_fails_lets_go(tmp_path: Path) -> None:
    inside: list[str] = []

    async def hold(lock: ServerLock, name: str) -> None:
        async with lock.held(lambda: tmp_path / "lock"):
            inside.append(name)
            await asyncio.sleep(0)
            inside.append(name)
            raise KeyError(name)

    async def both() -> list[Any]:
        return list(await asyncio.gather(hold(ServerLock(), "a"), hold(ServerLock(), "b"), return_exceptions=True))

    assert [type(error) for error in bounded.run(both())] == [KeyError, KeyError]
    assert inside in (["a", "a", "b", "b"], ["b", "b", "a", "a"])
