"""Fetches vLLM's own tests: one release's source distribution, unpacked by pip, its test files kept in a cache.

Nothing of vLLM's is stored in this repository. pip finds, verifies and unpacks the distribution as it would to install
it; ``--no-clean`` leaves the unpacked tree behind. Building its metadata may fail (its build requirements are absent):
the tree is there before.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from tests.shell import with_proxies

_TIMEOUT_S = 300
_SCHEDULER_TESTS = Path("tests", "v1", "core")


class CannotFetch(Exception):
    """vLLM's source distribution could not be had; the message says why."""


def cache_root() -> Path:
    """Where fetched test trees are kept, one folder a version: ``$XDG_CACHE_HOME/sloserve/upstream``."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "sloserve" / "upstream"


def fetched_tests(version: str) -> Path:
    """A folder that holds the package ``tests`` of this release of vLLM; fetched once, then found in the cache.

    Raises: CannotFetch when there is no pip, no network, no such release, or no tests in it.
    """
    kept = cache_root() / f"vllm-{version}"
    if (kept / _SCHEDULER_TESTS).is_dir():
        return kept
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
        said = _unpack(version, Path(folder))
        trees = [tree for tree in Path(folder).glob("*/vllm_*") if (tree / _SCHEDULER_TESTS).is_dir()]
        if not trees:
            raise CannotFetch(f"pip left no source distribution of vllm {version} with tests: {said}")
        slim = Path(folder) / "slim"
        shutil.copytree(trees[0] / "tests", slim / "tests", ignore=_all_but_python)
        try:
            slim.rename(kept)
        except OSError:
            # Another process was first; what it put there is the same.
            if not (kept / _SCHEDULER_TESTS).is_dir():
                raise
    return kept


def _unpack(version: str, folder: Path) -> str:
    """Lets pip unpack the distribution under ``folder``; returns the last thing it said."""
    command = [*_pip(), "download", f"vllm=={version}", "--no-deps", "--no-binary", "vllm", "--no-build-isolation"]
    command += ["--no-clean", "--retries", "2", "--dest", str(folder / "dest")]
    # Should its setup.py run after all, "empty" keeps it from looking for a compiler and a device.
    env = with_proxies() | {"TMPDIR": str(folder), "VLLM_TARGET_DEVICE": "empty"}
    try:
        done = subprocess.run(
            command, env=env, cwd=folder, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"pip did not finish in {_TIMEOUT_S} s"
    lines = (done.stderr or done.stdout).strip().splitlines()
    return next((line for line in lines if line.startswith("ERROR")), lines[-1] if lines else "pip said nothing")


def _pip() -> list[str]:
    try:
        # Not found as a module: setuptools' import hook warns of that where something has imported distutils before.
        distribution("pip")
        return [sys.executable, "-m", "pip"]
    except PackageNotFoundError:
        pass
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if uv is None:
        raise CannotFetch("neither pip nor uv is in this environment")
    return [uv, "tool", "run", "pip"]


def _all_but_python(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if not name.endswith(".py") and not Path(folder, name).is_dir()]
