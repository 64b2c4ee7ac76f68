"""Builds the extension module apart from the installed one: with sanitizers, or of changed headers."""

import os
import shutil
import subprocess
import sysconfig
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import bounded

CSRC = Path(__file__).parents[2] / "csrc"
COMMON = ["-std=c++20", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-pthread"]


def compiler() -> str:
    found = shutil.which(os.environ.get("CXX", "c++"))
    assert found is not None, "make env has compiled with it"
    return found


def build(folder: Path, flags: Sequence[str] = (), headers: Iterable[Path] = ()) -> Path:
    """The module, built in ``folder`` with ``flags``; an object file that is there already is not built again.

    headers: folders that are searched before csrc/include.
    """
    nanobind = pytest.importorskip("nanobind", reason="NOT TESTED: nanobind is not installed (make env)")
    root = Path(nanobind.source_dir()).parent
    parts = [root / "src" / "nb_combined.cpp", *sorted((CSRC / "bindings").glob("*.cpp"))]
    python = sysconfig.get_path("include")
    include = [f"-I{one}" for one in (*headers, CSRC / "include", python, nanobind.include_dir())]

    def compiled(source: Path) -> Path:
        target = folder / f"{source.stem}.o"
        if not target.exists():
            # What finds faults in our code has nothing to find in nanobind, of which it makes the most work.
            chosen = ["-O1", f"-I{root / 'ext' / 'robin_map' / 'include'}"] if source is parts[0] else flags
            subprocess.run(
                [compiler(), *COMMON, *include, *chosen, "-c", source, "-o", target], check=True, timeout=280
            )
        return target

    with bounded.within("the compiler", 800.0), ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compiled, parts))
    module = folder / "_csrc.so"
    subprocess.run([compiler(), *COMMON, *flags, "-shared", *objects, "-o", module], check=True, timeout=280)
    return module
