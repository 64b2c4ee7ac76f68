"""A check of the CPU's vector instructions: vLLM's CPU build chooses kernels by them, and some settings need them."""

import platform
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sloserve.cli.doctor import software
from sloserve.cli.doctor.finding import Finding, absent, fault, ok

CHECK: Final = "instructions"
_LEAST: Final = "avx2"
_USED: Final = {"avx512f": "AVX-512", "avx512_bf16": "AVX-512 BF16", "amx_tile": "AMX"}
"""Flags of /proc/cpuinfo that vLLM's CPU build looks for, and the names of what they stand for."""
_FLAGS: Final = re.compile(r"^flags\s*:(.*)$", re.MULTILINE)


def instructions(root: Path = Path("/")) -> Iterator[Finding]:
    """Report which instructions of vLLM's CPU build are missing; nothing with a GPU build or another architecture."""
    if platform.machine() != "x86_64" or not software.engine_for_cpus_alone():
        return
    try:
        found = _FLAGS.search((root / "proc/cpuinfo").read_text(encoding="utf-8"))
    except OSError:
        found = None
    if found is None:
        yield absent(CHECK, "cannot be read from /proc/cpuinfo")
    else:
        yield instructions_finding(frozenset(found[1].split()))


def instructions_finding(flags: frozenset[str]) -> Finding:
    """Return what a CPU with these flags of /proc/cpuinfo lacks, and what does not work without it."""
    if _LEAST not in flags:
        return fault(CHECK, "no AVX2", "vLLM's CPU build needs AVX2: use a CPU from 2015 or later")
    present = ", ".join(["AVX2", *(name for flag, name in _USED.items() if flag in flags)])
    lacking = [name for flag, name in _USED.items() if flag not in flags]
    if not lacking:
        return ok(CHECK, present)
    follows = ["vLLM uses slower kernels"]
    if "avx512f" not in flags and "amx_tile" not in flags:
        follows.append("--kv-cache-dtype fp8 needs AVX-512 or AMX")
    if "amx_tile" not in flags:
        follows.append("models with block-quantized fp8 weights need AMX")
    return absent(CHECK, f"{present}; no {', '.join(lacking)}", "; ".join(follows))
