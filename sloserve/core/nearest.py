"""The name that a mistyped one probably stands for, for all messages that ask "did you mean"."""

import difflib
from collections.abc import Iterable

_CUTOFF = 0.6
"""Least similarity of two names, 0..1, from which one is taken for a misspelling of the other; difflib's default."""


def nearest(name: object, known: Iterable[str], cutoff: float = _CUTOFF) -> str | None:
    """Return the name in ``known`` that is most like ``name``, or ``None`` if no name is like it.

    Upper and lower case do not count.

    Args:
        name: The name as it was written.
        known: The names that there are.
        cutoff: Least similarity, 0..1.
    """
    spelt = {one.casefold(): one for one in known}
    close = difflib.get_close_matches(str(name).casefold(), spelt, n=1, cutoff=cutoff)
    return spelt[close[0]] if close else None


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return the end of a message that asks whether the most similar name in ``known`` is meant, or nothing."""
    close = nearest(name, known)
    return "" if close is None else f"; did you mean {close!r}?"
