"""The tables of docs/benchmarks that are made of published results, so that no figure in them is typed.

A table of ``page_tables.toml`` has rows and columns: a row's name and ``at``, a column's head and text. The figures of
a text are read as :mod:`benchmarks.paper_tables` says, with the row's ``at`` in place of ``@``.
A table that says ``of`` is the ``place``-th (1 is the first) of the Markdown tables in ``table.txt`` of that folder.
``pytest tests/docs --update-docs`` writes each between ``<!-- table: PAGE.NAME -->`` and ``<!-- end -->`` of its page.
"""

import re
import tomllib
from pathlib import Path
from typing import Any, Final

from benchmarks.paper_tables import filled, typeset
from benchmarks.publish import RESULTS, markdown

TABLES: Final[dict[str, dict[str, Any]]] = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
)
"""By page, then by name."""
_AT: Final = re.compile(r"@(?!\w)")
"""But not before a word: so policies name options of their engines."""
_MARKDOWN: Final = re.compile(r"(?:^\|.*\|\n)+", re.MULTILINE)


def page_table(name: str) -> str:
    """The table ``PAGE.NAME`` as Markdown. Raises: ValueError for a figure that is in no result."""
    page, _, table = name.partition(".")
    told = TABLES[page][table]
    if "of" in told:
        return _tables(RESULTS / told["of"] / "table.txt")[told["place"] - 1]
    columns = told["columns"]
    head = [told["rows_are"], *(head for head, _ in columns)]
    rows = ([name, *(filled(_AT.sub(at, text)) for _, text in columns)] for name, at in told["rows"])
    return "\n".join(markdown([head, *rows])) + "\n"


def _tables(path: Path) -> list[str]:
    """The Markdown tables of a file, with signs as pages have them."""
    return [typeset(found[0]) for found in _MARKDOWN.finditer(path.read_text(encoding="utf-8"))]
