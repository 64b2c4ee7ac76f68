"""Numbers in flags are read as everywhere else, see :mod:`sloserve.core.numbers`: Typer itself reads ``1_000``."""

from collections.abc import Callable
from typing import Any

import typer

from sloserve.core import numbers

_READERS: dict[str, Callable[[str], float]] = {"int": numbers.whole, "integer": numbers.whole, "float": numbers.number}


def read_strictly(command: Any) -> Any:
    """Return ``command`` with its flags, and those of its subcommands, reading numbers by our rule."""
    for parameter in command.params:
        reader = _READERS.get(_kind(parameter))
        if reader is not None and not hasattr(parameter, "reads_strictly"):
            parameter.process_value, parameter.reads_strictly = _strict(parameter, reader), True
    for below in getattr(command, "commands", {}).values():
        read_strictly(below)
    return command


def _kind(parameter: Any) -> str:
    """Return the name of the type of a parameter's values, with a Typer that has its own types or click's."""
    described = getattr(parameter, "type_descriptor", None)
    if described is not None:
        return str(getattr(described.annotation, "__name__", ""))
    return str(getattr(parameter.type, "name", "")).partition(" ")[0]  # as in "integer range"


def _strict(parameter: Any, reader: Callable[[str], float]) -> Callable[[Any, Any], Any]:
    process = parameter.process_value

    def process_value(context: Any, value: Any) -> Any:
        try:
            found = reader(value) if isinstance(value, str) else value
        except ValueError as error:
            raise typer.BadParameter(str(error), ctx=context, param=parameter) from None
        return process(context, found)

    return process_value
