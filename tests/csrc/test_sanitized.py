"""C++ built with sanitizers for addresses and undefined behaviour: KV copies, the GPU's on a host, and fleet plans."""

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


def run(source: str, folder: Path, *arguments: str) -> str:
    """What the program prints that is built from the source."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    assert compiler is not None, "make env has compiled with it"
    program = folder / "check"
    subprocess.run([compiler, *SANITIZED, f"-I{INCLUDE}", HERE / source, "-o", program], check=True)
    # vLLM preloads libraries into what its process starts, and the sanitizer must be the first.
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_copies_on_the_cpu(tmp_path: Path) -> None:
    assert run("kv_copy_check.cpp", tmp_path, "300") == "300 copies of 6 layouts\n"


def test_copies_on_a_gpu_in_any_order_that_its_streams_allow(tmp_path: Path) -> None:
    """Fails with any one of the waits between streams left out of kv_transfer.h."""
    assert run("kv_transfer_check.cpp", tmp_path, "200") == "200 runs, many loads\n"


def test_plans_of_fleets(tmp_path: Path) -> None:
    """Each group once, and never dearer than the start."""
    assert run("fleet_search_check.cpp", tmp_path, "40") == "40 fleets\n"
