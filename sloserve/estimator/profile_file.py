"""YAML text to a checked model, with every problem reported at its line.

Reports what a bare parser hides: a key written twice, and the line and column of a field that a model refuses.
"""

import difflib
from collections.abc import Mapping
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from sloserve.core.errors import ConfigError

Path = tuple[str | int, ...]
_DEEPEST = 8
"""Levels searched for places: more than any model has, and the end of a YAML that contains itself."""
Model = TypeVar("Model", bound=BaseModel)


def read_yaml_model(model: type[Model], where: str, text: str) -> Model:
    """Builds ``model`` from YAML; ``where`` names the file in messages.

    Raises: ConfigError that lists each missing, unknown, repeated or out-of-range field with its place and what is
    needed.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        values = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{where}:{mark.line + 1}:{mark.column + 1}" if mark else where
        raise ConfigError(f"{place}: not valid YAML: {error.problem or error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{where}: not valid YAML: {error}") from error
    if root is None or not isinstance(values, dict):
        raise ConfigError(f"{where}: holds {type(values).__name__}, a mapping of fields to values is needed")
    places: dict[Path, yaml.Mark] = {}
    _locate(root, (), places, where)
    try:
        return model.model_validate(values)
    except ValidationError as error:
        problems = [_problem(model, where, dict(detail), places) for detail in error.errors(include_url=False)]
    raise ConfigError("\n".join(problems))


def _locate(node: yaml.Node, path: Path, places: dict[Path, yaml.Mark], where: str) -> None:
    """Notes where each key and value starts. Raises: ConfigError for a key written twice."""
    places.setdefault(path, node.start_mark)
    if len(path) == _DEEPEST:
        return
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _locate(item, (*path, index), places, where)
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        below = (*path, key.value)
        if below in places:
            mark = key.start_mark
            first = places[below].line + 1
            raise ConfigError(
                f"{where}:{mark.line + 1}:{mark.column + 1}: {_dotted(below)}: given twice, first in line {first}"
            )
        places[below] = key.start_mark
        _locate(value, below, places, where)


def _problem(model: type[BaseModel], where: str, detail: Mapping[str, Any], places: Mapping[Path, yaml.Mark]) -> str:
    """One line: place, field, what is wrong and what is needed."""
    path, fields, field = _resolve(model, detail["loc"])
    mark = next(places[path[:depth]] for depth in range(len(path), -1, -1) if path[:depth] in places)
    needed = f"; needed: {field.description}" if field is not None and field.description else ""
    match detail["type"]:
        case "missing":
            text = f"is missing{needed}"
        case "extra_forbidden" | "unexpected_keyword_argument":
            close = difflib.get_close_matches(str(path[-1]), fields, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            text = f"is unknown; known here: {', '.join(fields)}{hint}"
        case "union_tag_invalid" | "union_tag_not_found":
            given = "is missing" if detail["type"] == "union_tag_not_found" else f"{detail['ctx']['tag']!r} is unknown"
            text = f"form {given}; needed: one of {', '.join(_tags(field))}"
        case _:
            text = f"{detail['input']!r}: {detail['msg']}" if not isinstance(detail["input"], dict) else detail["msg"]
            text += needed
    return f"{where}:{mark.line + 1}:{mark.column + 1}: {_dotted(path)}: {text}"


def _resolve(model: type[BaseModel], loc: Path) -> tuple[Path, Mapping[str, FieldInfo], FieldInfo | None]:
    """The path as written in the file (pydantic's adds the union's tag), the fields known there, the field meant."""
    path: list[str | int] = []
    fields: Mapping[str, FieldInfo] = model.model_fields
    field: FieldInfo | None = None
    parts = list(loc)
    while parts:
        part = parts.pop(0)
        path.append(part)
        field = fields.get(str(part))
        if field is None or not parts:
            break
        members: dict[str, type] = _tags(field) if field.discriminator else {}
        owner = members[str(parts.pop(0))] if members else field.annotation
        below = getattr(owner, "__pydantic_fields__", None)
        if below is None or not parts:
            break
        fields = below
    return tuple(path), fields, field


def _tags(field: FieldInfo | None) -> dict[str, type]:
    """The classes of a union by the value of the field that tells them apart."""
    assert field is not None and isinstance(field.discriminator, str)
    return {get_args(cls.__annotations__[field.discriminator])[0]: cls for cls in get_args(field.annotation)}


def _dotted(path: Path) -> str:
    return ".".join(str(part) for part in path) or "the file"
