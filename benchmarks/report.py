"""One page of tables and plots, made anew: every experiment, every section of the fleet, and what report.toml names.

Usage: python -m benchmarks.report [--full] [--only azure-conv,hol] [--out report]

Each row is run as its own command into a folder of its own, small unless ``--full`` asks for the published size, and
not again where the folder has that size at this commit: a report that was stopped goes on. The page, ``index.html``,
has each row's question, command, CPU seconds, table and plots; how long the published size would take is estimated from
the runs of the small one. A row whose trace is in no folder that SLOSERVE_DATA names is left out, and says so. Ends
with 1 where a row failed.
"""

import html
import json
import resource
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from benchmarks.arguments import parser_for
from benchmarks.fleet.fleet_qlm import SECTIONS
from benchmarks.publish import aligned, provenance
from sloserve.core.errors import ConfigError
from sloserve.core.progress_bar import progress
from sloserve.sim.experiments import EXPERIMENTS, experiment_flags

SEEDS, REQUESTS, FLEET_SECONDS = 1, 100, 15
"""Of the small size."""
FULL_SEEDS: Final = 3
RAN, OUTPUT = "ran.json", "output.txt"
STYLE = "body{font:15px sans-serif;max-width:70em;margin:2em auto;padding:0 1em}pre{overflow:auto}img{max-width:100%}"
Ran = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReportRow:
    """command: after ``python -m``. left_out: why it cannot be run here. full_share: the published size's part of the
    work, as a multiple of the small size's; ``None`` where nobody knows.
    """

    name: str
    question: str
    command: tuple[str, ...]
    left_out: str | None = None
    full_share: float | None = None


def rows(out: Path, *, full: bool) -> Iterator[ReportRow]:
    """All, each writing to the folder of its name in ``out``."""
    for name, experiment in EXPERIMENTS.items():
        size = () if full else ("--seeds", str(SEEDS), "--max-requests", str(REQUESTS))
        command = ("sloserve.cli", "simulate", "--experiment", name, "--engine", "model", *size)
        left_out = None
        try:
            experiment_flags(name)
        except ConfigError as error:
            left_out = str(error)
        share = FULL_SEEDS / SEEDS * experiment.flags.get("max_requests", 1000) / REQUESTS
        yield ReportRow(name, experiment.question, (*command, "--out", str(out / name)), left_out, share)
    for section in SECTIONS:
        size = () if full else ("--seeds", str(SEEDS), "--seconds", str(FLEET_SECONDS))
        command = ("benchmarks.fleet.fleet_qlm", "--section", section, *size)
        name = f"fleet-qlm-{section}"
        yield ReportRow(name, f"QLM's fleet: {section}", (*command, "--out", str(out / name)))
    for row in tomllib.loads(Path(__file__).with_suffix(".toml").read_text())["rows"]:
        name = row["module"].rpartition(".")[2]
        command = (row["module"], *(() if full else row["reduced"]), "--out", str(out / name / f"{name}.json"))
        yield ReportRow(name, _first_line(row["module"]), command)


def _first_line(module: str) -> str:
    text = Path(*module.split(".")).with_suffix(".py").read_text()
    return text.removeprefix('"""').partition("\n")[0]


def state() -> str:
    """The commit, and whether the files differ from it."""
    changed = subprocess.run(["git", "status", "--porcelain"], capture_output=True, text=True, check=False).stdout
    return f"{provenance()['commit']}{' with changes' if changed else ''}"


def ran(row: ReportRow, folder: Path, now: str) -> Ran:
    """What running ``row`` into ``folder`` came to, or had come to when it was run before."""
    said = folder / RAN
    before = json.loads(said.read_text()) if said.exists() else {}
    if before.get("command") == list(row.command) and before.get("state") == now and not before.get("status"):
        return dict(before)
    folder.mkdir(parents=True, exist_ok=True)
    began = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", *row.command]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    (folder / OUTPUT).write_text(done.stdout)
    cpu_s = used.ru_utime + used.ru_stime - began.ru_utime - began.ru_stime
    found = {"command": list(row.command), "state": now, "status": done.returncode, "cpu_s": round(cpu_s, 1)}
    said.write_text(json.dumps(found) + "\n")
    return found


def flat(row: Mapping[str, Any], before: str = "") -> dict[str, str]:
    """The plain values of a row by the path of their names; lists are left out."""
    found: dict[str, str] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{before}{name}.")
        elif not isinstance(value, list):
            found[before + name] = f"{value:.4g}" if isinstance(value, float) else str(value)
    return found


def table(folder: Path) -> str:
    """What the row came to, as text: its own table, that of its JSON, or what it printed."""
    own = folder / "table.txt"
    if own.exists():
        return own.read_text()
    for path in folder.glob("*.json"):
        found = [flat(row) for row in json.loads(path.read_text()).get("rows", ()) if isinstance(row, dict)]
        if found:
            names = list(dict.fromkeys(name for row in found for name in row))
            return aligned([names, *([row.get(name, "") for name in names] for row in found)])
    printed = (folder / OUTPUT).read_text() if (folder / OUTPUT).exists() else ""
    return "\n".join(line for line in printed.splitlines() if not line.startswith("wrote "))


def page(parts: list[tuple[ReportRow, Ran | None]], out: Path, now: str) -> str:
    """The page. Ran: ``None`` for a row that was left out."""
    text = html.escape
    cpu_s = sum(of["cpu_s"] for _, of in parts if of)
    full_h = sum(of["cpu_s"] * row.full_share / 3600 for row, of in parts if of and row.full_share)
    known = sum(bool(of and row.full_share) for row, of in parts)
    made = f"sloserve at {now}, vLLM {provenance()['vllm']}. These runs took {cpu_s / 60:.0f} CPU minutes"
    head = f"{made}; {known} of them would take about {full_h:.1f} CPU hours in the published size."
    body = [f"<h1>What has been measured</h1><p>{text(head)}</p>"]
    body.append("<ul>" + "".join(f'<li><a href="#{text(row.name)}">{text(row.name)}</a>' for row, _ in parts) + "</ul>")
    for row, of in parts:
        body.append(f'<h2 id="{text(row.name)}">{text(row.name)}</h2><p>{text(row.question)}</p>')
        if of is None:
            body.append(f"<p>Left out: {text(str(row.left_out))}</p>")
            continue
        body.append(f"<p><code>python -m {text(' '.join(row.command))}</code>, {of['cpu_s']:.0f} CPU s</p>")
        folder = folder_of(row, out)
        if of["status"]:
            body.append(f"<p><b>Failed with {of['status']}.</b></p>")
        body.append(f"<pre>{text(table(folder))}</pre>")
        images = sorted(folder.glob("*.png"))
        body += [f'<img src="{text(str(i.relative_to(out)))}" alt="{text(row.name)}: {text(i.stem)}">' for i in images]
    title = "<title>sloserve: what has been measured</title>"
    return f'<!doctype html><html lang="en"><meta charset="utf-8">{title}<style>{STYLE}</style>' + "\n".join(body)


def folder_of(row: ReportRow, out: Path) -> Path:
    """Where it writes: what follows ``--out``, or its folder where that is a file."""
    path = Path(row.command[-1])
    return path if path.suffix != ".json" else path.parent


def main() -> None:
    parser = parser_for(__doc__, out=Path("report"))
    parser.add_argument("--full", action="store_true", help="the published size of each row: many hours")
    parser.add_argument("--only", help="names of rows, comma-separated")
    given = parser.parse_args()
    every = list(rows(given.out, full=given.full))
    only = {row.name for row in every} if given.only is None else set(given.only.split(","))
    unknown = only - {row.name for row in every}
    if unknown:
        parser.error(f"--only: no row {', '.join(sorted(unknown))}; rows are {', '.join(row.name for row in every)}")
    chosen, now = [row for row in every if row.name in only], state()
    parts: list[tuple[ReportRow, Ran | None]] = []
    given.out.mkdir(parents=True, exist_ok=True)
    with progress("rows", Console(stderr=True)) as bar:
        for i, row in enumerate(chosen):
            parts.append((row, None if row.left_out else ran(row, folder_of(row, given.out), now)))
            (given.out / "index.html").write_text(page(parts, given.out, now))
            bar.update(i + 1, len(chosen))
    failed = [row.name for row, of in parts if of and of["status"]]
    print(f"wrote {given.out / 'index.html'}" + (f"; failed: {', '.join(failed)}" if failed else ""))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
