"""The kinds of files that commands read, and which kind a file is by the keys in it.

A command that is given a file of another kind says what the file is, and which command reads it. The keys of a kind
stand in its JSON schema; of a kind without a schema, the few keys count by which its readers know it.
"""

import functools
import gzip
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sloserve.core.errors import ConfigError
from sloserve.core.files.examples import examples
from sloserve.core.files.marked_yaml import parse_yaml

_LOOKED_AT = 2**18
"""Bytes of a file that are looked at; traces and results are longer, and show their kind in the first lines."""
_SURE = 0.8
"""Least share of a file's keys that a kind knows, for the file to be named as this kind."""
_ITEMS = 8
"""Entries of a list that are looked at."""
_KEY = re.compile(r'"([\w ]+)"\s*:')


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of file.

    Args:
        what: The words for a file of this kind, with an article.
        remedy: What to do with a file of this kind, with ``{}`` for its path.
        marks: Sets of keys, of which one set is complete in each file of this kind; empty for a kind with a schema.
    """

    what: str
    remedy: str
    marks: tuple[frozenset[str], ...] = ()


def _marks(*sets: str) -> tuple[frozenset[str], ...]:
    return tuple(frozenset(one.split(",")) for one in sets)


KINDS: Mapping[str, FileKind] = {
    "settings": FileKind("a settings file of a server", "use sloserve serve MODEL --slo-config {}"),
    "fleet": FileKind("a fleet's file", "use sloserve fleet {}"),
    "picker": FileKind("an endpoint picker's file", "use sloserve fleet picker {}"),
    "slo": FileKind("an SLO file of a workload", "use sloserve simulate --slo {}"),
    "server_keys": FileKind("a server's file of keys", "use sloserve serve MODEL --keys {}"),
    "keys": FileKind("a fleet's file of keys", "use sloserve fleet FILE --keys {}"),
    "profile": FileKind("a profile of an engine", "use sloserve simulate --profile {}"),
    "router": FileKind("a router's file", "name it in a fleet's file as router: {}"),
    "trace": FileKind(
        "a trace",
        "use sloserve simulate --trace {}",
        _marks(
            "prompt_tokens,output_tokens",
            "TIMESTAMP,ContextTokens",
            "Request tokens,Response tokens",
            "input_length,output_length",
            "conversations",
            "prompt,output_tokens",
        ),
    ),
    "result": FileKind(
        "a result of sloserve simulate or bench",
        "it is for people and scripts, and no command reads it",
        _marks("sloserve_version,runs"),
    ),
    "examples": FileKind("a file of outputs", "use sloserve train-length {}", _marks("output_tokens", "output")),
    "requests": FileKind(
        "a result of a load generator",
        "use sloserve judge {}",
        _marks("ttfts,itls", "benchmarks", "metadata,metrics"),
    ),
    "length_model": FileKind(
        "a model of output lengths", "name it in settings as length_model: {}", _marks("format,levels,medians")
    ),
    "grades": FileKind(
        "graded answers", "use sloserve router-quality {}", _marks("model,task,score", "model,task,correct,answers")
    ),
}
"""The kinds by name; kinds with a schema have its name. Of two that fit a file equally well the first is meant."""


@contextmanager
def reading(kind: str, path: Path) -> Iterator[None]:
    """Read the file at ``path`` as a ``kind`` of :data:`KINDS`; if it is of another kind, an error says of which.

    Raises: ConfigError of the reader, or one that names the kind of the file and the command for it.
    """
    try:
        yield
    except ConfigError as error:
        found = otherwise(kind, KINDS[kind].what, path)
        if found is None:
            raise
        raise ConfigError(found) from error


def otherwise(kind: str, wanted: str, path: Path) -> str | None:
    """Return what the file at ``path`` is and what to do with it, if it is certainly of another kind than ``kind``.

    Args:
        kind: Name in :data:`KINDS`, or any other name where no kind of these is wanted.
        wanted: Words for the file that is wanted, with an article.
        path: Path of the file.
    """
    content = _content(path)
    if not isinstance(content, Mapping):
        return None
    likeness = {name: _likeness(name, one, content) for name, one in KINDS.items()}
    best = max(likeness, key=likeness.__getitem__)
    if likeness[best] < _SURE or likeness[best] <= likeness.get(kind, 0.0):
        return None
    return f"{path}: this is {KINDS[best].what}, not {wanted}; {KINDS[best].remedy.format(path)}"


def _content(path: Path) -> Any:
    """Return the keys and values at the beginning of a file, as far as they can be read."""
    try:
        with path.open("rb") as plain:
            packed = plain.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else path.open("rb") as file:
            text = file.read(_LOOKED_AT).decode("utf-8-sig", "ignore").lstrip()
    except (OSError, EOFError):
        return None
    first = text.partition("\n")[0].strip()
    if first.startswith(("{", "[")):
        return _of_json(first, text)
    if "," in first and ":" not in first:
        return dict.fromkeys(cell.strip().strip('"') for cell in first.split(","))
    try:
        return parse_yaml(text, str(path)).plain()
    except ConfigError:
        return None


def _of_json(first: str, text: str) -> Any:
    """Return a JSON object, the first one of a list or of lines, or the keys of one that is cut off."""
    for part in (first, text):
        try:
            value = json.loads(part)
        except (ValueError, RecursionError):
            continue
        return value[0] if isinstance(value, list) and value else value
    return dict.fromkeys(_KEY.findall(text))


def _likeness(name: str, kind: FileKind, content: Mapping[str, Any]) -> float:
    """Return which share of the keys in ``content`` a kind of file knows, 0..1."""
    if kind.marks:
        return float(any(marks <= content.keys() for marks in kind.marks))
    schema = _schema(name)
    known, strange = _keys(content, schema, schema)
    return known / (known + strange) if known else 0.0


@functools.cache
def _schema(name: str) -> Mapping[str, Any]:
    """Return the schema of a kind of file, as it is shipped; an empty one if it cannot be read."""
    try:
        schema: Mapping[str, Any] = json.loads(examples()[f"schemas/{name}.json"].read_bytes())
    except (ConfigError, KeyError, OSError, ValueError):
        return {}
    return schema


def _keys(value: Any, schema: Mapping[str, Any], root: Mapping[str, Any]) -> tuple[int, int]:
    """Return the number of keys in ``value`` that ``schema`` names, and of keys and values that it does not allow.

    Args:
        value: A value of the file.
        schema: The schema of the value.
        root: The schema of the file, which has the definitions.
    """
    if "$ref" in schema:
        schema = root["definitions"][str(schema["$ref"]).rpartition("/")[2]]
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices:
        return max((_keys(value, one, root) for one in choices), key=lambda found: found[0] - found[1])
    if isinstance(value, list):
        items = schema.get("items")
        if isinstance(items, Mapping):
            return _sum(_keys(one, items, root) for one in value[:_ITEMS])
        return (0, 0) if _is(schema, "array") else (0, 1)
    if not isinstance(value, Mapping):
        return (0, 1) if schema.get("type") in ("object", "array") and value is not None else (0, 0)
    if not _is(schema, "object"):
        return 0, 1
    return _sum(_entry(name, below, schema, root) for name, below in value.items())


def _entry(name: str, value: Any, schema: Mapping[str, Any], root: Mapping[str, Any]) -> tuple[int, int]:
    named = schema.get("properties", {}).get(name)
    if named is not None:
        known, strange = _keys(value, named, root)
        return known + 1, strange
    others = schema.get("additionalProperties", not schema.get("properties"))
    return _keys(value, others, root) if isinstance(others, Mapping) else (0, 0 if others else 1)


def _is(schema: Mapping[str, Any], kind: str) -> bool:
    """Return whether a value of the JSON type ``kind`` may stand where ``schema`` says."""
    return bool(schema.get("type", kind) == kind)


def _sum(found: Iterator[tuple[int, int]]) -> tuple[int, int]:
    known, strange = 0, 0
    for more_known, more_strange in found:
        known, strange = known + more_known, strange + more_strange
    return known, strange
