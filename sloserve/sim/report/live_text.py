"""Text and tables of the screens of a live feed.

Others chose the names in a view. They are shown as plain text without control characters, so that no name of a model or
class can colour, move or clear anything.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from sloserve.core.in_words import in_one_unit

View = Mapping[str, Any]

BAD, HELD_UP, DIM = "bold red", "yellow", "dim"
MOST_CHARS: Final = 60
CLASS_CHARS: Final = 12
"""The most characters of a class's name on a narrow terminal; a longer name would take the room of the figures."""


def plain(value: object, style: str = "", most_chars: int = MOST_CHARS) -> Text:
    """Return any text without control characters, shortened."""
    text = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in str(value))
    return Text(text if len(text) <= most_chars else text[: most_chars - 1] + "…", style)


def table(words: Sequence[str], figures: Sequence[str]) -> Table:
    """Return an empty table with columns of words and, to their right, columns of figures."""
    found = Table(box=None, header_style=DIM, pad_edge=False)
    for name in words:
        found.add_column(name, no_wrap=True)
    for name in figures:
        found.add_column(name, justify="right", no_wrap=True)
    return found


def count(number: int, style: str = "") -> Text:
    return Text(f"{number:,}", style if number else DIM)


def due_column(name: str, left_s: Sequence[float | None]) -> tuple[str, list[Text]]:
    """Return the heading and the cells of times until deadlines, all in one unit; a time that has passed is late."""
    unit, texts = in_one_unit([None if one is None else abs(one) for one in left_s])
    is_late = [one is not None and one < 0.0 for one in left_s]
    cells = [
        Text(f"{text} late" if late else text, BAD if late else "") for text, late in zip(texts, is_late, strict=True)
    ]
    return f"{name}, {unit}", cells


def columns(view: View) -> list[tuple[str, dict[str, Any]]]:
    """Return the rows of a view by key, each as its values by column."""
    return [(key, dict(zip(view["columns"], row, strict=True))) for key, row in view["rows"].items()]
