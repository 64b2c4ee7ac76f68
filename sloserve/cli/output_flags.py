"""How commands give results: for scripts as JSON, for people in columns, and where an experiment leaves its files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sloserve.core import json_text

if TYPE_CHECKING:
    from rich.console import Console


JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON in place of the table.")]


def columns(rows: Sequence[Sequence[str]]) -> str:
    """``rows`` with their cells aligned to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def show_names(found: Mapping[str, str], as_json: bool) -> None:
    """Prints names and what each is."""
    print(json_text.dumps(found, indent=2) if as_json else columns(list(found.items())))


@dataclass(frozen=True, kw_only=True)
class OutputFlags:
    """The same for a simulation and for a live endpoint. token_log: whether each token's time is kept besides."""

    out: Annotated[Path, typer.Option(help="Folder for result.json, records, logs and plots.")] = Path("out")
    token_log: Annotated[bool, typer.Option("--token-log", help="Also write tokens.csv.gz.")] = False
    as_json: Annotated[
        bool, typer.Option("--json", help="Print result.json; the tables go to standard error instead.")
    ] = False

    def console(self) -> "Console":
        """Where tables and progress are shown."""
        from rich.console import Console

        return Console(stderr=self.as_json)

    def show_result(self) -> None:
        """Prints the result that the experiment wrote, if that was asked for."""
        from sloserve.sim.report.logs import RESULT_JSON

        if self.as_json:
            print((self.out / RESULT_JSON).read_text(encoding="utf-8"))
