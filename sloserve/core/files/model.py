"""Errors of pydantic models as sentences for operators: which field, its value, which values it may have."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, GetJsonSchemaHandler, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema

from sloserve.core import numbers
from sloserve.core.errors import ConfigError, shown
from sloserve.core.files.marked_yaml import Node, Path, parse_yaml
from sloserve.core.nearest import did_you_mean

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Allowed:
    """Words that say what a value must be, to end the sentence "5 is not ..."; editors show them too.

    They stand in a field's ``Annotated``.
    """

    text: str

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(core_schema), "description": self.text}


def _not_tiny(value: float) -> float:
    if numbers.is_tiny(value):
        raise ValueError
    return value


NOT_TINY = AfterValidator(_not_tiny)
"""Validator that refuses what would be 0 once its unit is converted, such as 5e-324 ms.

It stands in the ``Annotated`` of a field above 0.
"""


class Problem(NamedTuple):
    """A mistake in a value at ``path``; ``text`` says what is wrong and what is needed."""

    path: Path
    text: str


def check_model(model: type[Model], values: Any, at: Path = ()) -> tuple[Model | None, list[Problem]]:
    """Return ``model`` made of ``values`` and no problems, or ``None`` and everything that is wrong with the values.

    Args:
        model: The model to make.
        values: The values to check.
        at: Path of ``values`` in the file, which problems state.
    """
    try:
        return model.model_validate(values), []
    except ValidationError as error:
        details = error.errors(include_url=False)
    problems = [_problem(model, dict(detail)) for detail in details]
    return None, [Problem((*at, *path), text) for path, text in problems]


def read_yaml_model(model: type[Model], where: str, text: str) -> Model:
    """Build ``model`` from YAML; ``where`` names the file in messages.

    Raises: ConfigError that lists each missing, unknown or out-of-range field with its place and what is needed.
    """
    root = parse_yaml(text, where)
    if not isinstance(root.value, dict):
        raise root.not_allowed("a mapping of fields to values")
    made, problems = check_model(model, root.plain())
    if made is None:
        raise ConfigError("\n".join(at_place(root, problem) for problem in problems))
    return made


def at_place(root: Node, problem: Problem) -> str:
    """Return one line: the place in the file that ``root`` was read from, the field, and what is wrong."""
    return f"{root.nearest(problem.path).place}: {dotted(problem.path) or 'the file'}: {problem.text}"


def dotted(path: Path) -> str:
    return ".".join(map(str, path))


def unknown(name: object, known: tuple[str, ...]) -> str:
    """Return the words for a name that is not one of ``known``."""
    return f"is unknown; known here: {', '.join(known)}{did_you_mean(name, known)}"


def _problem(model: type[BaseModel], detail: Mapping[str, Any]) -> Problem:
    path, fields, field = _resolve(model, detail["loc"])
    needed = f"; needed: {field.description}" if field is not None and field.description else ""
    allowed = next((x.text for x in field.metadata if isinstance(x, Allowed)), None) if field is not None else None
    value = detail["input"]
    match detail["type"]:
        case "missing":
            text = f"is missing; needed: {allowed}" if allowed else f"is missing{needed}"
        case "extra_forbidden" | "unexpected_keyword_argument":
            text = unknown(path[-1], tuple(fields))
        case "union_tag_invalid" | "union_tag_not_found":
            given = "is missing" if detail["type"] == "union_tag_not_found" else f"{detail['ctx']['tag']!r} is unknown"
            text = f"form {given}; needed: one of {', '.join(_tags(field))}"
        case _ if allowed:
            text = f"{shown(value)} is not {allowed}"
        case _ if isinstance(value, dict):
            text = f"{detail['msg']}{needed}"
        case _:
            text = f"{shown(value)}: {detail['msg']}{needed}"
    return Problem(path, text)


def _resolve(model: type[BaseModel], loc: Path) -> tuple[Path, Mapping[str, FieldInfo], FieldInfo | None]:
    """Return the path as written in the file, the fields known there, and the field that is meant.

    In a union pydantic adds its tag to the path; that part is left out.
    """
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
        owner = members[str(parts.pop(0))] if members else _without_none(field.annotation)
        below = getattr(owner, "__pydantic_fields__", None)
        if below is None or not parts:
            path += parts
            field = field if not parts else None
            break
        fields = below
    return tuple(path), fields, field


def _without_none(annotation: Any) -> Any:
    """Return the one type that a field may have beside ``None``, or ``annotation`` itself."""
    types = [one for one in get_args(annotation) if one is not type(None)]
    return types[0] if len(types) == 1 and type(None) in get_args(annotation) else annotation


def _tags(field: FieldInfo | None) -> dict[str, type]:
    """Return the classes of a union by the value of the field that tells them apart."""
    assert field is not None and isinstance(field.discriminator, str)
    return {get_args(cls.__annotations__[field.discriminator])[0]: cls for cls in get_args(field.annotation)}
