"""An agent on a node: started again when it ends, given a changed file, and not left running forever."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from sloserve.core.clock import ManualClock
from sloserve.fleet.pool.agent_child import AgentChild
from sloserve.fleet.pool.kept_agent import AgentFolder, KeptAgent, digest_of, start_digest
from tests import bounded

STUB = "tests.fleet.pool.agent_stub"
FILES = {"fleet.yaml": "a: 1"}


def test_a_folder_knows_what_was_written_into_it(tmp_path: Path) -> None:
    folder = AgentFolder(tmp_path / "node")
    assert folder.digest is None
    folder.write(FILES, "1.0")
    assert folder.digest == digest_of(FILES, "1.0") == AgentFolder(tmp_path / "node").digest
    assert (tmp_path / "node" / "fleet.yaml").read_text() == "a: 1"
    assert len({digest_of(FILES, "1.0"), digest_of(FILES, "1.1"), digest_of({"fleet.yaml": "a: 2"}, "1.0")}) == 3
    assert start_digest(["m"], {"k": "1"}) != start_digest(["m"], {"k": "2"})


class Kept:
    """A stub of an agent, kept by hand."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.clock, self.starts = ManualClock(), 0
        self.folder = AgentFolder(folder)
        self.folder.write(FILES, "1.0")
        command = [STUB, *arguments]
        self.agent = KeptAgent(self.folder, command, {}, 600.0, drain_s=5.0, started=self._start, clock=self.clock)

    def _start(self) -> None:
        self.starts += 1

    async def runs(self, other_than: int | None = None) -> int:
        """Its process, once it has one, and has said so."""
        async with asyncio.timeout(100):
            while (pid := self.agent.report()["pid"]) in (None, other_than) or not self.said(f"pid {pid}"):
                await asyncio.sleep(0.05)
            return int(pid)

    def said(self, text: str) -> bool:
        log = self.folder.path / "agent.log"
        return log.exists() and text in log.read_text()


@pytest.mark.slow
def test_an_agent_that_ends_is_started_again_and_whoever_looks_after_it_hears_so(tmp_path: Path) -> None:
    async def all_of_it() -> None:
        kept = Kept(tmp_path, "stay")
        running = asyncio.create_task(kept.agent.run())
        first = await kept.runs()
        assert (await kept.agent.looked_after(0, 600.0, wait_s=0.01))["ends"] == 0
        os.kill(first, signal.SIGKILL)
        report = await kept.agent.looked_after(0, 600.0, wait_s=30.0)
        assert (report["ends"], report["status"]) == (1, -9) and report["what"].startswith("has ended with status -9")
        assert await kept.runs(first) and kept.starts == 2
        await kept.agent.stop(20.0)
        await running
        assert kept.agent.report()["pid"] is None and kept.agent.report()["is_ending"] and kept.starts == 2

    bounded.run(all_of_it(), 120.0)


@pytest.mark.slow
def test_an_agent_is_given_a_changed_file_and_reads_it(tmp_path: Path) -> None:
    async def all_of_it() -> None:
        kept = Kept(tmp_path, "stay")
        running = asyncio.create_task(kept.agent.run())
        pid = await kept.runs()
        kept.agent.change({"fleet.yaml": "a: 2"}, "1.0")
        async with asyncio.timeout(100):
            while not kept.said("read again"):
                await asyncio.sleep(0.05)
        assert (tmp_path / "fleet.yaml").read_text() == "a: 2" and kept.agent.report()["pid"] == pid
        await kept.agent.stop(20.0)
        await running

    bounded.run(all_of_it(), 120.0)


@pytest.mark.slow
def test_an_agent_ends_once_no_pool_has_looked_after_it_for_long_enough(tmp_path: Path) -> None:
    async def all_of_it() -> None:
        kept = Kept(tmp_path, "stay")
        running = asyncio.create_task(kept.agent.run())
        await kept.runs()
        kept.clock.advance_to(kept.clock.now_s() + 599.0)
        await kept.agent.looked_after(0, 50.0, wait_s=0.01)
        kept.clock.advance_to(kept.clock.now_s() + 49.0)
        await kept.agent.check_attendance()
        assert not kept.agent.report()["is_ending"] and not running.done()
        kept.clock.advance_to(kept.clock.now_s() + 2.0)
        await kept.agent.check_attendance()
        await running
        assert kept.agent.report()["is_ending"] and kept.starts == 1

    bounded.run(all_of_it(), 120.0)


@pytest.mark.slow
def test_one_that_does_not_end_is_ordered_twice_and_then_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time after an order begins once the process has it: two orders that wait for a busy process are one."""
    ended_in, waits = AgentChild._has_ended_in, list[float]()

    async def ended_in_once_ordered(child: AgentChild, seconds: float) -> bool:
        waits.append(seconds)
        await bounded.until(lambda: child.log.read_text().count("ordered to end") == len(waits))
        return await ended_in(child, seconds)

    monkeypatch.setattr(AgentChild, "_has_ended_in", ended_in_once_ordered)

    async def all_of_it() -> None:
        kept = Kept(tmp_path, "stubborn")
        running = asyncio.create_task(kept.agent.run())
        await kept.runs()
        await kept.agent.stop(1.0)
        await running
        assert waits == [0.5, 0.5] and kept.agent.report()["status"] == -signal.SIGKILL

    bounded.run(all_of_it(), 120.0)
