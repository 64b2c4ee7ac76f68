"""What packages, ours and others, add to the command line by entry points, so that it imports none of them.

===================  ==============================================================================================
group                value of an entry point
===================  ==============================================================================================
sloserve.commands    a module that adds its commands to :data:`sloserve.cli.root.app` when it is imported
sloserve.checks      a function that yields findings of ``sloserve doctor``; hyphens of its name are shown as spaces
sloserve.schemas     a function that returns the JSON schema of the kind of file that the entry point is named after
sloserve.simulators  a function that ``sloserve simulate`` runs in place of a single engine
===================  ==============================================================================================
"""

import sys
from importlib.metadata import EntryPoint
from typing import Any

from sloserve.core.errors import ConfigError
from sloserve.core.extras import install_command
from sloserve.core.registrations import registered

COMMANDS = "sloserve.commands"
CHECKS = "sloserve.checks"
SCHEMAS = "sloserve.schemas"
SIMULATORS = "sloserve.simulators"


def names(group: str) -> list[str]:
    """Return the names that are registered in ``group``, sorted."""
    return sorted(registered(group))


def load(group: str, name: str) -> Any:
    """Return what is registered in ``group`` as ``name``.

    Raises: ConfigError where nothing is.
    """
    found = registered(group).get(name)
    if found is None:
        raise ConfigError(f"{group}: nothing is registered as {name!r}; known: {', '.join(names(group))}")
    return found.load()


def import_commands() -> None:
    """Import all modules that register commands, in the order of their names.

    A module that fails to import does not take the other commands away; a line on standard error names it.

    Raises: ConfigError where no command is registered: the metadata of the installation is older than the code.
    """
    commands = registered(COMMANDS)
    if not commands:
        raise ConfigError(f"{COMMANDS}: no command is registered; install sloserve again: {install_command()}")
    for name, one in sorted(commands.items()):
        try:
            one.load()
        except Exception as error:
            print(f"sloserve: the commands {_described(name, one)} could not be loaded: {error}", file=sys.stderr)


def _described(name: str, one: EntryPoint) -> str:
    """Return the name of an entry point and the distribution that it comes from."""
    return name if one.dist is None else f"{name} of {one.dist.name}"
