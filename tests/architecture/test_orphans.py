"""What a test starts does not outlive the test process, however that one ends."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from tests import bounded, orphans
from tests.shell import TEMPORARY

ROOT = Path(__file__).parents[2]
CHILD = "import time; time.sleep(600)"
PARENT = f"""
import subprocess, sys
command = [sys.executable, "-c", {CHILD!r}]
started = [subprocess.Popen(command), subprocess.Popen(command, start_new_session=True)]
shell = subprocess.Popen(["bash", "-c", '"$@" & wait', "bash", *command])
print("started", flush=True)
shell.wait()
"""


@pytest.mark.slow
def test_a_killed_test_process_leaves_nothing_behind() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE)
    below: list[psutil.Process] = []
    with bounded.within("the four processes that the parent starts"):
        assert parent.stdout is not None and parent.stdout.readline() == b"started\n"
        while len(below) < 4:  # the shell's child may not have started yet
            below = psutil.Process(parent.pid).children(recursive=True)
    looked, killed = threading.Event(), list[str]()
    watcher = threading.Thread(
        target=lambda: killed.extend(orphans.end_what_outlives(parent.pid, looked.set, grace_s=0.0))
    )
    watcher.start()
    assert looked.wait(60)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait(60)
    with bounded.within("the watcher of the parent"):
        watcher.join()
    parent.stdout.close()
    assert psutil.wait_procs(below, timeout=60)[1] == []
    assert sum(CHILD in command for command in killed) == 4  # the shell's own command names it too


def test_a_process_that_has_ended_before_the_watch_leaves_nothing() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait(60)
    assert orphans.end_what_outlives(ended.pid) == []


@pytest.mark.slow
def test_a_failed_test_leaves_nothing_behind_and_what_ran_before_it_goes_on() -> None:
    command = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]

    def started(new_session: bool) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=new_session
        )
        with bounded.within("the first line of the process"):
            assert process.stdout is not None and process.stdout.readline() == b"\n"
        return process

    earlier = started(False)
    before = orphans.below(os.getpid())
    assert earlier.pid in before
    left = [started(False), started(True)]
    try:
        assert len(orphans.kill_started_since(before)) == 2
        assert [one.wait(30) for one in left] == [-signal.SIGKILL] * 2
        assert earlier.poll() is None
    finally:
        for one in (earlier, *left):
            one.kill()
            one.communicate(timeout=30)


FAILING = """
import os, subprocess, sys
import pytest
pytestmark = pytest.mark.slow

def started(name):
    program = "import sys, time; open(sys.argv[1], 'w').close(); time.sleep(600)"
    command = [sys.executable, "-c", program, os.path.abspath(name)]
    # The second one's parent ends at once.
    subprocess.Popen(command).returncode = 0
    command[-1] += "-orphan"
    subprocess.run(["bash", "-c", '"$@" > /dev/null 2>&1 &', "bash", *command], timeout=60)

@pytest.fixture(scope="module")
def stays():
    started("module")

@pytest.fixture
def breaks(stays):
    started("fixture")
    pytest.fail("in a fixture")

def test_that_fails(stays):
    started("body")
    pytest.fail("in a body")

def test_whose_fixture_fails(breaks):
    pass
"""


@pytest.mark.slow
def test_whatever_fails_leaves_nothing_but_what_others_have_started(tmp_path: Path) -> None:
    (tmp_path / "test_failing.py").write_text(FAILING)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--disable-plugin-autoload"]
    command += ["-p", "hypothesispytest", "-p", "tests.conftest", str(tmp_path / "test_failing.py")]
    environment = os.environ | {"PYTHONPATH": str(ROOT), TEMPORARY: str(tmp_path)}
    ran = subprocess.run(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True, timeout=120, check=False
    )
    assert "1 failed, 1 error" in ran.stdout, ran.stdout
    left = [one for one in psutil.process_iter(["cmdline"]) if str(tmp_path) in (one.info["cmdline"] or [""])[-1]]
    for one in left:
        one.kill()
    assert sorted(Path(one.info["cmdline"][-1]).name for one in left) == ["module", "module-orphan"]
    assert "killed what the failed test left running" in ran.stdout and "body-orphan" in ran.stdout


def test_this_process_is_watched() -> None:
    watchers = [one for one in psutil.process_iter(["cmdline"]) if (one.info["cmdline"] or [])[1:] == _command()]
    assert len(watchers) == 1


def _command() -> list[str]:
    return [orphans.__file__, str(os.getpid())]
