"""What a report runs: every experiment, every section of QLM's fleet, and the modules that report.toml names.

In the published size a row runs the command of its folder in benchmarks/results, where there is one of this kind. How
long that takes is measured where the folder says so; ``report.toml`` estimates the modules; and for an experiment or a
section that nobody has published, it is the mean of the others.
"""

import re
import shlex
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.experiments import EXPERIMENTS
from benchmarks.fleet.fleet_qlm import SECTIONS
from benchmarks.publish import RESULTS
from benchmarks.republish import COMMAND, DATA, OUT, published
from sloserve.core.errors import ConfigError
from sloserve.sim.experiments import experiment_flags
from sloserve.sim.workloads.readers.found import find_trace

SEEDS, REQUESTS, FLEET_SECONDS = 1, 100, 15
"""Of the small size."""
MODULES: list[dict[str, Any]] = tomllib.loads((RESULTS.parent / "report.toml").read_text(encoding="utf-8"))["rows"]
_MINUTES = re.compile(r"([\d.]+) minutes? of CPU time")


@dataclass(frozen=True, slots=True)
class ReportRow:
    """command: after ``python -m``. left_out: why it cannot be run here. published_min: CPU minutes of the published
    size; ``None`` where nobody has measured them. measured: whether they are of a run.
    """

    name: str
    question: str
    command: tuple[str, ...]
    left_out: str | None = None
    published_min: float | None = None
    measured: bool = False


def rows(out: Path, *, full: bool) -> Iterator[ReportRow]:
    """All, each writing to the folder of its name in ``out``."""
    yield from _timed([_experiment(name, out, full) for name in EXPERIMENTS])
    yield from _timed([_section(section, out, full) for section in SECTIONS])
    yield from (_module(row, out, full) for row in MODULES)


def _timed(of_one_kind: Sequence[ReportRow]) -> Iterator[ReportRow]:
    """Rows of which nobody knows how long the published size takes get the mean of the others."""
    known = [row.published_min for row in of_one_kind if row.published_min is not None]
    for row in of_one_kind:
        yield row if row.published_min is not None or not known else replace(row, published_min=fmean(known))


def _experiment(name: str, out: Path, full: bool) -> ReportRow:
    command = ["sloserve.cli", "simulate", "--experiment", name, "--engine", "model"]
    command += ["--out", OUT] if full else ["--seeds", str(SEEDS), "--max-requests", str(REQUESTS), "--out", OUT]
    said = next((one.command for one in published(RESULTS) if one.folder.name == name), "").removeprefix(DATA)
    if full and f"--experiment {name} " in said:
        command = ["sloserve.cli", *shlex.split(said)[1:]]
    left_out = None
    try:
        experiment_flags(name)
    except ConfigError as error:
        left_out = str(error)
    told = tuple(str(out / name) if word == OUT else word for word in command)
    minutes = measured_min(name)
    return ReportRow(name, EXPERIMENTS[name].question, told, left_out, minutes, minutes is not None)


def _section(section: str, out: Path, full: bool) -> ReportRow:
    name = f"fleet-qlm-{section}"
    size = () if full else ("--seeds", str(SEEDS), "--seconds", str(FLEET_SECONDS))
    command = ("benchmarks.fleet.fleet_qlm", "--section", section, *size, "--out", str(out / name))
    minutes = measured_min(name)
    return ReportRow(name, f"QLM's fleet: {section}", command, published_min=minutes, measured=minutes is not None)


def _module(row: dict[str, Any], out: Path, full: bool) -> ReportRow:
    module = row["module"]
    name = module.rpartition(".")[2]
    to = out / name if row.get("out") == "folder" else out / name / f"{name}.json"
    command = (module, *(() if full else row.get("reduced", ())), "--out", str(to))
    measured = measured_min(row["results"]) if "results" in row else None
    minutes = row.get("minutes") if measured is None else measured
    left_out = row.get("left_out")
    try:
        for trace in row.get("traces", ()):
            find_trace(trace)
    except ConfigError as error:
        left_out = str(error)
    return ReportRow(name, _first_line(module), command, left_out, minutes, measured is not None)


def measured_min(folder: str) -> float | None:
    """CPU minutes that the published results in this folder took, if its ``command.txt`` says it in its first line."""
    path = RESULTS / folder / COMMAND
    found = _MINUTES.search(path.read_text(encoding="utf-8").partition("\n")[0]) if path.exists() else None
    return float(found[1]) if found else None


def _first_line(module: str) -> str:
    path = RESULTS.parents[1].joinpath(*module.split(".")).with_suffix(".py")
    return path.read_text(encoding="utf-8").removeprefix('"""').partition("\n")[0]


def published_size(every: Sequence[ReportRow]) -> str:
    """How long all rows take in the published size, those that cannot run here included, in words."""
    known = [row for row in every if row.published_min is not None]
    hours = sum(row.published_min or 0.0 for row in known) / 60
    measured = sum(row.measured for row in known)
    return (
        f"{hours:.1f} CPU hours in the published size ({measured} of {len(known)} rows measured, the others estimated)"
    )
