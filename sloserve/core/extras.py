"""Packages that sloserve does not install by itself: which extra brings each, and the command that installs it.

No hint installs ``sloserve`` by its bare name. Nothing of that name is published by this project, so pip would find
nothing, or what another party published under it.
"""

import json
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote, urlsplit

import sloserve
from sloserve.core.errors import ConfigError

EXTRA = {
    "aiohttp": "fleet",
    "aioquic": "http3",
    "grpc": "picker",
    "grpc_health": "picker",
    "httptools": "fleet",
    "lightgbm": "train",
    "matplotlib": "sim",
    "obstore": "s3",
    "psycopg": "fleet",
    "psycopg_pool": "fleet",
    "python_multipart": "fleet",
    "ray": "ray",
    "scipy": "sim",
    "starlette": "fleet",
    "uvicorn": "fleet",
    "uvloop": "fleet",
}
"""Modules to extras of pyproject.toml that have their packages, which a test compares."""


def not_installed(what: str, module: str, extra: str) -> ConfigError:
    """Return the error for ``what``, the subject of a sentence, that needs a module of a package of ``extra``."""
    return ConfigError(f"{what} needs {module.partition('.')[0]}, which is not installed: {install_command(extra)}")


def install_command(extra: str | None = None) -> str:
    """Return the command that installs sloserve again from where it came, with the packages of ``extra``."""
    named = f"[{extra}]" if extra else ""
    checkout = Path(sloserve.__file__).parents[1]
    if (checkout / "pyproject.toml").is_file():
        return f"pip install -e '.{named}', in {checkout}"
    source = _installed_from()
    if source is None:
        return f"pip install './sloserve-{sloserve.__version__}-....whl{named}', the wheel file that you installed"
    return f"pip install '.{named}', in {source}" if source.is_dir() else f"pip install '{source}{named}'"


def _installed_from() -> Path | None:
    """Return the folder or wheel file that sloserve was installed from, if it is known (PEP 610) and still there."""
    try:
        stated = json.loads(distribution("sloserve").read_text("direct_url.json") or "{}")
        url = urlsplit(stated.get("url", ""))
    except (PackageNotFoundError, OSError, ValueError, AttributeError):
        return None
    found = Path(unquote(url.path))
    return found if url.scheme == "file" and found.exists() else None


def explained(error: ModuleNotFoundError, what: str = "this command") -> ConfigError | None:
    """Return the error for ``what``, which needs a module that is not installed; ``None`` where no extra has it."""
    module = (error.name or "").partition(".")[0]
    return not_installed(what, module, EXTRA[module]) if module in EXTRA else None
