"""What the help calls the value of an option: ``TEXT``, not ``<list[str]>`` as Typer writes the types of Python."""

from typing import Any, Final

from sloserve.cli.flag_numbers import kind_of

_NAMES: Final = {"str": "TEXT", "int": "INTEGER", "float": "NUMBER", "Path": "PATH"}
"""Names by the type of the values; a choice lists its values instead, and an option that states a name keeps it."""


def name_values(command: Any) -> Any:
    """Return ``command`` with plain names for the values of its options, and without types beside its arguments."""
    for parameter in command.params:
        name = _NAMES.get(kind_of(parameter))
        if parameter.param_type_name == "argument":
            parameter.display_type_rich = _nothing
        elif parameter.metavar is None and name is not None and not getattr(parameter, "is_flag", False):
            parameter.metavar = name
    for below in getattr(command, "commands", {}).values():
        name_values(below)
    return command


def _nothing(*_: Any, **__: Any) -> str:
    return ""
