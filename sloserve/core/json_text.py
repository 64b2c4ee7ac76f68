"""JSON of figures. What JSON has no number for, NaN and the infinities, is null: there is no such figure."""

import json
import math
from collections.abc import Mapping
from typing import Any, Final

_EXACT_CHARS: Final = 19
"""Whole numbers of this length are kept as they are; longer ones may be beyond what a float can hold."""


def dumps(value: Any, **options: Any) -> str:
    """Return ``value`` as JSON.

    Args:
        value: A value that JSON can hold; numbers that are not finite become ``null``.
        **options: Options of :func:`json.dumps`.
    """
    try:
        return json.dumps(value, allow_nan=False, **options)
    except ValueError:
        return json.dumps(without_nan(value), allow_nan=False, **options)


def compact(value: Any) -> bytes:
    """Return ``value``, a part of a response that was read from JSON, as JSON without spaces, in UTF-8.

    Characters stay as they are. A lone half of a UTF-16 pair has no UTF-8: a value with one is written in ASCII.
    """
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()


def without_nan(value: Any) -> Any:
    """Return ``value`` with None in place of each float in it that is not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: without_nan(one) for key, one in value.items()}
    return [without_nan(one) for one in value] if isinstance(value, list | tuple) else value


def loads_figures(text: str | bytes) -> Any:
    """Return the value of a file of figures that another program wrote, with None for NaN and the infinities.

    Raises: json.JSONDecodeError for text that is not JSON.
    """
    return json.loads(text, parse_constant=lambda _: None, parse_float=_finite, parse_int=_whole)


def _whole(text: str) -> float | None:
    return int(text) if len(text) <= _EXACT_CHARS else _finite(text)


def _finite(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None
