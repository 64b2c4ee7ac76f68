"""How benchmarks publish what they measured: as JSON that says where it was measured, or as a table of rows."""

import csv
import gzip
import io
import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sloserve import __version__
from sloserve.sim.report.runs_csv import read_runs
from sloserve.vllm_plugin.versions import installed_vllm

RESULTS = Path(__file__).parent / "results"


def provenance() -> dict[str, object]:
    """Commit, versions and hardware; the commit is ``None`` outside a checkout, or where there is no git."""
    return {
        "commit": _commit(),
        "sloserve": __version__,
        "vllm": installed_vllm(),
        "python": platform.python_version(),
        "hardware": {"machine": platform.machine(), "cpus": os.cpu_count(), "cpu": _cpu()},
    }


def write_result(path: Path, figures: Mapping[str, Any]) -> None:
    """Writes ``figures`` and their provenance as JSON; figures that bring their own provenance keep it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**provenance(), **figures}, indent=1) + "\n", encoding="utf-8")


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]], columns: Sequence[str] | None = None) -> None:
    """Writes ``rows`` as CSV, these columns or all, compressed if it is a ``.gz``. Equal rows leave equal bytes."""
    rows = list(rows)
    columns = columns or list(dict.fromkeys(column for row in rows for column in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    written = text.getvalue().encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(written, 9, mtime=0) if path.suffix == ".gz" else written)


def write_table(folder: Path, text: str, *, shown: bool = False) -> None:
    """Writes ``text`` as the table of an experiment. shown: prints it, too."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.txt").write_text(text, encoding="utf-8")
    if shown:
        print(text, end="")


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """``rows`` in columns, the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    )
    return "".join(line.rstrip() + "\n" for line in lines)


def markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    """``rows`` as the lines of a table in Markdown; the first is its head."""
    head, *body = ("| " + " | ".join(row) + " |" for row in rows)
    return [head, "|" + " --- |" * len(rows[0]), *body]


def runs_there(path: Path) -> list[dict[str, Any]]:
    """The runs of earlier calls, see :func:`~sloserve.sim.report.runs_csv.read_runs`; none where there is no such
    file.
    """
    return read_runs(path) if path.exists() else []


def short(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with floats of six digits, as text."""
    return {key: f"{value:.6g}" if isinstance(value, float) else value for key, value in row.items()}


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows that :func:`write_rows` wrote, as text; none where there is no such file."""
    if not path.exists():
        return []
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _commit() -> str | None:
    command = ["git", "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.check_output(
            command, text=True, cwd=Path(__file__).parent, stderr=subprocess.DEVNULL, encoding="utf-8"
        ).strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _cpu() -> str | None:
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return platform.processor() or None
    names = [
        line.partition(":")[2].strip()
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.startswith("model name")
    ]
    return names[0] if names else None
