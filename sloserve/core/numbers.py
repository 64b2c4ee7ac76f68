"""Numbers in text that a person or a client wrote: policy options, flags, headers, environment variables.

Python's own functions accept more: ``1_000``, the digits of all scripts, ``nan``, ``inf``, and any number of digits are
numbers for ``int`` or ``float``. Here a number is ASCII digits with an optional sign, point and exponent, and is
bounded.
"""

import re
from typing import Final, TypeVar

from sloserve.core.errors import shown

LEAST: Final = 1e-300
"""Smallest number above 0 that counts. A smaller one would be 0 once its unit is converted, or has no reciprocal."""

MOST: Final = 2**53
"""Largest magnitude; whole numbers above are not exact as floats."""

_MOST_CHARS: Final = 64
"""Longest text. An exact decimal fraction, as some languages print it, has up to 55 characters."""

_Number = TypeVar("_Number", int, float)
_WHOLE: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)
_NUMBER: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)


class NotANumber(ValueError):
    """The text is not a number, or not one within bounds; the message shows it and says what is allowed."""


def number(text: str) -> float:
    """Return the number in ``text``; spaces around it are allowed.

    Raises: NotANumber that says what is wrong, for anything but a number of :data:`LEAST` to :data:`MOST` or 0.
    """
    stripped = text.strip(" ")
    if len(stripped) <= _MOST_CHARS and _NUMBER.fullmatch(stripped):
        return bounded(float(stripped), text)
    raise NotANumber(f"{shown(text)} is not a number in ASCII digits, such as 0.5 or 1e3")


def whole(text: str) -> int:
    """Return the whole number in ``text``; spaces around it are allowed.

    Raises: NotANumber that says what is wrong, for anything but a whole number up to :data:`MOST`.
    """
    stripped = text.strip(" ")
    if len(stripped) <= _MOST_CHARS and _WHOLE.fullmatch(stripped):
        return bounded(int(stripped), text)
    raise NotANumber(f"{shown(text)} is not a whole number in ASCII digits")


def bounded(value: _Number, written: object = None) -> _Number:
    """Return ``value`` if it is within the bounds.

    Args:
        value: The number to check.
        written: The number as a message shows it; ``None`` for ``value`` itself.

    Raises: NotANumber if the magnitude is above :data:`MOST`, or below :data:`LEAST` and not 0, or ``value`` is NaN.
    """
    if not abs(value) <= MOST:
        raise NotANumber(f"{shown(value if written is None else written)} is not within -{MOST}..{MOST}")
    if is_tiny(value):
        raise NotANumber(f"{shown(value if written is None else written)} is too near to 0 (below {LEAST:g})")
    return value


def is_tiny(value: float) -> bool:
    """Return whether ``value`` is so near to 0 that it counts as 0 once its unit is converted."""
    return 0.0 < abs(value) < LEAST


def is_whole(text: str) -> bool:
    """Return whether ``text`` consists of ASCII digits alone, as headers and protocols write whole numbers."""
    return text.isascii() and text.isdecimal()
