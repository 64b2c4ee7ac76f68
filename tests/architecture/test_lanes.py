"""A process of the tests that dies costs the test that it ran; all others run, and the run ends."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lanes import Lanes
from tests.shell import TEMPORARY
from tests.whole import sampled

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DEADLY = "import os\nos._exit(3)"
LASTING = "import signal\nsignal.pause()"


def ran(folder: Path, files: dict[str, list[str]], *flags: str) -> str:
    """Run tests of these bodies in two processes, as the Makefile does, and return what pytest prints."""
    for name, bodies in files.items():
        tests = [
            f"def test_{i}():\n" + "\n".join(f"    {line}" for line in b.split("\n")) for i, b in enumerate(bodies)
        ]
        (folder / f"test_{name}.py").write_text("\n\n".join(tests))
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-rf", "-p", "no:cacheprovider", "--disable-plugin-autoload"]
    command += ["-p", "xdist", "-p", "pytest_timeout", "-p", "tests.lanes", "-n", "2", "--dist", "loadfile"]
    command += ["--no-loadscope-reorder", "--max-worker-restart", "8", *flags, str(folder)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), TEMPORARY: str(folder)}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("at", sampled([0, 1, 3], [1]), ids=["first", "second", "last"])
def test_the_others_run_wherever_the_test_stands(at: int, tmp_path: Path) -> None:
    bodies = ["pass"] * 4
    bodies[at] = DEADLY
    output = ran(tmp_path, {"a": bodies, "b": ["pass"] * 3})
    assert "1 failed, 6 passed" in output, output
    assert f"FAILED test_a.py::test_{at}" in output


def test_several_die_in_both_processes(tmp_path: Path) -> None:
    output = ran(tmp_path, {"a": ["pass", DEADLY, DEADLY, "pass"], "b": [DEADLY], "c": ["pass", "pass", DEADLY]})
    assert "4 failed, 4 passed" in output, output


def test_one_that_hangs_is_ended_by_its_time_limit(tmp_path: Path) -> None:
    limits = ["--timeout=2", "--timeout-method=thread", "-o", "faulthandler_timeout=1"]
    output = ran(tmp_path, {"a": ["pass", LASTING, "pass"], "b": ["pass"]}, *limits)
    assert "1 failed, 3 passed" in output, output
    assert "in test_1" in output, "it is not printed where it hangs"


def test_a_process_that_has_not_collected_is_given_nothing() -> None:
    """Another may die meanwhile, or collect first."""
    lanes = Lanes.__new__(Lanes)
    lanes.registered_collections = {}
    lanes._reschedule(object())  # which has none of the attributes that xdist's own would ask for


def test_a_run_in_which_all_die_ends(tmp_path: Path) -> None:
    output = ran(tmp_path, {"a": [DEADLY] * 12, "b": [DEADLY] * 12})
    assert "9 failed" in output, output  # and the other fifteen are not tried
