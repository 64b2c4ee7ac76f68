"""Packages that sloserve does not install by itself: which extra brings each, and the line that says so."""

from sloserve.core.errors import ConfigError

EXTRA = {
    "aiohttp": "fleet",
    "aioquic": "http3",
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
    """The line for ``what``, the subject of a sentence, that needs a package of ``extra``."""
    return ConfigError(f"{what} needs {module}, which is not installed: pip install 'sloserve[{extra}]'")


def explained(error: ModuleNotFoundError) -> ConfigError | None:
    """The line for a module that is not there; ``None`` where no extra has it."""
    module = (error.name or "").partition(".")[0]
    return not_installed("this command", module, EXTRA[module]) if module in EXTRA else None
