"""The C++ of KV copies, built with the address and undefined-behaviour sanitizers."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
INCLUDE = HERE.parents[1] / "csrc" / "include"
SANITIZED = ["-std=c++17", "-O1", "-g1", "-Wall", "-Wextra", "-Werror", "-pthread"]
SANITIZED += ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def build(source: Path, target: Path) -> Path:
    """The program, compiled with sanitizers."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    assert compiler is not None, "make env has compiled with it"
    subprocess.run([compiler, *SANITIZED, f"-I{INCLUDE}", str(source), "-o", str(target)], check=True)
    return target


def run(program: Path, *arguments: str) -> str:
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_copies_on_the_cpu(tmp_path: Path) -> None:
    assert run(build(HERE / "kv_copy_check.cpp", tmp_path / "check"), "300") == "300 copies of 6 layouts\n"
