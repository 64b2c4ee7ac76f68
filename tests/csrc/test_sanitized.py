"""C++ built with sanitizers for addresses and undefined behaviour: the extension, KV copies, the GPU's on a host."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import substitute
from tests.csrc import extension
from tests.shell import TEMPORARY

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
INCLUDE = ROOT / "csrc" / "include"
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
SANITIZED = ["-std=c++17", "-O1", "-g1", "-Wall", "-Wextra", "-Werror", "-pthread", *SANITIZERS]

# Faults that the sanitizers must see in a process of Python, each a function of a library that is loaded there.
FAULTS = {
    "heap-buffer-overflow": "{ long* all = new long[n]; long one = all[n]; delete[] all; return one; }",
    "signed integer overflow": "{ return n + 0x7fffffffffffffff; }",
}


@pytest.fixture(scope="module", autouse=True)
def _sanitizers(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("sanitizers")
    (folder / "empty.cpp").write_text("int main() {}")
    command = [extension.compiler(), *SANITIZED, folder / "empty.cpp", "-o", folder / "empty"]
    if subprocess.run(command, capture_output=True, check=False, timeout=800).returncode:
        pytest.skip(f"NOT TESTED: {command[0]} has no sanitizers for addresses and undefined behaviour")


def run(source: str, folder: Path, *arguments: str) -> str:
    """What the program prints that is built from the source."""
    program = folder / "check"
    subprocess.run(
        [extension.compiler(), *SANITIZED, f"-I{INCLUDE}", HERE / source, "-o", program], check=True, timeout=800
    )
    # vLLM preloads libraries into what its process starts, and the sanitizer must be the first.
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run(
        [program, *arguments], capture_output=True, text=True, check=False, env=environment, timeout=800
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def python(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs Python so that it can load libraries built with sanitizers: it is not, hence their runtime comes first."""
    runtime = []
    for library in ("libasan.so", "libstdc++.so"):
        command = [extension.compiler(), f"-print-file-name={library}"]
        found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=800).stdout.strip()
        if not Path(found).is_absolute():
            pytest.skip(f"NOT TESTED: {library} is not installed as a library of its own")
        runtime.append(found)
    environment = os.environ | variables
    environment |= {
        "LD_PRELOAD": " ".join(runtime),
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=800)


@pytest.mark.parametrize("seen", FAULTS)
def test_a_fault_in_a_process_of_python_is_seen(seen: str, tmp_path: Path) -> None:
    """What the next test rests on."""
    source, library = tmp_path / "fault.cpp", tmp_path / "fault.so"
    source.write_text(f'extern "C" long fault(long n) {FAULTS[seen]}')
    subprocess.run(
        [extension.compiler(), *SANITIZED, "-fPIC", "-shared", source, "-o", library], check=True, timeout=800
    )
    done = python("-c", "import ctypes, sys; ctypes.CDLL(sys.argv[1]).fault(2)", library)
    assert done.returncode and seen in done.stderr


@pytest.mark.whole
@pytest.mark.timeout(900)  # a minute of two cores, most of it compiling; three where others use them as well
def test_the_extension(tmp_path: Path) -> None:
    """All kernels, on what their tests give them, and on what no caller should."""
    module = extension.build(tmp_path, ["-O1", "-g1", *SANITIZERS])
    tests = sorted(
        path for path in HERE.glob("test_*.py") if path.name not in ("test_sanitized.py", "test_cuda_build.py")
    )
    arguments = ["-q", "-x", "-s", "-p", "tests.substitute", "-p", "no:cacheprovider", "-m", "not vllm and not gpu"]
    variables = {substitute.VARIABLE: f"sloserve.core.kernels._csrc={module}", TEMPORARY: str(tmp_path)}
    done = python("-m", "pytest", *arguments, "--hypothesis-profile=fast", *tests, **variables)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]


def test_copies_on_the_cpu(tmp_path: Path) -> None:
    assert run("kv_copy_check.cpp", tmp_path, "300") == "300 copies of 6 layouts\n"


@pytest.mark.whole
def test_copies_on_a_gpu_in_any_order_that_its_streams_allow(tmp_path: Path) -> None:
    """Fails with any one of the waits between streams left out of kv_transfer.h."""
    assert run("kv_transfer_check.cpp", tmp_path, "200") == "200 runs, many loads\n"


def test_plans_of_fleets(tmp_path: Path) -> None:
    """Each group once, and never dearer than the start."""
    assert run("fleet_search_check.cpp", tmp_path, "40") == "40 fleets\n"
