"""JSON schemas of files that operators write, made from the models that read them, for editors.

A schema knows names, types and bounds. What holds between two values, such as the name of a class that another key
defines, only the reader of the file checks.
"""

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, GetJsonSchemaHandler, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import CoreSchema

DIALECT = "http://json-schema.org/draft-07/schema#"
"""Dialect that the YAML language server of editors reads; pydantic writes a newer one."""
_DRAFT_7 = {"$defs": "definitions", "prefixItems": "items"}

JsonSchema = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Written:
    """Type of a value in a file, for a field's ``Annotated``, where the reader makes another type of it."""

    type: Any

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchema:
        return handler(TypeAdapter(self.type).core_schema)


class _Generator(GenerateJsonSchema):
    schema_dialect = DIALECT
    # A default that is an object of ours is not what a file would hold, so the schema leaves it out.
    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}


def schema_of(model: type[BaseModel], title: str) -> JsonSchema:
    """Return the schema of a file that holds ``model``."""
    made = model.model_json_schema(schema_generator=_Generator, ref_template="#/definitions/{model}")
    return titled(title, {key: value for key, value in _plain(made).items() if key != "description"})


def titled(title: str, schema: JsonSchema) -> JsonSchema:
    """Return ``schema`` with the dialect and ``title`` before its other keys."""
    return {"$schema": DIALECT, "title": title, **schema}


def _plain(schema: Any) -> Any:
    """Return ``schema`` without the titles that pydantic makes of names, and with the words of draft 7."""
    if isinstance(schema, list):
        return [_plain(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        _DRAFT_7.get(key, key): _plain(value)
        for key, value in schema.items()
        if not (key == "title" and isinstance(value, str))
    }
