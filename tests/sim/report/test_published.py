"""What is published under benchmarks/results: small, and enough to make the tables and figures of the docs again."""

import re
import shutil
import subprocess
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.publish import RUNS, read_runs
from benchmarks.republish import published as republishable
from sloserve.sim.report.compare import CAPACITY, compare
from sloserve.sim.report.latency_capacity import latency_capacity
from sloserve.sim.report.tables import ATTAINMENT, COLUMNS, capacity_table, summary_table

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "benchmarks" / "results"
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs" / "benchmarks").glob("*.md"))]
MAX_BYTES = 2_500_000
MAX_FIGURES = 12


def published() -> list[Path]:
    """The files that git keeps."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    listed = subprocess.run(
        ["git", "ls-files", "-z", RESULTS], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    return [ROOT / name for name in listed.stdout.split("\0") if name]


def test_results_stay_small_and_each_figure_is_shown() -> None:
    files = published()
    assert sum(path.stat().st_size for path in files) < MAX_BYTES
    figures = {path.resolve() for path in files if path.suffix == ".png"}
    shown = {
        (page.parent / link).resolve()
        for page in DOCS
        for link in re.findall(r"!\[[^]]*\]\(([^)]+)\)", page.read_text())
    }
    assert figures == shown and len(figures) <= MAX_FIGURES


def test_every_experiment_has_its_command_and_table() -> None:
    for folder in {path.parent for path in published()} - {RESULTS}:
        assert (folder / "command.txt").exists() and (folder / "table.txt").exists(), folder.name


def test_results_are_compressed_but_for_what_people_read() -> None:
    for path in published():
        if path.name not in (".gitignore", "command.txt", "table.txt"):
            assert path.suffix in (".gz", ".png"), path
        if path.suffix == ".gz":
            assert path.read_bytes()[4:8] == bytes(4), (
                f"{path}: written with the time of day, not by benchmarks.publish"
            )


@pytest.mark.slow
def test_runs_of_the_simulator_are_kept_where_a_page_or_a_test_reads_them() -> None:
    """Its commands make all others again in minutes."""
    readers = [*(ROOT / "benchmarks" / "pages").rglob("*.*"), *(ROOT / "tests").rglob("*.py")]
    readers += [ROOT / "benchmarks" / "published_plots.py"]
    text = "".join(path.read_text() for path in readers if path.suffix in (".py", ".j2"))
    simulated = {one.folder.name for one in republishable(RESULTS) if (one.folder / RUNS).exists()}
    in_a_test_of_all = {name for name in simulated if name.startswith("fleet-qlm-")}
    assert {name for name in simulated - in_a_test_of_all if f'"{name}"' not in text} == set()


def test_results_that_a_page_names_are_kept() -> None:
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for name in re.findall(r"`([\w-]+\.json\.gz)`", page.read_text()):
            assert (RESULTS / name).exists(), f"{page.name} names {name}"


def test_every_picture_is_drawn_from_runs_that_are_kept() -> None:
    """But for those of single requests, whose tokens are not kept: their command makes them again in two minutes."""
    of_requests = {"qoe_by_length.png", "timelines.png"}
    for picture in (path for path in published() if path.suffix == ".png" and path.name not in of_requests):
        runs = (picture.with_name(RUNS), picture.with_suffix(".json.gz"))
        assert any(path.exists() for path in runs), picture


def test_commands_state_the_flags_whose_defaults_have_moved() -> None:
    """Without them the command would no longer make the result that lies beside it."""
    for path in (path for path in published() if path.name == "command.txt"):
        command = path.read_text()
        if "sloserve simulate" in command:
            assert "--aged-share" in command and "--plan-cost" in command, path.parent.name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["econo-fixed-deadline", "econo-sharegpt-scale-1.5"])
def test_the_printed_table_follows_from_the_runs(name: str) -> None:
    runs = read_runs(RESULTS / name / RUNS)
    console = Console(file=(printed := StringIO()), width=120)
    shown = [column.key for column in (ATTAINMENT, *COLUMNS) if column.marked]
    console.print(summary_table(runs, compare(runs, metrics=shown)))
    rows = {line.strip() for line in printed.getvalue().splitlines() if "econo" in line or "stock" in line}
    table = (RESULTS / name / "table.txt").read_text()
    assert {" ".join(row.split()) for row in rows} <= {" ".join(line.split()) for line in table.splitlines()}


@pytest.mark.slow
def test_capacity_follows_from_the_runs() -> None:
    found = latency_capacity(read_runs(RESULTS / "econo-sharegpt" / RUNS))
    console = Console(file=(printed := StringIO()), width=120)
    console.print(capacity_table(found, "x", CAPACITY))
    (row,) = [line.split() for line in printed.getvalue().splitlines() if line.split()[:1] == ["econo"]]
    table = (RESULTS / "econo-sharegpt" / "table.txt").read_text()
    assert row in [line.split() for line in table.splitlines()]
    assert row[1] == "1.98", "as docs/benchmarks/econo.md has it"
