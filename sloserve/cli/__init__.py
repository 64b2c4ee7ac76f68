"""The ``sloserve`` command: its root, how it prints and fails, and what checks the installation and the host.

Commands stand in the packages that they are of, and register themselves (:mod:`~sloserve.cli.registered`). Heavy
libraries are imported by the command that needs them, so that ``--help`` and a mistyped policy answer at once.
"""

from typing import Any

__all__ = ["app", "main"]


def __getattr__(name: str) -> Any:
    """Return ``app`` with all commands registered, or ``main``, which registers them when it runs.

    A package that registers a command imports modules of this one, which must not import that package in turn.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sloserve.cli import registered, root

    if name == "app":
        registered.import_commands()
    found = getattr(root, name)
    globals()[name] = found
    return found
