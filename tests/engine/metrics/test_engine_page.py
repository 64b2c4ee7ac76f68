"""Pages: what one process stores another reads; what a killed process leaves behind is taken away, and nothing else."""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sloserve.core.served import InEngine
from sloserve.engine.metrics.engine_page import PLAN_BUCKETS_S, Layout, PageWriter, find_pages, remove_pages
from sloserve.engine.metrics.page_folder import page_folder, sweep
from sloserve.engine.policy_change import MOST_BY_CHARS, PolicyChanged
from tests import bounded

CLASSES = ("urgent", "lax")
WRITER = """
import sys
from pathlib import Path
from sloserve.core.served import InEngine
from sloserve.engine.metrics.engine_page import Layout, PageWriter
page = PageWriter(("urgent", "lax"), int(sys.argv[2]), Path(sys.argv[1]))
page.values[Layout.at["running"]] = 7
page.note_ended("request-1", InEngine(3, 0.25, 1.5))
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[int], subprocess.Popen[str]]]:
    """Starts a process that makes a page of the given rank and keeps it until it is killed."""
    started = []

    def start(rank: int) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), str(rank)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(child)
        with bounded.within("the process to make its page"):
            assert child.stdout is not None and child.stdout.readline() == "ready\n"
        return child

    yield start
    for child in started:
        child.kill()
        child.communicate(timeout=60)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.slow
def test_another_process_reads_what_was_stored_and_who_was_paused(
    start: Callable[[int], subprocess.Popen[str]], tmp_path: Path
) -> None:
    child = start(0)
    (page,) = find_pages(tmp_path)
    found = page.snapshot()
    assert (found.running, found.pid, found.rank, found.alive) == (7, child.pid, 0, True)
    assert (page.ended("request-1"), page.ended("request-2")) == (InEngine(3, 0.25, 1.5), None)


@pytest.mark.slow
def test_the_page_of_a_killed_engine_is_swept_and_that_of_a_living_one_stays(
    start: Callable[[int], subprocess.Popen[str]], tmp_path: Path
) -> None:
    killed, _ = start(0), start(1)
    page = find_pages(tmp_path)[0]
    killed.send_signal(signal.SIGKILL)
    with bounded.within("the end of a killed process"):
        os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)  # it is dead, but not yet reaped
    assert not page.snapshot().alive
    sweep(tmp_path)
    assert [page.rank for page in find_pages(tmp_path)] == [1]
    assert PageWriter(CLASSES, 2, tmp_path).path.exists() and len(files(tmp_path)) == 2


@pytest.mark.slow
def test_who_started_a_killed_engine_removes_its_page(
    start: Callable[[int], subprocess.Popen[str]], tmp_path: Path
) -> None:
    start(0).send_signal(signal.SIGKILL)
    living_stranger = tmp_path / f"1-{Path('/proc/1/stat').read_text().rpartition(')')[2].split()[19]}-0-0-0.engine"
    living_stranger.write_bytes(b"")
    (tmp_path / "notes.txt").write_text("not ours")
    remove_pages(tmp_path)
    assert files(tmp_path) == [living_stranger.name, "notes.txt"]


def test_figures_by_class_and_the_histogram(tmp_path: Path) -> None:
    page, layout = PageWriter(CLASSES, 0, tmp_path), Layout(2)
    page.values[layout.waiting : layout.waiting + 2] = 4, 5
    page.values[layout.enqueued + 1] = 6
    page.values[layout.admitted] = 2
    for cost_s in (0.0, PLAN_BUCKETS_S[0], 3e-4, 9.0):
        page.values[Layout.bucket(cost_s)] += 1
    found = find_pages(tmp_path)[0].snapshot()
    assert found.waiting_by_class == {"urgent": 4, "lax": 5}
    assert found.enqueued_by_class == {"urgent": 0, "lax": 6}
    assert found.admitted_by_class == {"urgent": 2, "lax": 0}
    assert found.plan_seconds == (2, 0, 0, 0, 0, 1, *[0] * 7, 1)


def test_the_policies_can_change_and_a_name_may_be_too_long(tmp_path: Path) -> None:
    page = PageWriter(CLASSES, 0, tmp_path)
    (reader,) = find_pages(tmp_path)
    said = []
    for policies in (("edf", None, None), ("sjf:length=oracle", "edf", "r" * 300), (f"edf:{'x' * 5000}", "sjf", "MLA")):
        page.set_policies(*policies)
        found = reader.snapshot()
        said.append((found.policy, found.shadow_policy, found.plans_off))
    assert said == [("edf", None, None), ("sjf:length=oracle", "edf", "r" * 200), ("edf", "sjf", "MLA")]


def test_the_last_change_of_the_policy_is_shown_whatever_its_length(tmp_path: Path) -> None:
    page = PageWriter(CLASSES, 0, tmp_path)
    (reader,) = find_pages(tmp_path)
    page.set_policies("edf", None, None)
    assert reader.snapshot().policy_change is None
    change = PolicyChanged("ab12", 1.7e9, "anna from 10.0.0.7", "sjf:length=oracle")
    page.set_policies("edf", None, None, change)
    assert reader.snapshot().policy_change == change
    long = PolicyChanged("ab12", 1.7e9, "\N{SNOWMAN}" * MOST_BY_CHARS, "\N{SNOWMAN}" * 500)
    page.set_policies("\N{SNOWMAN}" * 500, "\N{SNOWMAN}" * 500, "\N{SNOWMAN}" * 500, long)
    found = reader.snapshot()
    assert found.policy_change == long.brief() and found.policy == "\N{SNOWMAN}" * 100


@pytest.mark.slow
def test_the_latest_of_many_requests_that_ended_are_remembered(tmp_path: Path) -> None:
    page = PageWriter(CLASSES, 0, tmp_path)
    page.note_ended("first", InEngine(1, 1e6, 0.0))
    for i in range(2047):
        page.note_ended(f"r{i}", InEngine(i + 1, 0.5, 0.004 * i))
    (reader,) = find_pages(tmp_path)
    assert reader.ended("first") == InEngine(1, 1e6, 0.0)
    one = reader.ended("r2046")
    assert one is not None and (one.paused_steps, one.paused_s, one.preempted_s) == (
        2047,
        0.5,
        pytest.approx(8.184, rel=1e-4),
    )
    page.note_ended("r0", InEngine(9, 0.25, 2.0, 0.0123, 0.5), is_part=True)
    page.note_ended("r0", InEngine(0, 0.0, 0.0, 0.0004, 0.25), is_part=True)
    # Of several outputs: steps and what they used add up, of the times the longest holds.
    both = reader.ended("r0")
    assert both == InEngine(1 + 9, 0.5, 2.0, pytest.approx(0.0127, rel=1e-4), 0.75)
    assert reader.ended("first") is None


def test_a_closed_page_is_gone_and_one_of_another_version_is_passed_over(tmp_path: Path) -> None:
    page, other = PageWriter(CLASSES, 0, tmp_path), PageWriter(CLASSES, 1, tmp_path)
    other.path.write_bytes(b"sloserve" + bytes([99]) + bytes(100))
    assert [reader.rank for reader in find_pages(tmp_path)] == [0]
    page.close()
    page.close()
    assert find_pages(tmp_path) == [] and files(tmp_path) == [other.path.name]


def test_only_this_user_can_enter_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda *args: False)  # as where there is no /dev/shm
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    folder = page_folder()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(PageWriter(CLASSES, 0).path.stat().st_mode) == 0o600
    folder.chmod(0o777)
    with pytest.raises(PermissionError, match="only user"):
        page_folder()
