"""Options of a command as dataclasses: each option is written once, with its type, default and help, where it is used.

A field is annotated as a parameter of Typer is, ``jobs: Annotated[int, typer.Option(help="...")] = 1``, and the flag is
its name. A command takes whole dataclasses, several if it likes, and two commands may take the same one.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, get_type_hints

import typer

_GIVEN = ("COMMANDLINE", "ENVIRONMENT")
"""Names of click's ``ParameterSource``, of which Typer may bring one of its own."""


def with_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return ``command`` with each parameter that is a dataclass replaced by its fields, as Typer reads them."""
    groups: dict[str, type[Any]] = {}
    flat: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        group = parameter.annotation
        if isinstance(group, type) and is_dataclass(group):
            groups[parameter.name] = group
            flat += _parameters(group)
        else:
            flat.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def grouped(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    grouped.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    grouped.__annotations__ = {one.name: one.annotation for one in flat}
    return grouped


def given(context: typer.Context, options: Any) -> dict[str, Any]:
    """Return the fields of the group ``options`` that the user gave, in the command line or the environment."""
    return {
        field.name: getattr(options, field.name)
        for field in fields(options)
        if (source := context.get_parameter_source(field.name)) is not None and source.name in _GIVEN
    }


def _parameters(group: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    kind = inspect.Parameter.KEYWORD_ONLY
    return [inspect.Parameter(f.name, kind, default=_default(f), annotation=hints[f.name]) for f in fields(group)]


def _default(field: Field[Any]) -> Any:
    return inspect.Parameter.empty if field.default is MISSING else field.default
