"""The tables with which the pages of the five papers begin: each figure, the paper's number, our command and ours.

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


def paper_table(paper: str) -> str:
    """Return the table of a paper as Markdown. Raises: an error where an expression names what no result has."""
    found = Environment(
        loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, keep_trailing_newline=True, trim_blocks=True
    )
    found.filters["fmt"] = fmt
    return typeset(found.get_template(f"{paper}.md.j2").render({name: getattr(results, name) for name in _NAMES}))


def fmt(value: float | pd.Series, spec: str) -> str:
    """Return a figure in a format of Python's, or those of a series, separated by commas."""
    return ", ".join(f"{one:{spec}}" for one in (value if isinstance(value, pd.Series) else [value]))
