"""Processes that multiprocessing started end when their starter is killed, and no others do."""

import multiprocessing
import os
import subprocess
import sys

import psutil
import pytest

from sloserve.core import process_death
from tests import bounded
from tests.ended import has_ended

LIMIT_S = 60.0
END_S = 0.1

STARTER = """
import multiprocessing, os, signal, sys, time
from sloserve.core.process_death import end_with_starter

def child(answers, stubborn):
    if stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end_with_starter({end_s})
    end_with_starter({end_s})
    answers.put(os.getpid())
    time.sleep(600)

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    answers = context.SimpleQueue()
    for stubborn in (False, True):
        context.Process(target=child, args=(answers, stubborn)).start()
    print(answers.get(), answers.get(), flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_end_with_a_starter_that_is_killed(method: str, tmp_path: object) -> None:
    """Of two, the second holds the first one's pipe to the starter if it is forked; one of them ignores SIGTERM."""
    script = os.path.join(str(tmp_path), "starter.py")
    with open(script, "w", encoding="utf-8") as file:
        file.write(STARTER.format(end_s=END_S))
    with (
        bounded.within("a process that starts two, and its end"),
        subprocess.Popen([sys.executable, script, method], stdout=subprocess.PIPE, text=True) as starter,
    ):
        assert starter.stdout is not None
        children = [psutil.Process(int(pid)) for pid in starter.stdout.readline().split()]
        assert len(children) == 2 and all(child.is_running() for child in children)
        starter.kill()
    _, alive = psutil.wait_procs(children, LIMIT_S)
    assert all(map(has_ended, alive))


def test_a_process_that_multiprocessing_did_not_start_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: None)
    monkeypatch.setattr(process_death, "_watching", False)
    process_death.end_with_starter()
    assert not process_death._watching


def test_a_starter_that_has_gone_already_ends_the_process_at_once() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(60)

    class Starter:
        pid = gone.pid

    process_death._wait_for_end(Starter())  # returns


def test_without_pidfd_the_pipe_of_multiprocessing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(pid: int) -> int:
        raise PermissionError

    class Starter:
        pid, joined = os.getpid(), False

        def join(self) -> None:
            self.joined = True

    starter = Starter()
    monkeypatch.setattr(os, "pidfd_open", refused)
    process_death._wait_for_end(starter)
    assert starter.joined
