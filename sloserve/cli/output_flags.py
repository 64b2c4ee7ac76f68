"""How commands print results: as JSON for scripts, in columns for people."""

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from sloserve.core import json_text

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON in place of the table.")]


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Return ``rows`` as lines, with their cells aligned to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def show_names(found: Mapping[str, str], as_json: bool) -> None:
    """Print names and what each of them is."""
    print(json_text.dumps(found, indent=2) if as_json else columns(list(found.items())))
