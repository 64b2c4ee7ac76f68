"""Numbers in flags are read as everywhere else, see :mod:`sloserve.core.numbers`: Typer itself reads ``1_000``."""

from collections.abc import Callable
from typing import Any, get_args

import typer

from sloserve.core import numbers

_READERS: dict[str, Callable[[str], float]] = {"int": numbers.whole, "integer": numbers.whole, "float": numbers.number}


def read_strictly(command: Any) -> Any:
    """Return ``command`` with its flags, and the flags of its subcommands, reading numbers by our rule."""
    for parameter in command.params:
        reader = _READERS.get(kind_of(parameter))
        if reader is not None and not hasattr(parameter, "reads_strictly"):
            parameter.process_value, parameter.reads_strictly = _strict(parameter, reader), True
    for below in getattr(command, "commands", {}).values():
        read_strictly(below)
    return command


def kind_of(parameter: Any) -> str:
    """Return the name of the type of a parameter's values, with a Typer that has its own types or click's."""
    described = getattr(parameter, "type_descriptor", None)
    if described is not None:
        one = next(iter(get_args(described.annotation)), described.annotation)  # of a flag that may come several times
        return str(getattr(one, "__name__", ""))
    return str(getattr(parameter.type, "name", "")).partition(" ")[0]  # as in "integer range"


def _read(value: Any, reader: Callable[[str], float]) -> Any:
    """Return the numbers in a value as it was given, or in a list of them, of a flag that may come several times."""
    if isinstance(value, list | tuple):
        return type(value)(_read(one, reader) for one in value)
    return reader(value) if isinstance(value, str) else value


def _strict(parameter: Any, reader: Callable[[str], float]) -> Callable[[Any, Any], Any]:
    """Return the parameter's ``process_value``, which reads text by ``reader`` first."""
    process = parameter.process_value

    def process_value(context: Any, value: Any) -> Any:
        try:
            found = _read(value, reader)
        except ValueError as error:
            raise typer.BadParameter(str(error), ctx=context, param=parameter) from None
        return process(context, found)

    return process_value
