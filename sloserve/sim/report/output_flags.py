"""The options for where an experiment leaves its files, and what it prints."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, kw_only=True)
class OutputFlags:
    """The output options of a simulation and of a live bench; ``token_log`` also keeps the time of each token."""

    out: Annotated[Path, typer.Option(help="Folder for result.json, records, logs and plots.")] = Path("out")
    token_log: Annotated[bool, typer.Option("--token-log", help="Also write tokens.csv.gz.")] = False
    as_json: Annotated[
        bool, typer.Option("--json", help="Print result.json; the tables go to standard error instead.")
    ] = False

    def console(self) -> "Console":
        """Return the console that shows tables and progress."""
        from rich.console import Console

        return Console(stderr=self.as_json)

    def show_result(self) -> None:
        """Print the result that the experiment wrote, if ``--json`` was given."""
        if self.as_json:
            from sloserve.sim.report.logs import RESULT_JSON

            print((self.out / RESULT_JSON).read_text(encoding="utf-8"))
