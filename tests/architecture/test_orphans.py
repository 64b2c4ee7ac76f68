"""What a test starts does not outlive the test process, however that one ends."""

import os
import signal
import subprocess
import sys
import threading

import psutil
import pytest

from tests import bounded, orphans

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


def test_this_process_is_watched() -> None:
    watchers = [one for one in psutil.process_iter(["cmdline"]) if (one.info["cmdline"] or [])[1:] == _command()]
    assert len(watchers) == 1


def _command() -> list[str]:
    return [orphans.__file__, str(os.getpid())]
