"""The CUDA library: what its kernels compile to, and that it loads where there is no driver."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from sloserve.core.kernels import _csrc
from sloserve.core.kernels.kv_copy import Region
from sloserve.engine.swap.host.cuda_library import CudaTransfer, built_library
from sloserve.engine.swap.host.host_pool import HostPool

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
LIBRARY = Path(str(_csrc.__file__)).with_name("libsloserve_kv_cuda.so")


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"NOT TESTED: {name} is not installed")
    return found


def built() -> Path:
    if not LIBRARY.exists():
        assert shutil.which("nvcc") is None, "there is an nvcc, and make env has not built the CUDA library"
        pytest.skip("NOT TESTED: sloserve was built without nvcc")
    return LIBRARY


def test_it_loads_without_a_driver_and_says_what_is_missing() -> None:
    built()
    library, pool = built_library(), HostPool(2, 16)
    try:
        CudaTransfer(library, 0, [Region(pool.address, 16, 16)], 2, pool, staging_bytes=0, compute=lambda: 0).close()
    except RuntimeError as error:
        assert re.search(r"CUDA: .*(driver|device).* \(\d+\)", str(error))  # on a machine without a GPU
    finally:
        pool.close()


def test_kernels_access_16_bytes_at_a_time_and_no_local_memory(tmp_path: Path) -> None:
    """In PTX, which needs nvcc alone."""
    source, include = ROOT / "csrc" / "cuda" / "kv_transfer.cu", ROOT / "csrc" / "include"
    target = tmp_path / "kernels.ptx"
    command = [tool("nvcc"), "-O3", "-std=c++17", f"-I{include}", "-arch=compute_80", "-ptx", source, "-o", target]
    subprocess.run(command, check=True, timeout=280)
    kernels = target.read_text().split(".visible .entry")[1:] or target.read_text().split(".entry")[1:]
    assert len(kernels) == 2
    for kernel in kernels:
        assert len(re.findall(r"ld\.global\.cs\.v4\.u32", kernel)) >= 8, "eight units a lane are under way at once"
        assert len(re.findall(r"st\.global\.wb\.v4\.u32", kernel)) >= 8
        assert ".local" not in kernel and "__local_depot" not in kernel


def test_machine_code_of_each_architecture() -> None:
    dump = subprocess.run(
        [tool("cuobjdump"), "-sass", built()], capture_output=True, text=True, check=True, timeout=280
    ).stdout
    ours = re.findall(r"Function : \S*pack_kernel.*?(?=Function :|Fatbin|\Z)", dump, re.DOTALL)
    assert len(ours) == 4, "two kernels for sm_80 and two for sm_90"
    for code in ours:
        assert len(re.findall(r"\bLDG\S*\.128", code)) >= 8 and len(re.findall(r"\bSTG\S*\.128", code)) >= 8
        assert re.search(r"\b(LDL|STL)\b", code) is None
    listed = subprocess.run(
        [tool("cuobjdump"), "--list-elf", "--list-ptx", built()], capture_output=True, text=True, timeout=280
    )
    assert all(name in listed.stdout for name in ("sm_80.cubin", "sm_90.cubin", "ptx"))
