"""Does a test notice? Changes code at random places, one change at a time, and runs the tests that claim to cover it.

    .venv/bin/python -m tests.mutants [--only PART] [--seed 1] [--output mutants.csv]

A change that no test notices *survives*: it is equivalent, or a test is missing. The sources are not touched; tests
import the changed module in place of the original (tests/substitute.py). C++ needs nanobind and a compiler.
"""

import argparse
import csv
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests import substitute
from tests.csrc import extension
from tests.mutants import cpp_code, python_code
from tests.mutants.python_code import Change

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 180.0


class Target(NamedTuple):
    """A file, how many changes of it are tried, and the arguments of pytest that select its tests."""

    path: str
    count: int
    tests: tuple[str, ...]


SWAP = ("tests/vllm_plugin/swap/test_connector.py",)
AGREEMENT = ("tests/sim/model/test_agreement.py", "-k", "swap")  # of the virtual engine, which has vLLM's scheduler
STORE = ("tests/fleet/store", "-k", "not postgres", "-m", "not slow")
TARGETS = (
    Target(
        "sloserve/lso/swapping.py", 16, ("tests/lso/test_swapping.py", "tests/scheduler/test_price_of_preemption.py")
    ),
    Target("sloserve/engine/swap/store.py", 20, ("tests/engine/swap/test_store.py",)),
    Target("sloserve/vllm_plugin/swap/connector.py", 14, SWAP),
    Target("sloserve/vllm_plugin/engine/swapping.py", 14, AGREEMENT),
    Target("sloserve/vllm_plugin/swap/worker.py", 8, SWAP),
    Target("sloserve/vllm_plugin/server/parking.py", 8, ("tests/vllm_plugin/server/test_parking.py",)),
    Target("sloserve/fleet/store/requests.py", 14, STORE),
    Target("sloserve/fleet/store/batches.py", 6, STORE),
    Target("sloserve/fleet/store/group_commit.py", 3, STORE),
    Target("sloserve/fleet/store/lease.py", 3, STORE),
    Target("sloserve/fleet/store/members.py", 4, STORE),
    Target("sloserve/fleet/agent/pulling.py", 16, ("tests/fleet/agent/test_pulling.py", "-m", "not slow")),
    Target("csrc/include/sloserve/step_budget.h", 14, ("tests/csrc/test_step_budget.py",)),
    Target("csrc/include/sloserve/rank.h", 10, ("tests/csrc/test_rank.py",)),
)


def chosen(target: Target, seed: int) -> list[Change]:
    """The changes of a target that are tried, in the order of its lines."""
    source = (ROOT / target.path).read_text()
    found = list((cpp_code if target.path.endswith(".h") else python_code).changes(source))
    places = np.random.default_rng(seed).choice(len(found), min(target.count, len(found)), replace=False)
    return [found[place] for place in sorted(places.tolist())]


def outcome(target: Target, name: str, module: Path) -> str:
    """``killed`` if a test failed with the module in place of the one of this name, ``timed out`` on a busy machine."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "tests.substitute",
        "-p",
        "no:cacheprovider",
        *target.tests,
    ]
    environment = os.environ | {substitute.VARIABLE: f"{name}={module}"}
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return "timed out"
    return "survived" if done.returncode == 0 else "killed"


def tried(target: Target, seed: int, folder: Path) -> Iterator[tuple[Change, str]]:
    """What became of each change."""
    original = (ROOT / target.path).read_text()
    if target.path.endswith(".h"):
        name, module_of = "sloserve.core.kernels._csrc", functools.partial(built, target.path, folder)
    else:
        name = target.path.removesuffix(".py").replace("/", ".")
        module_of = functools.partial(written, folder)
    assert outcome(target, name, module_of(original)) == "survived", f"{target.tests}: red without any change"
    for change in chosen(target, seed):
        try:
            module = module_of(change.source)
        except subprocess.CalledProcessError:
            yield change, "does not compile"
            continue
        yield change, outcome(target, name, module)


def written(folder: Path, source: str) -> Path:
    (folder / "changed.py").write_text(source)
    shutil.rmtree(folder / "__pycache__", ignore_errors=True)
    return folder / "changed.py"


def built(path: str, folder: Path, source: str) -> Path:
    """The extension with this source of the header; object files of bindings that do not read it are kept."""
    header = folder / "include" / "sloserve" / Path(path).name
    header.parent.mkdir(parents=True, exist_ok=True)
    header.write_text(source)
    for binding in ("requests", "step_budget"):
        (folder / f"{binding}.o").unlink(missing_ok=True)
    return extension.build(folder, ["-O1"], [folder / "include"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", default="", help="files whose path contains this")
    parser.add_argument("--seed", type=int, default=1, help="another seed tries other changes")
    parser.add_argument("--output", type=Path, default=Path("mutants.csv"))
    asked = parser.parse_args()
    with asked.output.open("w", newline="") as output, tempfile.TemporaryDirectory() as folder:
        rows = csv.writer(output)
        rows.writerow(("file", "line", "before", "after", "outcome"))
        for target in TARGETS:
            if asked.only not in target.path:
                continue
            results: list[str] = []
            for change, result in tried(target, asked.seed, Path(folder)):
                results.append(result)
                rows.writerow((target.path, change.line, change.before, change.after, result))
                output.flush()
            print(f"{target.path}: {len(results)} changes, {results.count('survived')} survived", flush=True)


if __name__ == "__main__":
    main()
