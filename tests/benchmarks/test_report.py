"""The report has every figure of the papers, runs each row once a commit, goes on where it was stopped, and says what
failed.
"""

import json
import re
from pathlib import Path

import pytest

from benchmarks.experiments import EXPERIMENTS
from benchmarks.fleet.fleet_qlm import SECTIONS
from benchmarks.pages.papers import PAPERS, TEMPLATES
from benchmarks.report import RAN, as_html, page, ran, table
from benchmarks.report_rows import MODULES, ReportRow, published_size, rows

pytestmark = pytest.mark.slow

README = Path(__file__).parents[2] / "benchmarks" / "README.md"


def one(code: str) -> ReportRow:
    return ReportRow("one", "does <it> run?", ("timeit", "-n", "1", "-r", "1", code))


@pytest.mark.parametrize("full", [False, True])
def test_rows_have_names_of_their_own_and_one_folder_each(full: bool) -> None:
    found = list(rows(Path("out"), full=full))
    assert len({row.name for row in found}) == len(found)
    for row in found:
        to = Path(row.command[row.command.index("--out") + 1])
        assert Path("out", row.name) in (to, to.parent)
    assert any("--quick" in row.command for row in found) is not full


def test_every_command_of_the_papers_is_run_or_says_why_not() -> None:
    templates = "".join((TEMPLATES / f"{paper}.md.j2").read_text() for paper in PAPERS)
    named = set(re.findall(r"`(?:sloserve simulate --experiment|python -m) ([\w.-]+)", templates))
    assert named - set(EXPERIMENTS) - {"benchmarks.fleet.fleet_qlm"} <= {row["module"] for row in MODULES}
    assert set(re.findall(r"fleet_qlm --section ([\w-]+)", templates)) <= set(SECTIONS)


@pytest.mark.parametrize("row", MODULES, ids=lambda row: row["module"])
def test_a_module_says_how_small_it_runs_and_how_long_the_published_size_takes(row: dict[str, object]) -> None:
    known = {"module", "out", "reduced", "minutes", "results", "traces", "left_out"}
    assert set(row) <= known and row.get("out", "folder") == "folder"
    if "left_out" not in row:
        assert "reduced" in row and ("minutes" in row) != ("results" in row)


def test_the_published_size_is_that_of_the_published_results() -> None:
    found = {row.name: row for row in rows(Path("out"), full=True)}
    row = found["qoe-parts-reading"]
    assert ("--max-requests", "600") == row.command[4:6] and row.measured
    assert row.command[-2:] == ("--out", "out/qoe-parts-reading")
    assert all(row.published_min is not None for row in found.values())
    some = [ReportRow("a", "", (), published_min=30.0, measured=True), ReportRow("b", "", (), published_min=60.0)]
    assert published_size([*some, ReportRow("c", "", (), "needs a GPU")]) == (
        "1.5 CPU hours in the published size (1 of 2 rows measured, the others estimated)"
    )
    said, told = (
        re.search(r"([\d.]+) CPU hours", text) for text in (README.read_text(), published_size([*found.values()]))
    )
    assert said is not None and told is not None and float(said[1]) == pytest.approx(float(told[1]), rel=0.2)


def test_a_row_is_run_once_a_commit_and_again_where_it_failed(tmp_path: Path) -> None:
    row, folder = one("print('a < b')"), tmp_path / "one"
    first = ran(row, folder, "abc")
    assert first["status"] == 0 and table(folder).startswith("a < b")
    before = (folder / RAN).stat().st_mtime_ns
    assert ran(row, folder, "abc") == first and (folder / RAN).stat().st_mtime_ns == before
    ran(row, folder, "abd")
    assert (folder / RAN).stat().st_mtime_ns > before
    failed = one("raise SystemExit(3)")
    assert ran(failed, folder, "abe")["status"] == 1 == ran(failed, folder, "abe")["status"]
    shown = page([(failed, ran(failed, folder, "abe"))], tmp_path, "abe", "8 CPU hours")
    assert "Failed with 1" in shown and "does &lt;it&gt; run?" in shown and "all take 8 CPU hours" in shown
    assert shown.index('<h2 id="paper-qos">') < shown.index('<h2 id="one">'), "the papers come first"


@pytest.mark.parametrize(("now", "kept"), [("abc", True), ("abd", False)])
def test_what_a_stopped_row_left_is_kept_for_the_same_commit(tmp_path: Path, now: str, kept: bool) -> None:
    row = one("pass")
    (tmp_path / "part.json").write_text("{}")
    (tmp_path / RAN).write_text(json.dumps({"command": list(row.command), "state": "abc", "status": "unfinished"}))
    assert ran(row, tmp_path, now)["status"] == 0
    assert (tmp_path / "part.json").exists() is kept


def test_a_table_of_markdown_is_one_of_html() -> None:
    assert as_html("| a | b |\n| --- | --- |\n| `x<y` | [text](page.md#at) |\n| | 2 |\n") == (
        "<table><tr><th>a</th><th>b</th></tr><tr><td><code>x&lt;y</code></td><td>text</td></tr>"
        "<tr><td></td><td>2</td></tr></table>"
    )


def test_rows_of_json_are_a_table(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"rows": [{"a": 0.123456, "of": {"b": 1, "c": [2]}}, {"a": null}]}')
    assert table(tmp_path) == "a       of.b\n0.1235     1\nNone\n"
