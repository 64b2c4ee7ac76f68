"""Classes for the priorities that other routers' requests state, such as Dynamo's number and SMG's word.

A table maps values of one header to classes. If all its keys are whole numbers, the header's value is a number, and the
largest key that is not above it counts; else the value is a word, compared without regard to case. A value that the
table does not cover has no effect, as in the routers themselves: such a header never makes a request fail.
"""

import functools
import re
from collections.abc import Mapping
from typing import Final

NUMBER: Final = re.compile(r"[+-]?[0-9]{1,10}")
"""A priority as a number: Dynamo's has 32 bits."""
DYNAMO: Final = "x-dynamo-request-priority"
"""Dynamo's header; its table holds for the same number in the body, too."""


class PriorityTable:
    """The classes that the values of one header stand for."""

    def __init__(self, classes: Mapping[str, str]) -> None:
        """Create a table of the class by value, numbers or words as they stand in the settings."""
        is_numeric = all(NUMBER.fullmatch(value) for value in classes)
        self._levels = sorted(((int(v), name) for v, name in classes.items()), reverse=True) if is_numeric else None
        self._words = {value.lower(): name for value, name in classes.items()}

    def class_of(self, value: str) -> str | None:
        """Return the class for a header's value; ``None`` if the table does not cover the value."""
        text = value.strip()
        if self._levels is None:
            return self._words.get(text.lower())
        if not NUMBER.fullmatch(text):
            return None
        number = int(text)
        return next((name for least, name in self._levels if least <= number), None)


class PriorityHeaders:
    """The headers that state a priority, in the order in which they count."""

    def __init__(self, tables: Mapping[str, Mapping[str, str]]) -> None:
        """Create the headers from the class by value of each, names in lower case."""
        self._tables = {name: PriorityTable(classes) for name, classes in tables.items()}

    @functools.cached_property
    def names(self) -> frozenset[bytes]:
        """The names of the headers, as ASGI has them."""
        return frozenset(name.encode("latin-1", "replace") for name in self._tables)

    def class_of_hint(self, priority: int) -> str | None:
        """Return the class for a priority that Dynamo's hint in the body states; ``None`` if the setting maps none."""
        table = self._tables.get(DYNAMO)
        return None if table is None else table.class_of(str(priority))

    def find(self, stated: Mapping[str, str]) -> tuple[str, str] | None:
        """Return the first header that stands for a class, with the class; ``None`` if none does.

        Args:
            stated: Values by name of the header.
        """
        for name in self._tables if stated else ():
            found = self._tables[name].class_of(stated[name]) if name in stated else None
            if found is not None:
                return name, found
        return None
