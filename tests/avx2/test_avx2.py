"""With this folder on its path a process sees a CPU that has AVX2 alone, whatever the machine has."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CODE = "import torch; print(torch.cpu._is_avx512_supported(), torch._C._get_cpu_capability(), torch.rand(9).sum() > 0)"


@pytest.mark.slow
def test_torch_finds_no_avx512() -> None:
    if os.uname().machine != "x86_64":
        pytest.skip("Only x86-64 has AVX2.")
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    ran = subprocess.run(
        [sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    assert ran.stdout.split() == ["False", "AVX2", "tensor(True)"]
