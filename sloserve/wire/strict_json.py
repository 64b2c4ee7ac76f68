"""JSON as its standard has it (RFC 8259), each key of an object once: for bodies that only sloserve reads.

Python's own parser takes more: ``NaN``, numbers beyond a double, and a key twice, of which the last holds. What goes on
to an engine from such a body would be what its sender did not write. A body that vLLM's server reads as well is read as
vLLM reads it, see :mod:`sloserve.wire.body`.
"""

import json
import math
from typing import Any, NoReturn

from sloserve.core.errors import shown


def loads(text: bytes) -> Any:
    """Return the value of a JSON text in which each key of an object occurs once and numbers are finite.

    Raises: ValueError that says what is wrong, to be read after the name of the text.
    """
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_refuse, parse_float=_float, parse_int=_int)
    except _Stated:
        raise
    except RecursionError:
        raise ValueError("is not JSON: its values are nested too deep") from None
    except ValueError as error:  # of characters as well
        raise ValueError(f"is not JSON: {error}") from None


class _Stated(ValueError):
    """An error with a complete message, which is raised as it is."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _Stated(f"has the key {shown(twice)} more than once in one object; keep one")
    return found


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        _refuse(text)
    return value


def _int(text: str) -> int:
    value = int(text)
    try:
        float(value)
    except OverflowError:
        _refuse(text)
    return value


def _refuse(text: str) -> NoReturn:
    raise _Stated(f"has {shown(text)}, which is not a number in JSON; leave it out")
