"""The tables of docs/benchmarks that are made of published results, so that no figure in them is typed.

A table of ``page_tables.toml`` has rows and columns: a row's name and ``at``, a column's head and text. The figures of
a text are read as :mod:`benchmarks.paper_tables` says, with the row's ``at`` in place of ``@``.
``pytest tests/docs --update-docs`` writes each between ``<!-- table: PAGE.NAME -->`` and ``<!-- end -->`` of its page.
"""

import re
import tomllib
from pathlib import Path
from typing import Any, Final

from benchmarks.paper_tables import filled
from benchmarks.publish import markdown

TABLES: Final[dict[str, dict[str, Any]]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
"""By page, then by name."""
_AT: Final = re.compile(r"@(?!\w)")
"""But not before a word: so policies name options of their engines."""


def page_table(name: str) -> str:
    """The table ``PAGE.NAME`` as Markdown. Raises: ValueError for a figure that is in no result."""
    page, _, table = name.partition(".")
    told = TABLES[page][table]
    columns = told["columns"]
    head = [told["rows_are"], *(head for head, _ in columns)]
    rows = ([name, *(filled(_AT.sub(at, text)) for _, text in columns)] for name, at in told["rows"])
    return "\n".join(markdown([head, *rows])) + "\n"
