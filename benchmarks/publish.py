"""Reading and writing of published results: JSON with its provenance, rows and runs as CSV, and printed tables.

A file whose name ends in ``.gz`` is compressed, any other is plain text. Files in ``results`` are compressed, but for
the commands and the tables, which are short and are read by people. Figures keep eight digits: the others of a mean or
a rate take a sixth of the space. Equal results leave equal bytes.
"""

import csv
import gzip
import io
import itertools
import json
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sloserve import __version__
from sloserve.sim.report.runs_csv import Run, parse_runs, runs_text
from sloserve.vllm_plugin.versions import installed_vllm

RESULTS = Path(__file__).parent / "results"
RUNS = "runs.csv.gz"
"""The runs in the folder of an experiment."""
_COMMIT = re.compile(r"# Commit (\w+), (.+?);")
_DIGITS = 8
_LONG_NUMBER = re.compile(rf"\d+\.\d{{{_DIGITS},}}(?:e[-+]\d+)?")


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
    """Write ``figures`` and their provenance as JSON; figures that bring their own provenance keep it."""
    write_json(path, {**provenance(), **figures})


def merge_result(path: Path, figures: Mapping[str, Any]) -> None:
    """Write ``figures`` as :func:`write_result` does, and keep what else the file has.

    ``earlier_commits`` names the commits that measured what is kept, oldest first.
    """
    before, now = read_json(path), {**provenance(), **figures}
    commits = dict.fromkeys([*before.get("earlier_commits", ()), before.get("commit")])
    earlier = [commit for commit in commits if commit not in (None, now["commit"])]
    write_json(path, {**before, **now, **({"earlier_commits": earlier} if earlier else {})})


def caption(folder: Path) -> str:
    """Return what the results in ``folder`` were measured on: the title of their table, commit and versions."""
    above = itertools.takewhile(
        lambda line: line and not line.startswith("+"), load_text(folder / "table.txt").split("\n")
    )
    title = " ".join(line.strip() for line in above)
    commit = _COMMIT.match(load_text(folder / "command.txt"))
    return f"{folder.name}: {title}" + ("" if commit is None else f"; commit {commit[1]}, {commit[2]}")


def write_json(path: Path, value: Any, **options: Any) -> None:
    """Write ``value`` as JSON, indented by one space if ``options`` of :func:`json.dumps` do not say otherwise."""
    save_text(path, short_figures(json.dumps(value, **({"indent": 1} | options))) + "\n")


def read_json(path: Path) -> Any:
    """Return what the JSON file at ``path`` holds; an empty mapping where there is no such file."""
    return json.loads(load_text(path)) if path.exists() else {}


def short_figures(text: str) -> str:
    """Return ``text`` with long numbers rounded to eight digits."""
    return _LONG_NUMBER.sub(lambda found: f"{float(found[0]):.{_DIGITS}g}", text)


def save_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path``, compressed if its name ends in ``.gz``, and make its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode()
    path.write_bytes(gzip.compress(data, 9, mtime=0) if path.suffix == ".gz" else data)


def load_text(path: Path) -> str:
    """Return the text of the file at ``path``, decompressed if its name ends in ``.gz``."""
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode()


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]], columns: Sequence[str] | None = None) -> None:
    """Write ``rows`` as CSV: these columns, or all."""
    rows = list(rows)
    columns = columns or list(dict.fromkeys(column for row in rows for column in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    save_text(path, short_figures(text.getvalue()))


def write_table(folder: Path, text: str, *, shown: bool = False) -> None:
    """Write ``text`` as the table of an experiment. shown: whether to print it as well."""
    save_text(folder / "table.txt", text)
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


def write_runs(path: Path, runs: Sequence[Run]) -> None:
    """Write ``runs`` as :mod:`sloserve.sim.report.runs_csv` has them."""
    save_text(path, short_figures(runs_text(runs)))


def read_runs(path: Path) -> list[Run]:
    """Return the runs that :func:`write_runs` wrote; none where there is no such file."""
    return parse_runs(load_text(path)) if path.exists() else []


def short(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with floats of six digits, as text."""
    return {key: f"{value:.6g}" if isinstance(value, float) else value for key, value in row.items()}


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows that :func:`write_rows` wrote, their values as text; none where there is no such file."""
    return list(csv.DictReader(io.StringIO(load_text(path), newline=""))) if path.exists() else []


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
