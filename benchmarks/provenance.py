"""What every benchmark's JSON says about where it was measured."""

import os
import platform
import subprocess
from pathlib import Path

from sloserve import __version__
from sloserve.vllm_plugin.versions import installed_vllm


def provenance() -> dict[str, object]:
    """Commit, versions and hardware; the commit is ``None`` outside a checkout, or where there is no git."""
    return {
        "commit": _commit(),
        "sloserve": __version__,
        "vllm": installed_vllm(),
        "python": platform.python_version(),
        "hardware": {"machine": platform.machine(), "cpus": os.cpu_count(), "cpu": _cpu()},
    }


def _commit() -> str | None:
    command = ["git", "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.check_output(command, text=True, cwd=Path(__file__).parent, stderr=subprocess.DEVNULL).strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _cpu() -> str | None:
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return platform.processor() or None
    names = [line.partition(":")[2].strip() for line in path.read_text().splitlines() if line.startswith("model name")]
    return names[0] if names else None
