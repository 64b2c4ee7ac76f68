"""Forked engines, and what of them is left when any of their processes is killed: nothing."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sloserve.fleet.agent.engine_spec import EngineSpec
from sloserve.fleet.launcher.forking import ForkingLauncher
from tests import bounded
from tests.fleet.stand_in.launcher import processes

pytestmark = pytest.mark.slow

FAKE = "tests.fleet.launcher.fake_vllm_launcher"
AGENT = """
import asyncio, sys
from pathlib import Path
from sloserve.fleet.agent.engine_spec import EngineSpec
from sloserve.fleet.launcher.forking import ForkingLauncher
from tests.fleet.launcher.test_forking import spec, served
async def main():
    folder = Path(sys.argv[1])
    launcher = ForkingLauncher(folder / "launcher.log", module=sys.argv[2])
    engines = [await launcher.launch(spec(folder, name)) for name in sys.argv[3:]]
    for name in sys.argv[3:]:
        await served(folder, name)
    print(launcher.pid, *(engine.pid for engine in engines), flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


def spec(folder: Path, name: str) -> EngineSpec:
    return EngineSpec((name, "--uds", str(folder / name)), {}, folder / name, folder / f"{name}.log")


async def served(folder: Path, name: str) -> None:
    await bounded.until(lambda: (folder / name).exists())


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def group(leader: int) -> list[int]:
    """All processes of an engine."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            stat = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(stat[2]) == leader and stat[0] != "Z":
            found.append(int(path.parent.name))
    return sorted(found)


@contextmanager
def agent(folder: Path, *names: str) -> Iterator[tuple[subprocess.Popen[str], int, list[int]]]:
    """An agent's process, its launcher, and the leaders of its engines."""
    command = [sys.executable, "-c", AGENT, str(folder), FAKE, *names]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        with bounded.within("the agent to start its engines"):
            launcher, *engines = map(int, process.stdout.readline().split())
        yield process, launcher, engines
    finally:
        process.kill()
        process.communicate(timeout=60)


async def gone(pids: list[int]) -> bool:
    """Return whether all have ended within the time allowed."""
    await bounded.until(lambda: not any(map(alive, pids)))
    return True


@pytest.mark.parametrize("killed", ["launcher", "agent"])
def test_all_engines_end_with_what_started_them(tmp_path: Path, killed: str) -> None:
    with agent(tmp_path, "a", "b") as (process, launcher, engines):
        pids = [launcher, *(pid for engine in engines for pid in group(engine))]
        assert len(pids) == 5, "the launcher, and of each engine two"
        os.kill(launcher if killed == "launcher" else process.pid, signal.SIGKILL)
        assert bounded.run(gone(pids))


def test_an_engine_whose_first_process_is_killed_leaves_nothing_and_others_live(tmp_path: Path) -> None:
    with agent(tmp_path, "a", "b") as (_, _, (one, other)):
        pids = group(one)
        os.kill(one, signal.SIGKILL)
        assert bounded.run(gone(pids)) and len(group(other)) == 2


def test_an_engine_is_started_plainly_where_none_can_be_forked(tmp_path: Path) -> None:
    async def within() -> None:
        launcher = ForkingLauncher(tmp_path / "launcher.log", processes(), module="tests.no_such_module")
        engine = await launcher.launch(spec(tmp_path, "a"))
        await served(tmp_path, "a")
        assert not engine.is_forked and alive(engine.pid)
        await launcher.close()
        assert not alive(engine.pid)

    bounded.run(within())
    assert "No module named" in (tmp_path / "launcher.log").read_text()


def test_a_launcher_that_died_is_started_again(tmp_path: Path) -> None:
    async def within() -> None:
        launcher = ForkingLauncher(tmp_path / "launcher.log", module=FAKE)
        first = await launcher.launch(spec(tmp_path, "a"))
        assert launcher.pid is not None
        os.kill(launcher.pid, signal.SIGKILL)
        assert await first.wait() == -9
        second = await launcher.launch(spec(tmp_path, "b"))
        await served(tmp_path, "b")
        assert second.is_forked
        second.kill()
        assert await second.wait() == -9
        await launcher.close()

    bounded.run(within())
