"""Where an experiment leaves its results, the same for a simulation and for a live endpoint."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer


@dataclass(frozen=True, kw_only=True)
class OutputFlags:
    """The folder, and whether each token's time is kept besides."""

    out: Annotated[Path, typer.Option(help="Folder for result.json, records, logs and plots.")] = Path("out")
    token_log: Annotated[bool, typer.Option("--token-log", help="Also write tokens.csv.gz.")] = False
