"""The tables of the five papers: each figure, the paper's number, our command and ours; pages begin with the main rows.

A table is a template in ``papers/``: a row of Markdown for each figure or table of the paper, with Jinja expressions in
the place of figures. They call the functions of :mod:`benchmarks.pages.results` and the filter ``fmt``.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from benchmarks.pages import results
from benchmarks.pages.markdown import typeset

TEMPLATES: Final = Path(__file__).parent / "papers"


@dataclass(frozen=True, slots=True)
class Paper:
    """A paper that the project follows.

    page: The page of docs/benchmarks with its table.
    figures, tables: How many the paper has.
    """

    title: str
    page: str
    figures: int
    tables: int


PAPERS: Final = {
    "andes": Paper("Andes", "andes", 22, 4),
    "econo": Paper("EconoServe", "econo", 15, 2),
    "qlm": Paper("QLM", "qlm", 21, 2),
    "sa": Paper("Simulated annealing", "sa", 18, 2),
    "qos": Paper("QoS-aware serving", "quic", 9, 4),
}
_NAMES: Final = ("at_latency", "at_qoe", "by_seed", "capacities", "compared", "means", "printed", "rows", "saved")
"""What expressions of the templates may call."""
_ON_PAGE: Final = "{# page #}"
"""Marks a row of a template that the page of the paper shows."""
_COMMAND: Final = 3
"""Place of the column of commands in a row split at its bars."""


def paper_table(paper: str) -> str:
    """Return the whole table of a paper as Markdown.

    Raises:
        Exception: An expression of the template names what no result has.
    """
    return _rendered((TEMPLATES / f"{paper}.md.j2").read_text(encoding="utf-8"))


def page_table(paper: str) -> str:
    """Return the rows of a paper that its page shows, those with ``{# page #}``, without the column of commands."""
    lines = (TEMPLATES / f"{paper}.md.j2").read_text(encoding="utf-8").splitlines(keepends=True)
    heads = [number for number, line in enumerate(lines) if line.startswith("|")][:2]
    chosen = [
        line for number, line in enumerate(lines) if not line.startswith("|") or number in heads or _ON_PAGE in line
    ]
    rows = [line.split("|") for line in _rendered("".join(chosen)).splitlines()]
    return "".join("|".join(cells[:_COMMAND] + cells[_COMMAND + 1 :]) + "\n" for cells in rows)


def _rendered(template: str) -> str:
    found = Environment(
        loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, keep_trailing_newline=True, trim_blocks=True
    )
    found.filters["fmt"] = fmt
    return typeset(found.from_string(template).render({name: getattr(results, name) for name in _NAMES}))


def fmt(value: float | pd.Series, spec: str) -> str:
    """Return a figure in a format of Python's, or those of a series, separated by commas."""
    return ", ".join(f"{one:{spec}}" for one in (value if isinstance(value, pd.Series) else [value]))
