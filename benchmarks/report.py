"""One page of tables and plots, made anew from raw rows, below the papers' figures: what report_rows.py lists.

Usage: python -m benchmarks.report [--full] [--only azure-conv,hol] [--out report]

Each row is run as its own command into a folder of its own, small unless ``--full`` asks for the published size, and
not again where the folder has that size at this commit: a report that was stopped goes on. The page, ``index.html``,
begins with the table of each paper, whose figures are those of benchmarks/results; then come each row's question,
command, CPU seconds, table and plots. A row whose trace is in no folder that SLOSERVE_DATA names is left out, and says
so. Ends with 1 where a row failed.
"""

import html
import json
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.arguments import parser_for
from benchmarks.pages.papers import PAPERS, paper_table
from benchmarks.publish import aligned, provenance, read_json
from benchmarks.report_rows import ReportRow, published_size, rows
from sloserve.core.progress_bar import progress

RAN, OUTPUT = "ran.json", "output.txt"
UNFINISHED = "unfinished"
"""The status of a row that runs, or was stopped."""
STYLE = (
    "body{font:15px sans-serif;max-width:70em;margin:2em auto;padding:0 1em}pre{overflow:auto}img{max-width:100%}"
    "table{border-collapse:collapse}td,th{border:1px solid #ccc;padding:.2em .5em;text-align:left;vertical-align:top}"
)
Ran = dict[str, Any]
_LINK = re.compile(r"\[([^]]+)\]\([^)]*\)")


def state() -> str:
    """The commit, and whether the files differ from it."""
    changed = subprocess.run(
        ["git", "status", "--porcelain"], capture_output=True, text=True, check=False, encoding="utf-8"
    ).stdout
    return f"{provenance()['commit']}{' with changes' if changed else ''}"


def ran(row: ReportRow, folder: Path, now: str) -> Ran:
    """What running ``row`` into ``folder`` came to, or had come to when it was run before.

    A run that was stopped finds what it left, for modules that go on themselves; one of another commit finds nothing.
    """
    said = folder / RAN
    before = json.loads(said.read_text(encoding="utf-8")) if said.exists() else {}
    if before.get("command") == list(row.command) and before.get("state") == now and not before.get("status"):
        return dict(before)
    asked = {"command": list(row.command), "state": now}
    if before and {name: before.get(name) for name in asked} != asked:
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    said.write_text(json.dumps({**asked, "status": UNFINISHED}) + "\n", encoding="utf-8")
    began = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", *row.command]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, encoding="utf-8"
    )
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    (folder / OUTPUT).write_text(done.stdout, encoding="utf-8")
    cpu_s = used.ru_utime + used.ru_stime - began.ru_utime - began.ru_stime
    found = {**asked, "status": done.returncode, "cpu_s": round(cpu_s, 1)}
    said.write_text(json.dumps(found) + "\n", encoding="utf-8")
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
        return own.read_text(encoding="utf-8")
    for path in folder.glob("*.json"):
        found = [flat(row) for row in read_json(path).get("rows", ()) if isinstance(row, dict)]
        if found:
            names = list(dict.fromkeys(name for row in found for name in row))
            return aligned([names, *([row.get(name, "") for name in names] for row in found)])
    printed = (folder / OUTPUT).read_text(encoding="utf-8") if (folder / OUTPUT).exists() else ""
    return "\n".join(line for line in printed.splitlines() if not line.startswith("wrote "))


def page(parts: list[tuple[ReportRow, Ran | None]], out: Path, now: str, size: str) -> str:
    """The page. Ran: ``None`` for a row that was left out. size: what is said of the published one."""
    text = html.escape
    cpu_s = sum(of["cpu_s"] for _, of in parts if of)
    made = f"sloserve at {now}, vLLM {provenance()['vllm']}. These runs took {cpu_s / 60:.0f} CPU minutes"
    body = [f"<h1>What has been measured</h1><p>{text(made)}; all take {text(size)}.</p>"]
    body.append("<p>Figures of the papers' tables are those of benchmarks/results; what stands below them ran now.</p>")
    for name, paper in PAPERS.items():
        body.append(f'<h2 id="paper-{name}">{paper.title}</h2>{as_html(paper_table(name))}')
    body.append("<h2>Rows</h2><ul>")
    body += [f'<li><a href="#{text(row.name)}">{text(row.name)}</a>' for row, _ in parts] + ["</ul>"]
    for row, of in parts:
        body.append(f'<h2 id="{text(row.name)}">{text(row.name)}</h2><p>{text(row.question)}</p>')
        if of is None:
            body.append(f"<p>Left out: {text(str(row.left_out))}</p>")
            continue
        body.append(f"<p><code>python -m {text(' '.join(row.command))}</code>, {of['cpu_s']:.0f} CPU s</p>")
        folder = out / row.name
        if of["status"]:
            body.append(f"<p><b>Failed with {of['status']}.</b></p>")
        body.append(f"<pre>{text(table(folder))}</pre>")
        images = sorted(folder.glob("*.png"))
        body += [f'<img src="{text(str(i.relative_to(out)))}" alt="{text(row.name)}: {text(i.stem)}">' for i in images]
    title = "<title>sloserve: what has been measured</title>"
    return f'<!doctype html><html lang="en"><meta charset="utf-8">{title}<style>{STYLE}</style>' + "\n".join(body)


def as_html(markdown: str) -> str:
    """A table of Markdown, with code; of links only the text, since they lead from pages of the docs."""
    lines = [line.removeprefix("|").removesuffix("|").split("|") for line in markdown.splitlines()]
    tags = ["th", *["td"] * (len(lines) - 2)]  # the line below the head only says that it is one
    rows = [
        f"<tr>{''.join(f'<{tag}>{_cell(cell.strip())}</{tag}>' for cell in line)}</tr>"
        for tag, line in zip(tags, [lines[0], *lines[2:]], strict=True)
    ]
    return f"<table>{''.join(rows)}</table>"


def _cell(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(_LINK.sub(r"\1", text)))


def main() -> None:
    parser = parser_for(__doc__, out=Path("report"))
    parser.add_argument(
        "--full",
        action="store_true",
        help=f"the published size of each row: {published_size(list(rows(Path(), full=True)))}",
    )
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
    (given.out / "index.html").write_text(page(parts, given.out, now, published_size(every)), encoding="utf-8")
    with progress("rows", Console(stderr=True)) as bar:
        for i, row in enumerate(chosen):
            parts.append((row, None if row.left_out else ran(row, given.out / row.name, now)))
            (given.out / "index.html").write_text(page(parts, given.out, now, published_size(every)), encoding="utf-8")
            bar.update(i + 1, len(chosen))
    failed = [row.name for row, of in parts if of and of["status"]]
    print(f"wrote {given.out / 'index.html'}" + (f"; failed: {', '.join(failed)}" if failed else ""))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
