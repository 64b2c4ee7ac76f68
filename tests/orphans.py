"""End the processes that tests leave behind: ``python tests/orphans.py PID`` watches a test process until it dies.

A test ends what it starts, unless it fails, or its process is killed or is ended by a time limit. Servers and fleets
would then run on, and slow down all tests that follow. What a failed test leaves is killed by its own process.
"""

import os
import select
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Final, Protocol

import psutil

PERIOD_S: Final = 1.0
"""How often the watcher looks for new processes."""
GRACE_S: Final = 20.0
"""How long processes may take to end by themselves after the test process has ended, on a busy machine too."""


class Started(Protocol):
    """A process that a test has started, as :class:`subprocess.Popen` has it."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float) -> int: ...


def watch_this_process() -> None:
    """Start a process of its own, out of reach of Ctrl-C, that watches this one."""
    subprocess.Popen(
        [sys.executable, str(Path(__file__).resolve()), str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    ).returncode = 0  # it outlives this process, so that Popen need not warn of that


def end_what_outlives(pid: int, looked: Callable[[], None] = lambda: None, grace_s: float = GRACE_S) -> list[str]:
    """Wait for the end of process ``pid``, kill what it started and what these started, and return their commands.

    Args:
        pid: the process; one that has ended left nothing that is known.
        looked: is called after each look for new processes.
        grace_s: seconds that they have to end by themselves.
    """
    try:
        watched, end = psutil.Process(pid), os.pidfd_open(pid)
    except (psutil.NoSuchProcess, ProcessLookupError):  # a run of a moment ended before this process had begun
        return []
    itself, started = psutil.Process(), set[psutil.Process]()
    try:
        while True:
            with suppress(psutil.Error):
                started |= set(watched.children(recursive=True)) - {itself}
            started = {one for one in started if one.is_running()}
            looked()
            if select.select([end], [], [], PERIOD_S)[0]:
                break
    finally:
        os.close(end)
    for one in list(started):  # what each has started since
        with suppress(psutil.Error):
            started |= set(one.children(recursive=True)) - {itself}
    _, left = psutil.wait_procs(started, timeout=grace_s)
    killed = []
    for one in sorted(left, key=psutil.Process.create_time):  # a shell ends by itself where its child is killed first
        with suppress(psutil.Error):
            killed.append(" ".join(one.cmdline()) or one.name())
            one.kill()
    return killed


def below(pid: int) -> set[int]:
    """Return the process ids of all that a process has started and that these have started, as far as they run."""
    found = set[int]()
    with suppress(OSError):  # it ends meanwhile
        for task in Path(f"/proc/{pid}/task").iterdir():
            found |= set(map(int, (task / "children").read_text().split()))
    return found.union(*map(below, found))


def with_variable(name: str, value: str) -> set[int]:
    """Return the process ids of all processes that were started with an environment variable of this value."""
    found = set[int]()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it ends meanwhile, or is another user's
            if f"{name}={value}".encode() in path.read_bytes().split(b"\0"):
                found.add(int(path.parent.name))
    return found


def kill_started_since(before: set[int], phase: str = "") -> list[str]:
    """Kill what this process has started and was not there before, and return the commands.

    Left running are the two processes that multiprocessing starts once for all that follow.

    Args:
        before: the ids of the processes that stay.
        phase: pytest's name of the part of a test, as in ``PYTEST_CURRENT_TEST``. What was started in it is killed
            although the process that started it has ended.
    """
    kept = {forkserver._forkserver._forkserver_pid, resource_tracker._resource_tracker._pid}  # type: ignore[attr-defined]
    started = below(os.getpid()) | (with_variable("PYTEST_CURRENT_TEST", phase) if phase else set())
    killed = []
    for pid in started - before - kept - {os.getpid()}:
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            killed.append(" ".join(process.cmdline()) or process.name())
            process.kill()
    return killed


def kill_with_children(started: "Started") -> None:
    """Kill a process, if it still runs, and all that it started, and wait for its end; for a test that may fail."""
    if started.poll() is not None:  # its number may be that of a stranger by now
        return
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(started.pid)
        for one in (process, *process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                one.kill()
    started.wait(timeout=60)


if __name__ == "__main__":
    for command in end_what_outlives(int(sys.argv[1])):
        print(f"killed what the tests left running: {command[:200]}", file=sys.stderr)
