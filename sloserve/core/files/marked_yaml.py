"""YAML in which every value knows its place, so that a message can state file, line, column and key.

Values are of YAML's safe subset, and ``1e3`` is a number as in YAML 1.2. Keys are text; a key that is given twice is an
error, and so is an alias that contains itself.
"""

import math
import pathlib
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import yaml

from sloserve.core import numbers
from sloserve.core.errors import ConfigError, shown
from sloserve.core.nearest import did_you_mean

Path = tuple[str | int, ...]
"""Path to a value in nested mappings and lists: keys, and indices from 0."""


class _Loader(yaml.SafeLoader):
    """Loader of YAML's safe subset."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


@dataclass(frozen=True, slots=True)
class Node:
    """A value and its place.

    Args:
        value: A ``dict[str, Node]``, a ``list[Node]`` or a scalar.
        place: File, line and column of the value's key, or of the value if it has no key.
        key: Path of the keys to the value, such as ``classes.chat.share``.
    """

    value: Any
    place: str
    key: str

    def plain(self) -> Any:
        """Return the value without places: mappings, lists and scalars."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        return [node.plain() for node in self.value] if isinstance(self.value, list) else self.value

    def nearest(self, path: Path) -> "Node":
        """Return the value at ``path`` below this one, or the last value on the way there that exists."""
        node = self
        for part in path:
            below = node.value
            if isinstance(below, dict) and part in below:
                node = below[str(part)]
            elif isinstance(below, list) and isinstance(part, int) and part < len(below):
                node = below[part]
            else:
                break
        return node

    def fail(self, message: str) -> ConfigError:
        """Return an error about this value: place, key, then ``message``."""
        return ConfigError(f"{self.place}: {self.key + ': ' if self.key else ''}{message}")

    def not_allowed(self, allowed: str) -> ConfigError:
        """Return an error that states the value and what is allowed."""
        kinds: dict[type, str] = {dict: "a mapping", list: "a list"}
        return self.fail(f"{kinds.get(type(self.value)) or shown(self.value)} is not {allowed}")

    def mapping(self, keys: Collection[str] | None = None) -> dict[str, "Node"]:
        """Return the entries of this mapping.

        Args:
            keys: The keys that are allowed; ``None`` for any.

        Raises: ConfigError if the value is no mapping or has another key.
        """
        if not isinstance(self.value, dict):
            raise self.not_allowed(f"a mapping with {', '.join(keys)}" if keys else "a mapping")
        for key, entry in self.value.items():
            if keys is not None and key not in keys:
                raise entry.fail(f"unknown key; allowed: {', '.join(keys)}{did_you_mean(key, keys)}")
        return dict(self.value)

    def text(self) -> str:
        """Return this value as text.

        Raises: ConfigError unless it is non-empty text.
        """
        if not isinstance(self.value, str) or not self.value:
            raise self.not_allowed("text")
        return self.value

    def number(self, low: float, high: float, *, above: bool = False) -> float:
        """Return the number that this value is; text such as ``1e3`` counts as a number.

        Args:
            low: The least number that is allowed.
            high: The greatest number that is allowed.
            above: Whether the number must be above ``low``.

        Raises: ConfigError for anything else.
        """
        allowed = f"a number {f'above {low:g}, up to' if above else f'from {low:g} to'} {high:.10g}"
        if isinstance(self.value, bool) or not isinstance(self.value, int | float | str):
            raise self.not_allowed(allowed)
        try:
            number = numbers.number(self.value) if isinstance(self.value, str) else float(self.value)
        except (ValueError, OverflowError):
            raise self.not_allowed(allowed) from None
        if (
            not math.isfinite(number)
            or number > high
            or number < low
            or (above and (number == low or numbers.is_tiny(number)))
        ):
            raise self.not_allowed(allowed)
        return number


def load_yaml(path: pathlib.Path) -> Node:
    """Return the document in the file at ``path``.

    Raises: ConfigError for a file that cannot be read or is not one well-formed YAML document.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text (byte {error.start}: {error.reason})") from None
    return parse_yaml(text, str(path))


def parse_yaml(text: str, source: str) -> Node:
    """Return the document in ``text``; ``source`` stands for the file's name in messages.

    Raises: ConfigError unless it is one well-formed YAML document.
    """
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            raise ConfigError(f"{source}:1:1: is empty")
        return _mark(loader, root, source, "", _place(source, root), ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise ConfigError(f"{source}{at}: is not YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{source}: is not YAML: {' '.join(str(error).split())}") from None


def _place(source: str, node: yaml.Node) -> str:
    return f"{source}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"


def _mark(
    loader: yaml.SafeLoader, node: yaml.Node, source: str, key: str, place: str, inside: tuple[yaml.Node, ...]
) -> Node:
    if node in inside:
        raise ConfigError(f"{place}: {key}: contains itself")
    inside = (*inside, node)
    if isinstance(node, yaml.SequenceNode):
        items = enumerate(node.value)
        return Node([_mark(loader, x, source, f"{key}[{i}]", _place(source, x), inside) for i, x in items], place, key)
    if not isinstance(node, yaml.MappingNode):
        return Node(loader.construct_object(node), place, key)
    entries: dict[str, Node] = {}
    for key_node, value_node in node.value:
        at = _place(source, key_node)
        if not isinstance(key_node, yaml.ScalarNode):
            raise ConfigError(f"{at}: a key must be text")
        name = str(key_node.value)
        path = f"{key}.{name}" if key else name
        if name in entries:
            first = entries[name].place.split(":")[-2]
            raise ConfigError(f"{at}: {path}: given twice, first in line {first}")
        entries[name] = _mark(loader, value_node, source, path, at, inside)
    return Node(entries, place, key)
